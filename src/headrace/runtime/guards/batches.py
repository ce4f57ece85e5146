"""Guards each batch: computes rows before they are written where that matters, and publishes each commit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.storagelevel import StorageLevel

from headrace.flow.flow import Flow
from headrace.flow.guarantee import Guarantee
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.events import BatchCommitted
from headrace.runtime.guards.guard import Attempt, Guard, Progress


class ComputeBeforeWriteGuard(Guard):
    """Computes the rows of a batch before they are written, if it was perhaps written already or a row may fail it.

    An exactly-once sink that has committed the batch skips it without reading the rows. Its state would not be
    computed, and Spark would fail the batch. A sink with a weaker guarantee would have written other rows of the batch
    before one violates a rule with the action `fail`.
    """

    def __init__(self, flow: Flow, checkpoint: Checkpoint) -> None:
        self._unfinished = checkpoint.unfinished_batch()
        rules = [rule for input_ in flow.named_inputs.values() for rule in input_.rules]
        is_strict = any(rule.action == "fail" for rule in rules)
        self._always = is_strict and flow.sink.guarantee is not Guarantee.EXACTLY_ONCE

    @contextmanager
    def around_batch(self, attempt: Attempt) -> Iterator[None]:
        """Compute the rows once, and keep them for the sink."""
        if not self._always and attempt.batch.id != self._unfinished:
            yield
            return
        # The sink gets the same DataFrame, which is persisted from here on.
        persisted = attempt.rows.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            persisted.write.format("noop").mode("overwrite").save()
            yield
        finally:
            persisted.unpersist()


class BatchEventGuard(Guard):
    """Publishes each committed batch. An empty epoch of continuous processing is not published."""

    def __init__(self, on_event: Callable[[BatchCommitted], None]) -> None:
        self._on_event = on_event

    def on_progress(self, progress: Progress) -> None:
        """Publish the batch."""
        if progress.event.counted or progress.event.rows_in:
            self._on_event(progress.event)
