"""Ctrl-C and SIGTERM as an orderly end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from headrace.cli.output import err


class Stop(threading.Event):
    """Set by the first Ctrl-C or SIGTERM once flows run. Before that, a signal interrupts what is being prepared."""

    def __init__(self) -> None:
        super().__init__()
        self._flows_run = False

    def flows_run(self) -> None:
        """From now on there are batches to commit before the end."""
        self._flows_run = True

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Stop in order; a second signal ends the process at once."""
        if not self._flows_run:
            raise KeyboardInterrupt
        if self.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.set()
        err.print("\nStopping: each flow commits the batch that it is in. Press Ctrl-C again to stop at once.")


@contextmanager
def stopping() -> Iterator[Stop]:
    """Yield what the signals of this process set while the block runs."""
    stop = Stop()
    before = {number: signal.signal(number, stop.on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
