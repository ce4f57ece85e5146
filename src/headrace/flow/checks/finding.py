"""The result of a check: what is wrong with a flow, where, and how to fix it."""

from dataclasses import asdict, dataclass
from enum import StrEnum


class Severity(StrEnum):
    """The severity of a finding. An error prevents the start."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True)
class Finding:
    """The result of a check: what is wrong with a flow, where, and how to fix it."""

    code: str
    place: str
    reason: str
    remedy: str
    severity: Severity = Severity.ERROR

    def as_dict(self) -> dict[str, str]:
        """The finding as `--json` prints it."""
        return {key: str(value) for key, value in asdict(self).items()}
