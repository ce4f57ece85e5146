"""Support for the triggers without micro-batches, `Continuous` and `RealTime`.

Spark then writes the rows itself, so Headrace sees no batches. Information about such a flow has other sources:

|                    | RealTime                          | Continuous                                              |
|--------------------|-----------------------------------|---------------------------------------------------------|
| progress           | Spark reports each batch          | Spark reports nothing: the commit log is polled         |
| invalid rows       | counted in the query, quarantined | not counted: every epoch is read again and its invalid  |
|                    | after the batch                   | rows are quarantined                                    |
| start offsets      | recorded by Spark                 | recorded here before the first start                    |
| recreated topics   | ids are compared after each batch | ids are compared after each epoch                       |
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from headrace.errors import FlowError, HeadraceError
from headrace.flow.flow import Flow
from headrace.flow.levers import Continuous, RealTime
from headrace.flow.source import Source, SupportsContinuous
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The commit log is polled twice per epoch, within these bounds.
_POLL_SECONDS = (0.25, 5.0)

# A slot that these flows leave free: for micro-batch flows, and the audit of invalid rows.
_RESERVED_SLOTS = 1


def is_continuous(flow: Flow) -> bool:
    """Whether a flow runs without micro-batches."""
    return isinstance(flow.trigger, Continuous | RealTime)


def count_tasks(flow: Flow, target: Target) -> int:
    """Return how many task slots a flow occupies while it runs; 0 with micro-batches. Asks the broker."""
    if not is_continuous(flow):
        return 0
    sources = [input_.source for input_ in flow.named_inputs.values()]
    return sum(source.partition_count(target) for source in sources if isinstance(source, SupportsContinuous))


def require_task_slots(application: SparkSession, target: Target, flows: Sequence[Flow]) -> None:
    """Raise HR-222 unless every partition that the flows read without batches has a slot, and one slot is free.

    Spark does not check: it reads as many partitions as it has slots, and the other partitions wait.
    """
    slots = application.sparkContext.defaultParallelism
    occupied = {flow.name: count_tasks(flow, target) for flow in flows if is_continuous(flow)}
    if sum(occupied.values()) + _RESERVED_SLOTS > slots:
        flow_slots = ", ".join(f"'{name}' {count}" for name, count in occupied.items())
        raise FlowError(
            f"{sum(occupied.values())} partitions are read without batches, and Spark has {slots} task slots.",
            why=f"Each of them holds a slot for as long as the flow runs ({flow_slots}), and {_RESERVED_SLOTS} has to "
            "be left for everything else. Records of the others would wait unseen.",
            state="Nothing was started and nothing was written.",
            remedy=f"Give the target {sum(occupied.values()) + _RESERVED_SLOTS} cores or more, run the flows in "
            "separate applications, or use a trigger with batches.",
            code="HR-222",
        )


def require_batch_checkpoint(flow: Flow, checkpoint: Checkpoint) -> None:
    """Raise HR-223 for a flow with batches on a checkpoint of continuous processing, which Spark cannot resume."""
    planned = checkpoint.planned_batches()
    if isinstance(flow.trigger, Continuous) or not planned:
        return
    last = checkpoint.offset_entry(planned[-1])
    if last.continuous:
        offsets = "; ".join(source for source in last.offsets if source)
        raise FlowError(
            f"Flow '{flow.name}' cannot continue in batches: continuous processing wrote its checkpoint.",
            why="It records no watermark with its offsets, and Spark's batches need one.",
            state=f"Nothing was started. All records before these offsets are sent: {offsets}.",
            remedy="Set trigger=Continuous() again; or start the flow under a new name, with "
            "starting=StartOffsets(...) at these offsets.",
            code="HR-223",
        )


def input_source(flow: Flow, name: str, checkpoint: Checkpoint) -> Source:
    """Return the source of an input; for triggers without batches, without bounds and at the start offsets."""
    source = flow.named_inputs[name].source
    if not is_continuous(flow) or not isinstance(source, SupportsContinuous):
        return source
    start = (
        checkpoint.continuous_start()
        if isinstance(flow.trigger, Continuous) and not checkpoint.planned_batches()
        else ()
    )
    return source.for_continuous(start[list(flow.named_inputs).index(name)] if start else None)


def record_start_offsets(flow: Flow, target: Target, checkpoint: Checkpoint) -> None:
    """Record the start offsets of a continuous flow before its first start.

    Spark records them with the first epoch only. After a crash before it the flow would start at later offsets, and the
    audit of the first epoch would not know its range.
    """
    if isinstance(flow.trigger, Continuous) and not checkpoint.planned_batches() and not checkpoint.continuous_start():
        sources = [input_.source for input_ in flow.named_inputs.values()]
        checkpoint.record_continuous_start(
            [source.initial_offsets(target) for source in sources if isinstance(source, SupportsContinuous)]
        )


def latest_offsets(flow: Flow, target: Target) -> tuple[str, ...]:
    """Return the current end offsets of each input."""
    sources = (input_.source for input_ in flow.named_inputs.values())
    return tuple(source.latest_offsets(target) for source in sources if isinstance(source, SupportsContinuous))


class EpochWatcher:
    """Polls the commit log of a continuous flow on a separate thread until it is closed.

    Calls `on_epoch` for every committed epoch, in order, with the number of records that it read.
    """

    def __init__(
        self, flow: Flow, checkpoint: Checkpoint, on_epoch: Callable[[int, int], None], until: Sequence[str] = ()
    ) -> None:
        assert isinstance(flow.trigger, Continuous)  # noqa: S101 - created for such a flow only
        self._checkpoint, self._on_epoch, self._until = checkpoint, on_epoch, until
        shortest, longest = _POLL_SECONDS
        self._pause = min(max(flow.trigger.duration.seconds / 2, shortest), longest)
        self._last = max(checkpoint.committed_batches(), default=-1)
        self._closed = threading.Event()
        self._name = f"epochs-{flow.name}"
        self._thread: threading.Thread | None = None

    def start(self, on_done: Callable[[], None]) -> None:
        """Start polling, when the query has started. Earlier epochs are not reported.

        Calls `on_done` once, when the epochs have reached the offsets in `until`.
        """
        self._thread = threading.Thread(target=self._watch, args=(on_done,), name=self._name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Report the last epochs and stop. Called once, when the query has ended."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._poll()

    def _watch(self, on_done: Callable[[], None]) -> None:
        with suppress(OSError, Py4JError):
            # By now the checkpoint has its query id.
            self._checkpoint.record_continuous_start(self._checkpoint.continuous_start())
        while not self._closed.wait(self._pause):
            # If the storage does not answer, the next poll asks again.
            with suppress(OSError, Py4JError, HeadraceError):
                self._poll()
                if self._until and self._is_done():
                    self._until = ()
                    on_done()

    def _poll(self) -> None:
        for epoch in self._checkpoint.committed_batches():
            if epoch > self._last:
                self._on_epoch(epoch, self._records(epoch))
                self._last = epoch

    def _records(self, epoch: int) -> int:
        offsets = self._checkpoint.offset_range(epoch, 0)
        return _distance(*offsets) if offsets else 0

    def _is_done(self) -> bool:
        if self._last < 0:
            return False
        reached = self._checkpoint.offset_entry(self._last).offsets
        return all(_distance(offset or "{}", end) <= 0 for offset, end in zip(reached, self._until, strict=True))


def _distance(start: str, end: str) -> int:
    """Return the number of offsets between two positions; partitions that are only in the first do not count."""
    first, last = json.loads(start), json.loads(end)
    return sum(
        max(0, offset - first.get(topic, {}).get(number, 0))
        for topic, numbers in last.items()
        for number, offset in numbers.items()
    )
