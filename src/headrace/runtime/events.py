"""What happens to flows while they run, as values. The only way in which the rest of the house hears of the runtime."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from headrace.errors import HeadraceError
from headrace.flow.checks.backpressure import Fitted
from headrace.flow.sink import SetAside
from headrace.runtime.checkpoint.lost_offsets import Lost
from headrace.runtime.state.size import OperatorState


@dataclass(frozen=True)
class BatchSizeChosen:
    """The bound of an input was left to the machine, and this is what it came to. Before the flow is first started."""

    flow: str
    input: str
    bound: Fitted


@dataclass(frozen=True)
class FlowStarted:
    """A query runs. `query_id` is the identity of its checkpoint.

    `last_batch` is the newest batch that was committed before this start, None if there is none.
    """

    flow: str
    query_id: str
    last_batch: int | None = None


@dataclass(frozen=True)
class BatchCommitted:
    """A batch is in its sinks and in the commit log.

    `rows_in` does not count heartbeats. `bad` counts the rows that were left out as bad, per input. `dropped` is
    Spark's own count of rows that came too late, taken after partial aggregation: zero means none, any other number
    only says that there were some. `dropped_by` is the same per operator with state, from the result to the sources.
    `state` is what each stateful operator keeps after the batch. `newest` is the newest event time of each input that
    has a watermark, where the batch had rows of it. `broken` counts the rows that broke each rule, per input, whatever
    the rule does with them.

    An epoch of continuous processing is told as a batch, where it read something. It is not `counted`: `rows_in` is the
    distance of its offsets, `rows_out` is 0, and whether it had bad rows is known only by reading it again.
    """

    flow: str
    batch_id: int
    rows_in: int
    rows_out: int
    bad: Mapping[str, int]
    dropped: int
    duration_ms: int
    watermark: str | None
    state: Sequence[OperatorState] = ()
    progress: Mapping[str, object] = field(repr=False, default_factory=dict)
    counted: bool = True
    dropped_by: tuple[int, ...] = ()
    newest: Mapping[str, datetime] = field(default_factory=dict)
    broken: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class RowsQuarantined:
    """A sink could not deliver rows of a batch and has kept them. An attempt that fails later tells of them again."""

    flow: str
    batch_id: int
    aside: SetAside


@dataclass(frozen=True)
class OffsetsLost:
    """A batch goes on without offsets that are gone, as its source accepts. It is recorded, and not yet committed."""

    flow: str
    batch_id: int
    lost: Sequence[Lost]


@dataclass(frozen=True)
class SettingPinned:
    """A flow goes on with a setting of its checkpoint, which is not what is declared or what the machine has."""

    flow: str
    setting: str
    declared: str
    kept: str


@dataclass(frozen=True)
class StateNearBudget:
    """The state of a flow comes near its budget, or will within an hour. Told once, until it has been clearly below.

    `measure` is `rows` or `bytes`. `seconds_left` says when the present growth reaches the limit; None when the state
    does not grow. `operator` is the one that keeps the most.
    """

    flow: str
    batch_id: int
    measure: str
    used: int
    limit: int
    seconds_left: float | None
    operator: str


@dataclass(frozen=True)
class CaptureUnhealthy:
    """A capture that a flow reads is not well, and the flow goes on. Told once, until it is well or something else.

    `capture` is its prefix.
    """

    flow: str
    capture: str
    error: HeadraceError


@dataclass(frozen=True)
class FlowFailed:
    """A query ended with an error. `retry_in` is None when it will not be started again."""

    flow: str
    error: HeadraceError
    retry_in: float | None


@dataclass(frozen=True)
class FlowStopped:
    """A flow came to its end: drained, or all of its available input read."""

    flow: str


@dataclass(frozen=True)
class AuditFailed:
    """Bad and late rows of a flow could not be filed. Its batches are committed; the next audit files them."""

    flow: str
    error: HeadraceError


@dataclass(frozen=True)
class LateUnexplained:
    """Late rows of a batch were dropped that the late ledger does not hold. `dropped` is None where nobody knows."""

    flow: str
    batch_id: int
    dropped: int | None
    why: str


Event = (
    BatchSizeChosen
    | FlowStarted
    | BatchCommitted
    | RowsQuarantined
    | OffsetsLost
    | SettingPinned
    | StateNearBudget
    | CaptureUnhealthy
    | FlowFailed
    | FlowStopped
    | AuditFailed
    | LateUnexplained
)


class EventBus:
    """Hands every event to every subscriber, in order, on the thread that published it."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[Event], None]] = []
        self._lock = threading.Lock()

    def subscribe(self, hear: Callable[[Event], None]) -> None:
        """Hear every event from now on. `hear` must return quickly and must not raise."""
        self._subscribers.append(hear)

    def publish(self, event: Event) -> None:
        """Tell every subscriber. Called by the runtime only."""
        with self._lock:
            for hear in self._subscribers:
                hear(event)
