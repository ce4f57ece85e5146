"""A lock of the operating system on a file (`flock`): one process at a time has it.

It ends with the process that has it, however that process ends, so a crash never leaves a stale lock.
"""

import fcntl
import time
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path

# `flock` waits without a limit only, so a process that waits tries again after this many seconds.
_RETRY_SECONDS = 0.1


def lock_file(
    path: Path, *, timeout_seconds: float = 0.0, on_wait: Callable[[], None] = lambda: None
) -> TextIOWrapper | None:
    """Open and lock a file, or return None if another process has the lock for longer than `timeout_seconds` seconds.

    Closing the file unlocks it, unless a child process has inherited its descriptor: then the child's end does. Creates
    the file and its folder. `on_wait` is called once, if another process has the lock. Raises OSError if the file
    cannot be opened.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+")
    deadline, waiting = time.monotonic() + timeout_seconds, False
    try:
        while not _try_lock(file):
            if not waiting:
                waiting = True
                on_wait()
            if time.monotonic() >= deadline:
                file.close()
                return None
            time.sleep(_RETRY_SECONDS)
    except BaseException:
        file.close()
        raise
    return file


def _try_lock(file: TextIOWrapper) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
