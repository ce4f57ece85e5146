"""Reports what Spark says about a running query: the progress of committed batches, and triggers without new data."""

import threading
from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from headrace.runtime.counters import batch_committed
from headrace.runtime.guards.guard import InputProgress, Progress
from headrace.spark_plan.source_order import PlannedSource

# How PySpark represents a missing offset.
_NONE = "None"


def listen(
    session: SparkSession,
    *,
    on_progress: Callable[[StreamingQueryProgress], None] = lambda _progress: None,
    on_empty_trigger: Callable[[], None] = lambda: None,
) -> None:
    """Listen to the query of a session, on Spark's listener thread. A session belongs to one flow."""
    session.streams.addListener(_Listener(on_progress, on_empty_trigger))


class CommittedBatchReporter:
    """Reports each committed batch of one query once, in order, with `on_progress`.

    Spark's listener thread may be late. When the query has ended, its recent progress is reported again, so that no
    batch is missing.
    """

    def __init__(self, flow: str, order: Sequence[PlannedSource], on_progress: Callable[[Progress], None]) -> None:
        self._flow, self._order, self._on_progress = flow, order, on_progress
        self._last_batch = -1
        self._lock = threading.Lock()

    def report(self, progress: StreamingQueryProgress) -> None:
        """Report a batch, unless it is reported already. Returns when every guard has processed it."""
        # A trigger without new data reports progress too, under the id of the next batch.
        if "addBatch" not in progress.durationMs:
            return
        with self._lock:
            if progress.batchId > self._last_batch:
                self._last_batch = progress.batchId
                self._on_progress(self._convert(progress))

    def _convert(self, progress: StreamingQueryProgress) -> Progress:
        inputs = {
            planned.input: InputProgress(
                source.numInputRows,
                rest=source.startOffset != source.endOffset or source.latestOffset not in (_NONE, source.endOffset),
            )
            for planned, source in zip(self._order, progress.sources, strict=False)
            if planned.role == "rows"
        }
        return Progress(batch_committed(self._flow, progress, self._order), inputs)


class _Listener(StreamingQueryListener):
    def __init__(
        self, on_progress: Callable[[StreamingQueryProgress], None], on_empty_trigger: Callable[[], None]
    ) -> None:
        self._on_progress, self._on_empty_trigger = on_progress, on_empty_trigger

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._on_progress(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self._on_empty_trigger()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...
