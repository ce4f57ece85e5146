"""The events of running flows. Other packages learn about the runtime only through them."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from headrace.errors import HeadraceError
from headrace.flow.checks.backpressure import BatchSize
from headrace.flow.sink import DeadLetters
from headrace.runtime.checkpoint.lost_offsets import LostRange
from headrace.runtime.state.size import OperatorState


@dataclass(frozen=True)
class FlowEvent:
    """Something that happened to a flow."""

    flow: str


@dataclass(frozen=True)
class BatchSizeChosen(FlowEvent):
    """Headrace chose the batch size of an input (`AutoBatchSize`). Published before the flow first starts."""

    input: str
    batch_size: BatchSize


@dataclass(frozen=True)
class FlowStarted(FlowEvent):
    """A query has started. `query_id` is the identity of its checkpoint.

    `last_batch` is the last batch committed before this start, or None.
    """

    query_id: str
    last_batch: int | None = None


@dataclass(frozen=True)
class BatchCommitted(FlowEvent):
    """A batch is committed: in its sinks and in the commit log.

    | field                | meaning                                                                               |
    |----------------------|---------------------------------------------------------------------------------------|
    | rows_in              | input rows, without idle ticks                                                        |
    | invalid              | invalid rows per input                                                                |
    | dropped              | Spark's count of late rows, after partial aggregation: zero means none, any other     |
    |                      | number only means that there were some                                                |
    | dropped_by_operator  | the same per stateful operator, from the result to the sources                        |
    | state                | the state of each stateful operator after the batch                                   |
    | newest_event_times   | the newest event time per input with a watermark, if the batch had rows of it         |
    | violations           | rows that violate each rule, per input, whatever the action of the rule               |

    A non-empty epoch of continuous processing is published as a batch with `counted=False`: `rows_in` is the number of
    offsets, `rows_out` is 0, and only reading the epoch again shows whether it had invalid rows.
    """

    batch_id: int
    rows_in: int
    rows_out: int
    invalid: Mapping[str, int]
    dropped: int
    duration_ms: int
    watermark: str | None
    state: Sequence[OperatorState] = ()
    progress: Mapping[str, object] = field(repr=False, default_factory=dict)
    counted: bool = True
    dropped_by_operator: tuple[int, ...] = ()
    newest_event_times: Mapping[str, datetime] = field(default_factory=dict)
    violations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class RowsQuarantined(FlowEvent):
    """A sink could not deliver rows of a batch and stored them elsewhere. A retried batch reports them again."""

    batch_id: int
    dead_letters: DeadLetters


@dataclass(frozen=True)
class OffsetsLost(FlowEvent):
    """A batch continues without lost offsets, as its source allows. The batch is not committed yet."""

    batch_id: int
    lost: Sequence[LostRange]


@dataclass(frozen=True)
class SettingPinned(FlowEvent):
    """A flow keeps a setting from its checkpoint that differs from the declared value."""

    setting: str
    declared: str
    checkpoint_value: str


@dataclass(frozen=True)
class StateNearBudget(FlowEvent):
    """The state of a flow is near its budget, or will be within an hour. Published once until it is clearly below.

    `measure` is `rows` or `bytes`. `seconds_left` is the time until the current growth reaches the limit, None without
    growth. `operator` is the operator with the largest state.
    """

    batch_id: int
    measure: str
    used: int
    limit: int
    seconds_left: float | None
    operator: str


@dataclass(frozen=True)
class CaptureUnhealthy(FlowEvent):
    """A capture that a flow reads is unhealthy; the flow continues. Published once per problem.

    `capture` is the topic prefix of the capture.
    """

    capture: str
    error: HeadraceError


@dataclass(frozen=True)
class FlowFailed(FlowEvent):
    """A query ended with an error. `retry_in` is None if it will not restart."""

    error: HeadraceError
    retry_in: float | None


@dataclass(frozen=True)
class FlowStopped(FlowEvent):
    """A flow has ended: drained, or all available input read."""


@dataclass(frozen=True)
class AuditFailed(FlowEvent):
    """Invalid and late rows of a flow could not be recorded. Its batches are committed; the next audit records them."""

    error: HeadraceError


@dataclass(frozen=True)
class LateRowsNotRecorded(FlowEvent):
    """Late rows of a batch were dropped that are not in the late ledger. `dropped` is None if the number is unknown."""

    batch_id: int
    dropped: int | None
    why: str


class EventBus:
    """Delivers every event to every subscriber, in order, on the thread that published it."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[FlowEvent], None]] = []
        self._lock = threading.Lock()

    def subscribe(self, on_event: Callable[[FlowEvent], None]) -> None:
        """Call `on_event` for every event from now on. It must return quickly and must not raise."""
        self._subscribers.append(on_event)

    def publish(self, event: FlowEvent) -> None:
        """Deliver an event to every subscriber. Called by the runtime only."""
        with self._lock:
            for on_event in self._subscribers:
                on_event(event)
