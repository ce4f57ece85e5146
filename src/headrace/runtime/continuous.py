"""What a flow needs that runs without micro-batches, under `Continuous` or `RealTime`.

Spark then writes the rows by itself, so nothing of the house stands between the rows of a batch and the sink. What is
known of such a flow comes from outside of its rows:

|                    | RealTime                          | Continuous                                              |
|--------------------|-----------------------------------|---------------------------------------------------------|
| progress           | Spark reports each batch          | Spark reports nothing: the commit log is looked at      |
| bad rows           | counted in the query, filed after | not counted: every epoch is read again and its bad ones |
|                    | the batch                         | are filed                                               |
| where it began     | Spark notes it                    | noted here before the first start                       |
| a topic made again | ids are compared after each batch | ids are compared after each epoch                       |
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
from headrace.flow.source import Source, Unbatched
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How often the commit log is looked at: twice per epoch, but no oftener than this and no more seldom than that.
_LOOK_SECONDS = (0.25, 5.0)

# A slot that these flows leave to everything else: micro-batch flows, and the audit of bad rows.
_LEFT = 1


def is_unbatched(flow: Flow) -> bool:
    """Whether a flow runs without micro-batches."""
    return isinstance(flow.trigger, Continuous | RealTime)


def tasks(flow: Flow, target: Target) -> int:
    """Return how many task slots a flow holds for as long as it runs; 0 with micro-batches. Asks the broker."""
    if not is_unbatched(flow):
        return 0
    sources = [given.source for given in flow.named_inputs.values()]
    return sum(source.tasks(target) for source in sources if isinstance(source, Unbatched))


def require_slots(application: SparkSession, target: Target, flows: Sequence[Flow]) -> None:
    """Raise HR-222 unless every partition that the flows read without batches gets a slot, and one is left over.

    Spark does not look: it reads as many partitions as it has slots, and the records of the others wait unseen.
    """
    slots = application.sparkContext.defaultParallelism
    held = {flow.name: tasks(flow, target) for flow in flows if is_unbatched(flow)}
    if sum(held.values()) + _LEFT > slots:
        each = ", ".join(f"'{name}' {count}" for name, count in held.items())
        raise FlowError(
            f"{sum(held.values())} partitions are read without batches, and Spark has {slots} task slots.",
            why=f"Each of them holds a slot for as long as the flow runs ({each}), and {_LEFT} has to be left for "
            "everything else. Records of the others would wait unseen.",
            state="Nothing was started and nothing was written.",
            remedy=f"Give the target {sum(held.values()) + _LEFT} cores or more, run the flows in applications of "
            "their own, or use a trigger with batches.",
            code="HR-222",
        )


def require_continuable(flow: Flow, checkpoint: Checkpoint) -> None:
    """Raise HR-223 for a flow with batches on a checkpoint of continuous processing, which Spark cannot go on from."""
    begun = checkpoint.planned()
    if isinstance(flow.trigger, Continuous) or not begun:
        return
    last = checkpoint.entry(begun[-1])
    if last.continuous:
        there = "; ".join(offsets for offsets in last.offsets if offsets)
        raise FlowError(
            f"Flow '{flow.name}' cannot go on in batches: continuous processing wrote its checkpoint.",
            why="It notes no watermark with its offsets, and Spark's batches do not start without one.",
            state=f"Nothing was started. All records before these offsets are sent: {there}.",
            remedy="Set trigger=Continuous() again; or start the flow under a new name, with "
            "starting=StartOffsets(...) at these offsets.",
            code="HR-223",
        )


def source_of(flow: Flow, name: str, checkpoint: Checkpoint) -> Source:
    """Return what an input is read from: without bounds where there are no batches, from where the flow began."""
    source = flow.named_inputs[name].source
    if not is_unbatched(flow) or not isinstance(source, Unbatched):
        return source
    began = checkpoint.began() if isinstance(flow.trigger, Continuous) and not checkpoint.planned() else ()
    return source.unbatched(began[list(flow.named_inputs).index(name)] if began else None)


def note_beginning(flow: Flow, target: Target, checkpoint: Checkpoint) -> None:
    """Before the first start of a continuous flow, note the offsets that it begins at.

    Spark writes them down with the first epoch only. A crash before it would begin anew at another end of the topic,
    and the audit of the first epoch would not know its range.
    """
    if isinstance(flow.trigger, Continuous) and not checkpoint.planned() and not checkpoint.began():
        sources = [given.source for given in flow.named_inputs.values()]
        checkpoint.note_began([source.begins(target) for source in sources if isinstance(source, Unbatched)])


def ends(flow: Flow, target: Target) -> tuple[str, ...]:
    """Return where the topics of each input end now."""
    sources = (given.source for given in flow.named_inputs.values())
    return tuple(source.ends(target) for source in sources if isinstance(source, Unbatched))


class Epochs:
    """Looks at the commit log of a continuous flow, on a thread of its own, until it is closed.

    `hear` is called for every epoch that is committed, in their order, with the number of records that it read.
    """

    def __init__(
        self, flow: Flow, checkpoint: Checkpoint, hear: Callable[[int, int], None], until: Sequence[str] = ()
    ) -> None:
        assert isinstance(flow.trigger, Continuous)  # noqa: S101 - made for such a flow only
        self._checkpoint, self._hear, self._until = checkpoint, hear, until
        shortest, longest = _LOOK_SECONDS
        self._pause = min(max(flow.trigger.duration.seconds / 2, shortest), longest)
        self._last = max(checkpoint.committed(), default=-1)
        self._closed = threading.Event()
        self._name = f"epochs-{flow.name}"
        self._thread: threading.Thread | None = None

    def start(self, done: Callable[[], None]) -> None:
        """Begin to look, when the query has started. What was committed before is not told.

        `done` is called once, when the epochs have come to the offsets in `until`.
        """
        self._thread = threading.Thread(target=self._watch, args=(done,), name=self._name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell of the last epochs and end. Called once, when the query has ended."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._look()

    def _watch(self, done: Callable[[], None]) -> None:
        with suppress(OSError, Py4JError):
            # Spark has given the checkpoint its id by now.
            self._checkpoint.note_began(self._checkpoint.began())
        while not self._closed.wait(self._pause):
            # Storage that does not answer for a moment is asked again with the next look.
            with suppress(OSError, Py4JError, HeadraceError):
                self._look()
                if self._until and self._is_done():
                    self._until = ()
                    done()

    def _look(self) -> None:
        for epoch in self._checkpoint.committed():
            if epoch > self._last:
                self._hear(epoch, self._records(epoch))
                self._last = epoch

    def _records(self, epoch: int) -> int:
        found = self._checkpoint.range(epoch, 0)
        return _distance(*found) if found else 0

    def _is_done(self) -> bool:
        if self._last < 0:
            return False
        reached = self._checkpoint.entry(self._last).offsets
        return all(_distance(here or "{}", end) <= 0 for here, end in zip(reached, self._until, strict=True))


def _distance(start: str, end: str) -> int:
    """Return how many offsets lie between two ends of a topic; partitions that are only in the first do not count."""
    first, last = json.loads(start), json.loads(end)
    return sum(
        max(0, offset - first.get(topic, {}).get(number, 0))
        for topic, numbers in last.items()
        for number, offset in numbers.items()
    )
