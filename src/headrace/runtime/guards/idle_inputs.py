"""Writes the idle ticks of a running flow, when its inputs are idle.

`IdleTimer` decides from the progress of each trigger when a tick is due, without Spark or files. `TickFiles` stores the
ticks, and the inputs of the flow read them.

A watermark advances only with rows, so the last windows of an idle topic would stay open until its next row. An idle
tick is a synthetic row with an event time. It is due when all of these are true:

1. The flow has state, or may have, or its sink holds pending rows (`HasPendingRows`). Otherwise neither the watermark
   nor a batch has an effect.
2. The last trigger found no new rows in the input: a tick during a backlog would make the rest of it late.
3. No row has arrived for `idle_timeout`, since the last rows or the start of this run.
4. The last tick is at least half an `idle_timeout` old: each tick costs a batch.

The event time of a tick is the clock minus `idle_timeout`, and later than all earlier ticks.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

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
from headrace.runtime.guards.guard import Guard, InputProgress, Progress
from headrace.runtime.progress import listen


@dataclass
class _InputIdleness:
    idle_ms: int
    idle_since: int
    last_tick: int | None = None


class IdleTimer:
    """Schedules the idle ticks of one run of a flow. Used by one thread at a time.

    `sink_waits` says whether the sink holds pending rows; it is called only if needed.
    """

    def __init__(
        self, idle_ms: Mapping[str, int], clock: Clock, sink_waits: Callable[[], bool] = lambda: False
    ) -> None:
        self._clock, self._sink_waits = clock, sink_waits
        start = clock()
        self._inputs = {name: _InputIdleness(idle, start) for name, idle in idle_ms.items()}
        self._state_rows: int | None = None

    def on_batch(self, progress: Mapping[str, InputProgress], state_rows: int) -> dict[str, int]:
        """Process the progress and state rows of a batch; return the event times of due ticks by input."""
        self._state_rows = state_rows
        for name, read in progress.items():
            if name in self._inputs and (read.rows or read.rest):
                self._inputs[name].idle_since = self._clock()
        return self._due({name for name, read in progress.items() if not read.rows and not read.rest})

    def on_empty_trigger(self) -> dict[str, int]:
        """Process a trigger without new rows in any input; return the event times of due ticks by input."""
        return self._due(set(self._inputs))

    def _due(self, idle: set[str]) -> dict[str, int]:
        now, due = self._clock(), {}
        for name, state in self._inputs.items():
            tick = now - state.idle_ms
            is_spaced = state.last_tick is None or tick >= state.last_tick + state.idle_ms // 2
            if name in idle and tick >= state.idle_since and is_spaced:
                due[name] = tick
        if not due or (self._state_rows == 0 and not self._sink_waits()):
            return {}
        for name, tick in due.items():
            self._inputs[name].last_tick = tick
        return due


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
