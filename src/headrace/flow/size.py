"""Amounts of memory and disk, written the way people write them: `512 MB`, `2 GB`."""

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
        """Read `512 MB` or `1.5GB`. A bare number is refused: nobody can tell whether it means bytes or megabytes."""
        found = _TEXT.fullmatch(text)
        unit = found[2].lower() if found else ""
        size = round(float(found[1]) * _BYTES_PER_UNIT[unit]) if found and unit in _BYTES_PER_UNIT else 0
        if size < 1:
            raise FlowError(
                f"'{text}' is not an amount of memory or disk.",
                why="Headrace reads a number above zero and a unit: B, KB, MB, GB or TB.",
                state="Nothing was started.",
                remedy="Write it like '512 MB' or '2 GB'.",
                code="HR-227",
            )
        return cls(size)

    @property
    def megabytes(self) -> int:
        """The same in whole megabytes, rounded down, as Spark's settings take it."""
        return self.bytes // 1024**2

    def __str__(self) -> str:
        return said_bytes(self.bytes)


def said_bytes(number: float) -> str:
    """Return a number of bytes as a person reads it: `1.5 GB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(number) < 1024:
            return f"{number:,.0f} {unit}" if unit == "B" or number >= 100 else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TB"
