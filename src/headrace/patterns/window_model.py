"""The expected output of a flow that groups events by windows and a key, in plain Python, batch by batch.

A model gets the records of Kafka and the offsets of the batches, and nothing else from the system under test. A replay
takes these steps for batch N:

1. Take the records between the batch's offsets, and parse each: an event, or an `InvalidRecord` with the first reason.
2. W[N] is the watermark in force: W[0] is 0, later ones are step 7 of the batch before.
3. Keep the events that the flow counts, and put each into its windows, aligned to the epoch.
4. An event is late for a window that ends at or before W[N-1]: counted, and dropped there. (Spark filters with the
   watermark of the batch before, and evicts with the one of this batch. W[-1] is 0.)
5. Add it to the groups of its other windows and its key.
6. Update mode emits every group that step 5 changed. Append mode emits every group whose window ends at or before
   W[N]. Both then evict the groups whose window ends at or before W[N].
7. W[N+1] is the highest event time of the batch's events, including those that step 3 removed, less the delay, or W[N]
   if that is higher. Invalid records never count.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.patterns.records import ConsumedRecord, Event, InvalidRecord

BatchOffsets = Mapping[int, tuple[int, int]]
"""Partition -> (first offset, offset after the last). Empty is Spark's batch without data."""

E = TypeVar("E", bound=Event)
Row = TypeVar("Row")


@dataclass(frozen=True)
class WindowFlow(Generic[E, Row]):
    """One flow of a pattern. `dataclasses.replace` gives it another window or delay.

    | field     | meaning                                                                                          |
    |-----------|--------------------------------------------------------------------------------------------------|
    | window_ms | the length of a window                                                                           |
    | delay_ms  | the delay of the watermark                                                                       |
    | parse     | returns the event of a record, or the first reason why it is invalid                             |
    | key       | the key of an event's group                                                                      |
    | row       | makes the row of a group, of the window's start and end, the key and the events                  |
    | append    | whether a window is emitted once, when it closes; otherwise whenever it changes                  |
    | counts    | whether an event is counted; by default every one                                                |
    | slide_ms  | the distance of two windows; None is their length                                                |
    """

    window_ms: int
    delay_ms: int
    parse: Callable[[ConsumedRecord], E | InvalidRecord]
    key: Callable[[E], str]
    row: Callable[[int, int, str, Sequence[E]], Row]
    append: bool = False
    counts: Callable[[E], bool] = lambda _event: True
    slide_ms: int | None = None

    def starts(self, event: E) -> Iterable[int]:
        """Return when the windows of an event begin."""
        slide = self.slide_ms or self.window_ms
        last = event.event_time_ms // slide * slide
        return range(last, event.event_time_ms - self.window_ms, -slide)


@dataclass(frozen=True)
class WindowOutcome(Generic[Row]):
    """The expected result of a flow; every list but `invalid` and `open` has one entry per batch."""

    batches: list[list[Row]]
    """The emitted rows, by window and key."""
    late_at: list[list[tuple[int, int]]]
    """The (partition, offset) of the late rows, once for each window that they missed."""
    watermarks: list[int]
    """W[N], the `batchWatermarkMs` of Spark's offset log."""
    invalid: list[InvalidRecord]
    """Every invalid record, in the order of the batches."""
    open: list[Row]
    """The groups that are still in the state after the last batch."""

    @property
    def late(self) -> list[int]:
        """How many late rows each batch dropped."""
        return [len(rows) for rows in self.late_at]


def replay(
    records: Iterable[ConsumedRecord], batches: Iterable[BatchOffsets], flow: WindowFlow[E, Row]
) -> WindowOutcome[Row]:
    """Run a flow over its batches, in the steps that the module's docstring numbers."""
    log = {(record.partition, record.offset): record for record in records}
    groups: dict[tuple[int, str], list[E]] = {}
    outcome: WindowOutcome[Row] = WindowOutcome([], [], [], [], [])
    watermark_before, watermark = 0, 0

    def rows(keys: Iterable[tuple[int, str]]) -> list[Row]:
        return [flow.row(start, start + flow.window_ms, key, groups[start, key]) for start, key in sorted(keys)]

    for batch in batches:
        # 1. the records, parsed
        parsed = [flow.parse(record) for record in batch_records(log, batch)]
        events = [event for event in parsed if not isinstance(event, InvalidRecord)]
        outcome.invalid.extend(event for event in parsed if isinstance(event, InvalidRecord))

        # 2. the watermark in force
        outcome.watermarks.append(watermark)

        # 3.-5. windows and late rows
        late: list[tuple[int, int]] = []
        touched: set[tuple[int, str]] = set()
        for event in filter(flow.counts, events):
            for start in flow.starts(event):
                if start + flow.window_ms <= watermark_before:
                    late.append((event.partition, event.offset))
                    continue
                group = (start, flow.key(event))
                groups.setdefault(group, []).append(event)
                touched.add(group)
        outcome.late_at.append(late)

        # 6. emit, then evict
        closed = {group for group in groups if group[0] + flow.window_ms <= watermark}
        outcome.batches.append(rows(closed if flow.append else touched))
        for group in closed:
            del groups[group]

        # 7. the next watermark
        highest = max((event.event_time_ms for event in events), default=0)
        watermark_before, watermark = watermark, max(watermark, highest - flow.delay_ms)

    outcome.open.extend(rows(groups))
    return outcome


def batch_records(log: Mapping[tuple[int, int], ConsumedRecord], batch: BatchOffsets) -> list[ConsumedRecord]:
    """Return the records of a batch, by partition and offset. Offsets without a record are skipped."""
    offsets = ((partition, n) for partition, span in sorted(batch.items()) for n in range(*span))
    return [log[at] for at in offsets if at in log]
