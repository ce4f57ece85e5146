"""Decides when an idle input needs an idle tick, from the progress of each trigger. Pure logic without Spark or files.

A watermark advances only with rows, so the last windows of an idle topic would stay open until its next row. An idle
tick is a synthetic row with an event time. It is due when all of these are true:

1. The flow has state, or may have, or its sink holds pending rows (`HasPendingRows`). Otherwise neither the watermark
   nor a batch has an effect.
2. The last trigger found no new rows in the input: a tick during a backlog would make the rest of it late.
3. No row has arrived for `idle_timeout`, since the last rows or the start of this run.
4. The last tick is at least half an `idle_timeout` old: each tick costs a batch.

The event time of a tick is the clock minus `idle_timeout`, and later than all earlier ticks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.runtime.clock import Clock


@dataclass(frozen=True)
class InputProgress:
    """The progress of one input in one trigger. `rest` is True if it has more rows than the batch read."""

    rows: int
    rest: bool = False


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
