"""A flow as a running Spark query: the only place that holds a `writeStream`.

The way of a row, each step one line of `start`:

    source.stream -> judged -> counted -> good -> watermark -> transform -> counted -> sink.write, batch by batch
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.storagelevel import StorageLevel

from headrace.flow.flow import Flow
from headrace.flow.levers import AsFastAsPossible, AvailableNow, Every
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.events import BatchCommitted, Event, RowsSetAside
from headrace.runtime.failures import mapped
from headrace.runtime.integrity import require_intact
from headrace.runtime.lease import Holding
from headrace.runtime.lineage import require_lineage
from headrace.runtime.manifest import Manifest
from headrace.runtime.session import flow_session
from headrace.runtime.source_guard import SourceGuard
from headrace.transforms.parse import BAD, good, judged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# Names of the counters that ride in a query.
_IN, _OUT = "headrace_in", "headrace_out"

# How often a drain looks whether the batch under way is done. A batch takes 100 ms at the very least.
_LOOK_SECONDS = 0.05


class RunningQuery:
    """One run of a flow. Made by `start`, used by one supervisor thread; `drain` may be called from another."""

    def __init__(
        self,
        flow: Flow,
        target: Target,
        checkpoint: Checkpoint,
        holding: Holding,
        hear: Callable[[Event], None],
    ) -> None:
        self.flow = flow
        self._target, self._checkpoint, self._holding, self._hear = target, checkpoint, holding, hear
        self._failure: Exception | None = None
        self._last_heard = -1
        self._hearing = threading.Lock()
        self._committed = threading.Event()
        self._unfinished = checkpoint.unfinished()
        self._guard = SourceGuard(flow, target, checkpoint, hear)
        self._manifest = Manifest(checkpoint)
        self._digests: dict[int, str] = {}
        self._query: StreamingQuery

    def start(self, application: SparkSession) -> None:
        """Build the query and start it, unless the checkpoint is damaged. Returns when Spark has taken it over."""
        require_intact(self._checkpoint)
        self._guard.begin()
        session = flow_session(application, self.flow)
        # Queries inherit the pool of the thread that starts them.
        session.sparkContext.setLocalProperty("spark.scheduler.pool", self.flow.name)
        session.streams.addListener(_Listener(self._on_progress))
        try:
            require_lineage(session, self.flow, self._target, self._checkpoint)
            self.flow.sink.prepare(session, self._target)
            frames = {name: self._input(session, name) for name in self.flow.named_inputs}
            result = self.flow.apply(frames).observe(_OUT, F.count(F.lit(1)).alias("rows"))
            writer = (
                result.writeStream.queryName(self.flow.name)
                .outputMode(self.flow.mode.value)
                .option("checkpointLocation", self._checkpoint.location)
                .foreachBatch(self._write)
            )
            self._query = _triggered(writer, self.flow).start()
            self._holding.when_lost(self._query.stop)
        except PySparkException as error:
            raise mapped(self.flow.name, error) from error

    def wait(self) -> None:
        """Return when the query has come to its end; raise what it died of, mapped into the error tree."""
        failure: Exception | None = None
        try:
            self._query.awaitTermination()
        except PySparkException as error:
            failure = error
        # The listener's thread may not have told of the last batches yet; the query itself knows them.
        for progress in self._query.recentProgress:
            self._on_progress(progress)
        if failure is not None:
            raise self._guard.explained(mapped(self.flow.name, self._failure or failure)) from failure
        self._holding.check()

    def drain(self, patience: float) -> None:
        """Let the batch under way commit, for at most `patience` seconds, and stop."""
        self._committed.clear()
        waited = 0.0
        while waited < patience and self._query.isActive and self._query.status["isTriggerActive"]:
            if self._committed.wait(_LOOK_SECONDS):
                break
            waited += _LOOK_SECONDS
        self._query.stop()

    def _input(self, session: SparkSession, name: str) -> DataFrame:
        given = self.flow.named_inputs[name]
        rows = given.source.stream(session, self._target)
        if given.schema is not None:
            counted = judged(rows, given).observe(
                f"{_IN}_{name}", F.count(F.lit(1)).alias("rows"), F.count_if(F.col(BAD)).alias("bad")
            )
            rows = good(counted, given)
        if given.watermark is not None:
            rows = rows.withWatermark(given.watermark.column, given.watermark.duration.spark())
        return rows

    def _write(self, rows: DataFrame, batch_id: int) -> None:
        """Spark calls this once per attempt of a batch, on a thread of its own."""
        query_id = self._checkpoint.query_id()
        assert query_id is not None  # noqa: S101 - Spark writes the metadata before the first batch
        digest = self._digests[batch_id] = self._checkpoint.digest(batch_id)
        batch = Batch(
            self.flow.name,
            query_id,
            batch_id,
            self._target,
            offsets=digest,
            mode=self.flow.mode,
            fence=self._holding.token,
            tell=lambda aside: self._hear(RowsSetAside(self.flow.name, batch_id, aside)),
        )
        try:
            with self._guard.around(batch_id), self._holding.required():
                if batch_id == self._unfinished:
                    self._write_again(rows, batch)
                else:
                    self.flow.sink.write(rows, batch)
        except Exception as error:
            # Spark passes only a text on that does not name the cause; the supervisor wants the error itself.
            self._failure = self._holding.explained(error)
            raise

    def _write_again(self, rows: DataFrame, batch: Batch) -> None:
        """Write a batch that an earlier run may have written already.

        An exactly-once sink that has the batch skips it without reading the rows. Spark would then miss the state that
        the batch has to commit, and fail it; so the rows are computed here, once, before the sink sees them.
        """
        kept = rows.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            kept.write.format("noop").mode("overwrite").save()
            self.flow.sink.write(kept, batch)
        finally:
            kept.unpersist()

    def _on_progress(self, progress: StreamingQueryProgress) -> None:
        # A trigger that finds nothing to do reports progress too, under the number of the batch that is still to come.
        if "addBatch" not in progress.durationMs:
            return
        with self._hearing:
            if progress.batchId <= self._last_heard:
                return
            self._last_heard = progress.batchId
            self._note(progress.batchId)
        self._hear(_as_event(self.flow.name, progress))
        self._committed.set()

    def _note(self, batch_id: int) -> None:
        """Put the files of a committed batch into the manifest. Not on the thread of the batches, which go on."""
        # A disk that is full keeps no batch back: the files are noted with the next one, and `verify` says so.
        with suppress(OSError, Py4JError):
            self._manifest.record(batch_id, self._digests.pop(batch_id, None))


def _triggered(writer: DataStreamWriter, flow: Flow) -> DataStreamWriter:
    match flow.trigger:
        case Every() as every:
            return writer.trigger(processingTime=every.duration.spark())
        case AvailableNow():
            return writer.trigger(availableNow=True)
        case AsFastAsPossible():
            return writer.trigger(processingTime="0 seconds")
        case other:  # `check` refuses the rest for sinks that commit in batches (HRC-108)
            raise AssertionError(other)


def _as_event(flow: str, progress: StreamingQueryProgress) -> BatchCommitted:
    observed = {name: row.asDict() for name, row in progress.observedMetrics.items()}
    bad = {
        name.removeprefix(f"{_IN}_"): int(row["bad"]) for name, row in observed.items() if name.startswith(f"{_IN}_")
    }
    dropped = tuple(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
    return BatchCommitted(
        flow=flow,
        batch_id=progress.batchId,
        rows_in=progress.numInputRows,
        rows_out=int(observed.get(_OUT, {}).get("rows", 0)),
        bad=bad,
        dropped=sum(dropped),
        duration_ms=int(progress.durationMs.get("triggerExecution", 0)),
        watermark=progress.eventTime.get("watermark"),
        progress={"json": progress.json},
        dropped_by=dropped,
    )


class _Listener(StreamingQueryListener):
    """Hands progress on. A session belongs to one flow, so every event here is that flow's."""

    def __init__(self, hear: Callable[[StreamingQueryProgress], None]) -> None:
        self._hear = hear

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._hear(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...
