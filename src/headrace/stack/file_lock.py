"""The lock of a folder of the local stack: one command at a time may change it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.clients.file_lock import lock_file
from headrace.errors import StackError
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
        file = lock_file(path, timeout_seconds=patience, on_wait=on_wait)
    if file is None:
        raise StackError(
            f"Another headrace command has locked {path} for {patience:.0f} s.",
            why="Only one command at a time may change the local stack or the jar cache.",
            state="Nothing was done.",
            remedy="Wait for it, or end it, and run the same command again.",
            code="HR-411",
        )
    with file:
        yield file.fileno()
