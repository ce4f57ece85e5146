"""When an input that went quiet gets a beat: a rule over what Spark tells of each trigger, without Spark and files.

A watermark moves only with rows, so the last windows of a topic that goes quiet would stay open until its next row. A
beat says that event time has come to a moment. It is due when all of these hold:

1. something waits: the flow keeps state, or it is not known yet whether it does, or rows wait in its sink for what has
   come meanwhile (`Waiting`). Otherwise nobody needs the watermark, or a batch;
2. the last trigger found nothing new in the input: a beat amid a backlog would make the rest of it late;
3. nothing has come for `idle`, counted from the last rows or from the start of this run;
4. the last beat is half of `idle` old: more would move the watermark by little and cost a batch each.

A beat stands `idle` behind the clock, and later than all before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.runtime.clock import Clock


@dataclass(frozen=True)
class Seen:
    """What one trigger found in one input. `rest` says whether there was more than the batch took."""

    rows: int
    rest: bool = False


@dataclass
class _Pulse:
    idle_ms: int
    quiet_since: int
    last_beat: int | None = None


class Heart:
    """The beats of one run of a flow. Used by one thread at a time.

    `sink_waits` says whether rows in the sink wait for a batch; it is asked only when that decides.
    """

    def __init__(
        self, idle_ms: Mapping[str, int], clock: Clock, sink_waits: Callable[[], bool] = lambda: False
    ) -> None:
        self._clock, self._sink_waits = clock, sink_waits
        start = clock()
        self._pulses = {name: _Pulse(idle, start) for name, idle in idle_ms.items()}
        self._state_rows: int | None = None

    def on_batch(self, seen: Mapping[str, Seen], state_rows: int) -> dict[str, int]:
        """Take what a batch read per input and left in the state; return the beats that are due, by input."""
        self._state_rows = state_rows
        for name, found in seen.items():
            if name in self._pulses and (found.rows or found.rest):
                self._pulses[name].quiet_since = self._clock()
        return self._due({name for name, found in seen.items() if not found.rows and not found.rest})

    def on_nothing(self) -> dict[str, int]:
        """Take that a trigger found nothing new in any input; return the beats that are due, by input."""
        return self._due(set(self._pulses))

    def _due(self, quiet: set[str]) -> dict[str, int]:
        now, due = self._clock(), {}
        for name, pulse in self._pulses.items():
            beat = now - pulse.idle_ms
            rested = pulse.last_beat is None or beat >= pulse.last_beat + pulse.idle_ms // 2
            if name in quiet and beat >= pulse.quiet_since and rested:
                due[name] = beat
        if not due or (self._state_rows == 0 and not self._sink_waits()):
            return {}
        for name, beat in due.items():
            self._pulses[name].last_beat = beat
        return due
