"""The clock that a run of flows goes by. Tests set another one, so that hours pass without waiting."""

from __future__ import annotations

import time
from collections.abc import Callable

# Returns milliseconds since 1970, as Spark's offset log has them.
Clock = Callable[[], int]


def now_ms() -> int:
    """Return the time of the machine's clock."""
    return time.time_ns() // 1_000_000
