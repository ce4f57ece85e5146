"""Batch sizes: the bound that measured rates suggest, and the size that fits memory and freshness. Pure arithmetic.

    bound = rate x interval of the trigger x head room, rounded up to two digits

| the rate is          | head room | reason                                                                       |
|----------------------|-----------|------------------------------------------------------------------------------|
| of the flow          | 0.8       | a full batch ends before the next one is due, with a fifth of the time left  |
| of arrivals          | 2         | a batch reads the rows of one interval, and as many rows of the backlog      |

At a low arrival rate the suggestion is a tenth of the usual bound. Such a batch fits into the memory of any machine. A
smaller bound would only slow down catching up after the flow was down.

A trigger without an interval starts a batch when the previous one ends. The formula then uses ten seconds. A batch of
ten seconds fits into memory, and its fixed cost of a few hundred milliseconds does not matter.

An automatic bound (`AutoBatchSize`) is computed when the flow starts, as the smaller of two:

    by memory      half of what the executors have for data, shared by the flows, / (bytes of a record x 2)
    by freshness   the flow's own rate x freshness x 0.8

It is a maximum. A flow without a backlog reads the rows that have arrived. A flow with a backlog reads batches of this
size, because large batches are the fastest way to read a backlog.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.flow.levers import Every, Trigger
from headrace.flow.source import AutoBatchSize, Bound

PROCESSED_HEAD_ROOM = 0.8
ARRIVAL_HEAD_ROOM = 2.0
SECONDS_WITHOUT_INTERVAL = 10.0

# The other half is for state, shuffles and what the sinks cache.
DATA_SHARE = 0.5
# A record is in memory as its bytes and as its parsed fields, together about twice its size.
COPIES = 2.0
# For an empty topic the record size is unknown; most events are smaller.
UNKNOWN_RECORD_BYTES = 1024.0
# Below the minimum, the fixed cost of a batch dominates. Above the maximum nothing is gained, and a retried batch costs
# more.
MIN_RECORDS, MAX_RECORDS = 50_000, 5_000_000


@dataclass(frozen=True)
class MeasuredRates:
    """The measured rates of one input, per second.

    | field     | meaning                                                                             |
    |-----------|-------------------------------------------------------------------------------------|
    | arrivals  | recent arrivals, by unit: records, files, bytes                                     |
    | processed | the records that the flow itself processed, while its batches were large; or None   |
    """

    arrivals: Mapping[str, float] = field(default_factory=dict)
    processed: float | None = None


@dataclass(frozen=True)
class Suggestion:
    """A bound to set, and the reason for its value."""

    bound: Bound
    value: int
    reason: str


def read_limit_for_rate(rate: float, interval_seconds: float, head_room: float) -> int:
    """Return the bound for a rate per second, rounded up to two digits, at least 1."""
    exact = math.ceil(rate * interval_seconds * head_room)
    if exact < 100:
        return max(1, exact)
    step: int = 10 ** (len(str(exact)) - 2)
    return math.ceil(exact / step) * step


def suggest_bound(bounds: Sequence[Bound], measured: MeasuredRates, trigger: Trigger) -> Suggestion:
    """Return the bound to set: from the rate of the flow, else from the arrival rate, else the usual one."""
    interval = trigger.duration.seconds if isinstance(trigger, Every) else SECONDS_WITHOUT_INTERVAL
    for bound in bounds:
        if bound.unit == "records" and measured.processed:
            value = read_limit_for_rate(measured.processed, interval, PROCESSED_HEAD_ROOM)
            return Suggestion(
                bound, value, f"The flow itself has processed {measured.processed:,.0f} records a second."
            )
    for bound in bounds:
        rate = measured.arrivals.get(bound.unit)
        if rate:
            return _suggest_by_arrivals(bound, rate, interval)
    return Suggestion(bounds[0], bounds[0].usual, "Nothing was measured; this is the usual bound.")


def suggest_larger_bound(bounds: Sequence[Bound], measured: MeasuredRates, trigger: Trigger) -> Suggestion | None:
    """Return a larger bound if the current one is below the arrival rate, else None.

    Only for a trigger with an interval: without one the next batch follows a full one immediately.
    """
    if not isinstance(trigger, Every):
        return None
    for bound in bounds:
        rate, interval = measured.arrivals.get(bound.unit, 0.0), trigger.duration.seconds
        if isinstance(bound.value, int) and bound.value < rate * interval:
            return _suggest_by_arrivals(bound, rate, interval)
    return None


@dataclass(frozen=True)
class AvailableResources:
    """The resources for one input of a flow, as measured when the flow starts.

    | field        | meaning                                                                       |
    |--------------|-------------------------------------------------------------------------------|
    | memory       | bytes that the executors have for data, this flow's share                     |
    | record_bytes | the mean size of a record, or None without records                            |
    | processed    | records a second that the flow itself processed, while its batches were large |
    """

    memory: float
    record_bytes: float | None = None
    processed: float | None = None


@dataclass(frozen=True)
class BatchSize:
    """A chosen batch size in records, and the reason for it."""

    records: int
    reason: str


def choose_batch_size(target: AutoBatchSize, resources: AvailableResources) -> BatchSize:
    """Return the largest batch that fits into memory and finishes within the freshness target."""
    size = resources.record_bytes or UNKNOWN_RECORD_BYTES
    by_memory = resources.memory * DATA_SHARE / (size * COPIES)
    by_freshness = (
        resources.processed * target.duration.seconds * PROCESSED_HEAD_ROOM if resources.processed else math.inf
    )
    records = round(min(max(min(by_memory, by_freshness), MIN_RECORDS), MAX_RECORDS) / 1000) * 1000
    if by_freshness < by_memory:
        return BatchSize(records, f"At {resources.processed:,.0f} a second a batch is done within {target.freshness}.")
    basis = f"{size:,.0f} bytes each" if resources.record_bytes else f"assumed to have {size:,.0f} bytes"
    return BatchSize(records, f"This many records, {basis}, fit into {resources.memory * DATA_SHARE / 1e6:,.0f} MB.")


def _suggest_by_arrivals(bound: Bound, rate: float, interval: float) -> Suggestion:
    value = max(read_limit_for_rate(rate, interval, ARRIVAL_HEAD_ROOM), bound.usual // 10)
    return Suggestion(bound, value, f"Lately {rate:,.3g} {bound.unit} a second arrived.")
