"""The clock of the runtime. Tests replace it, so that hours pass without waiting."""

import time
from collections.abc import Callable

# Returns milliseconds since 1970, as in Spark's offset log.
Clock = Callable[[], int]


def now_ms() -> int:
    """Return the system time."""
    return time.time_ns() // 1_000_000
