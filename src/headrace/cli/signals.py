"""Graceful shutdown on Ctrl-C and SIGTERM."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from headrace.cli.output import err


class ShutdownEvent(threading.Event):
    """Set by the first Ctrl-C or SIGTERM once flows are running. Before that, a signal interrupts the preparation."""

    def __init__(self) -> None:
        super().__init__()
        self._flows_run = False

    def flows_run(self) -> None:
        """Mark that flows are running: from now on a signal lets in-flight batches commit first."""
        self._flows_run = True

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Request a graceful shutdown; a second signal ends the process immediately."""
        if not self._flows_run:
            raise KeyboardInterrupt
        if self.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.set()
        err.print("\nStopping: waiting for in-flight batches to commit. Press Ctrl-C again to stop immediately.")


@contextmanager
def graceful_shutdown() -> Iterator[ShutdownEvent]:
    """Yield an event that Ctrl-C and SIGTERM set while the block runs."""
    stop = ShutdownEvent()
    with signal_handler(stop.on_signal):
        yield stop


@contextmanager
def signal_handler(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM with a function while the block runs."""
    previous_handlers = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in previous_handlers.items():
            signal.signal(number, previous)
