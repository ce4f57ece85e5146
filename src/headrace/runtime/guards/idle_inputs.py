"""Writes the idle ticks of a running flow, when its inputs are idle.

`IdleTimer` decides when a tick is due, `TickFiles` stores the ticks, and the inputs of the flow read them.
"""

import threading
from collections.abc import Mapping
from contextlib import suppress

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.flow.flow import Flow
from headrace.flow.levers import AvailableNow
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import HasPendingRows, leaf_sinks
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.tick_files import TickFiles, idle_timeouts_ms
from headrace.runtime.clock import Clock
from headrace.runtime.guards.guard import Guard, Progress
from headrace.runtime.guards.idle_timer import IdleTimer
from headrace.runtime.progress import listen


class IdleInputGuard(Guard):
    """The idle inputs of one run of a flow."""

    def __init__(self, flow: Flow, target: Target, checkpoint: Checkpoint, clock: Clock, cache: RunCache) -> None:
        self._target, self._files, self._cache = target, TickFiles(flow, checkpoint), cache
        self._timeouts_ms = idle_timeouts_ms(flow)
        # A run that ends when everything is read has no idle inputs.
        is_finite = isinstance(flow.trigger, AvailableNow)
        self._timer = IdleTimer({} if is_finite else self._timeouts_ms, clock, self._sink_waits)
        self._pending_sinks = [sink for _, sink in leaf_sinks(flow.sink) if isinstance(sink, HasPendingRows)]
        self._session: SparkSession | None = None
        self._lock = threading.Lock()

    def before_start(self, session: SparkSession) -> None:
        """Listen to triggers without new data: they are no progress of a batch."""
        self._session = session
        if self._timeouts_ms:
            listen(session, on_empty_trigger=self._on_empty_trigger)

    def on_progress(self, progress: Progress) -> None:
        """Write the ticks that are due after a batch."""
        if self._timeouts_ms:
            with self._lock:
                state_rows = sum(operator.rows for operator in progress.event.state)
                self._write(self._timer.on_batch(progress.inputs, state_rows))

    def _on_empty_trigger(self) -> None:
        with self._lock:
            self._write(self._timer.on_empty_trigger())

    def _write(self, due: Mapping[str, int]) -> None:
        for name, tick in due.items():
            # A tick that cannot be written is skipped: the next trigger writes one.
            with suppress(OSError, Py4JError):
                self._files.write(name, tick)

    def _sink_waits(self) -> bool:
        """Whether a sink holds pending rows. If a sink does not know, the next trigger asks again."""
        session = self._session
        with suppress(OSError, Py4JError, PySparkException):
            return session is not None and any(
                sink.is_due(session, self._target, self._cache) for sink in self._pending_sinks
            )
        return False
