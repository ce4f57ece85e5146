"""One thing to know about a flow before it runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding weighs. An error stops the start."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True)
class Finding:
    """One thing to know about a flow before it runs."""

    code: str
    severity: Severity
    place: str
    reason: str
    remedy: str

    def as_dict(self) -> dict[str, str]:
        """The finding as `--json` prints it."""
        return {key: str(value) for key, value in asdict(self).items()}
