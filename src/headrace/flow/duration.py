"""Durations in the format of Spark's intervals: `10 minutes`, `90s`, `1 hour 30 minutes`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from headrace.errors import FlowError

_MS_PER_UNIT = {
    "ms": 1, "millisecond": 1, "milliseconds": 1,
    "s": 1_000, "sec": 1_000, "secs": 1_000, "second": 1_000, "seconds": 1_000,
    "m": 60_000, "min": 60_000, "mins": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
    "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
}  # fmt: skip
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Duration:
    """A duration in whole milliseconds, never negative."""

    ms: int

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Parse `10 minutes`, `90s` or `1 hour 30 minutes`. Months and years are refused: their length varies."""
        total, position = 0.0, 0
        while position < len(text):
            part = _PART.match(text, position)
            unit = part[2].lower() if part else ""
            if part is None or unit not in _MS_PER_UNIT:
                raise FlowError(
                    f"'{text}' is not a length of time.",
                    why="Headrace reads a number and a unit: ms, seconds, minutes, hours or days.",
                    remedy="Write it like '10 minutes', '90s' or '1 hour 30 minutes'.",
                    code="HR-201",
                )
            total += float(part[1]) * _MS_PER_UNIT[unit]
            position = part.end()
        if not text.strip():
            raise FlowError(
                "An empty text is not a length of time.",
                why="Headrace reads a number and a unit.",
                remedy="Write it like '10 minutes' or '90s'.",
                code="HR-201",
            )
        return cls(round(total))

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self.ms / 1_000

    def as_interval(self) -> str:
        """The duration as a Spark interval string."""
        return f"{self.ms} milliseconds"


class HasDuration:
    """A value with a duration as text. A text that is not a duration fails when the value is created."""

    duration_field: ClassVar[str]

    def __post_init__(self) -> None:
        _ = self.duration

    @property
    def duration(self) -> Duration:
        """The text as a `Duration`."""
        return Duration.parse(getattr(self, self.duration_field))
