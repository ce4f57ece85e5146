"""Sizes of memory and disk in the format `512 MB`, `2 GB`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.errors import FlowError

# Powers of 1024, as Spark and RocksDB count.
_BYTES_PER_UNIT = {"b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3, "tb": 1024**4}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Size:
    """A number of bytes, at least one."""

    bytes: int

    @classmethod
    def parse(cls, text: str) -> Size:
        """Parse `512 MB` or `1.5GB`. A number without a unit is refused because it is ambiguous."""
        match = _TEXT.fullmatch(text)
        unit = match[2].lower() if match else ""
        size = round(float(match[1]) * _BYTES_PER_UNIT[unit]) if match and unit in _BYTES_PER_UNIT else 0
        if size < 1:
            raise FlowError(
                f"'{text}' is not an amount of memory or disk.",
                why="Headrace reads a number above zero and a unit: B, KB, MB, GB or TB.",
                remedy="Write it like '512 MB' or '2 GB'.",
                code="HR-227",
            )
        return cls(size)

    @property
    def megabytes(self) -> int:
        """The size in whole megabytes, rounded down, as Spark's settings expect it."""
        return self.bytes // 1024**2

    def __str__(self) -> str:
        return format_bytes(self.bytes)


def format_bytes(number: float) -> str:
    """Return a number of bytes in a readable unit: `1.5 GB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(number) < 1024:
            return f"{number:,.0f} {unit}" if unit == "B" or number >= 100 else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TB"
