"""A lock file: only one command at a time may change a folder, across processes.

A lock of the kernel on an open file (`flock`): it ends with the process that owns it, however that
process ends, so a crash never leaves a stale lock.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.stack import errors

# A first sync over a slow connection takes minutes; a second caller waits for its result instead of failing.
PATIENCE_SECONDS = 900.0


@contextmanager
def file_lock(
    path: Path, *, patience: float = PATIENCE_SECONDS, on_wait: Callable[[], None] = lambda: None
) -> Iterator[int]:
    """Lock the file at `path` during the block, and yield its descriptor.

    A child that inherits the descriptor keeps the lock until it ends too. `on_wait` is called once, if
    another process has the lock. Raises HR-411 when the patience is over, HR-405 when the file cannot be made.
    """
    with errors.as_stack_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _acquire(descriptor, path, patience, on_wait)
        yield descriptor
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, patience: float, on_wait: Callable[[], None]) -> None:
    deadline = time.monotonic() + patience
    waiting = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not waiting:
                waiting = True
                on_wait()
            if time.monotonic() > deadline:
                raise errors.lock_timeout(path, patience) from None
            time.sleep(0.1)  # flock cannot wait with a limit of time except through signals
        else:
            return
