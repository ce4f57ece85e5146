"""What a sink promises when a driver is killed and its batch is run again."""

from __future__ import annotations

from enum import StrEnum


class Guarantee(StrEnum):
    """The promise. The sink's docstring states the conditions under which it holds."""

    EXACTLY_ONCE = "exactly-once"
    """A batch that is run again leaves the sink as if it had run once."""
    AT_LEAST_ONCE = "at-least-once"
    """No row is lost; a batch that is run again may write its rows twice."""
    BEST_EFFORT = "best-effort"
    """For eyes only: rows may be missing or doubled after a crash."""
