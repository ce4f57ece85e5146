"""A flow as a running Spark query: the only module with a `writeStream`.

The path of a row: the steps of `inputs`, then the transform of the flow, then its sink. Under a trigger without batches
Spark writes the rows itself, as `sink.native_write` says: see `continuous`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.storagelevel import StorageLevel

from headrace.errors import HeadraceError, Transient
from headrace.flow.flow import Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import AsFastAsPossible, AvailableNow, Continuous, Every, RealTime
from headrace.flow.sink import Batch, SupportsNativeWrite
from headrace.runtime.checkpoint.integrity import require_intact
from headrace.runtime.checkpoint.manifest import Manifest
from headrace.runtime.checkpoint.ownership import require_matching_sinks
from headrace.runtime.checkpoint.pinned_settings import PARTITIONS, require_same_state_store
from headrace.runtime.continuous import (
    EpochWatcher,
    is_continuous,
    latest_offsets,
    record_start_offsets,
    require_batch_checkpoint,
)
from headrace.runtime.counters import batch_committed
from headrace.runtime.error_mapping import map_error
from headrace.runtime.events import BatchCommitted, RowsQuarantined, SettingPinned
from headrace.runtime.guards.captures import CaptureGuard
from headrace.runtime.guards.idle_inputs import IdleInputs
from headrace.runtime.guards.sources import SourceGuard
from headrace.runtime.guards.state_budget import StateBudgetGuard
from headrace.runtime.plan import plan_result
from headrace.runtime.run import Run
from headrace.runtime.session import flow_session
from headrace.runtime.state.size import operator_states
from headrace.spark_plan.source_order import PlannedSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# How long the next batch after one that exceeded the budget may take to commit before it is cancelled.
_DRAIN_SECONDS = 60.0

# How often a drain checks the in-flight batch. A batch takes at least 100 ms.
_POLL_SECONDS = 0.05


class RunningQuery:
    """One run of a flow. Used by one supervisor thread; `drain` may be called from another."""

    def __init__(self, run: Run) -> None:
        flow, target, checkpoint, on_event = run.flow, run.target, run.checkpoint, run.publish
        self.flow, self._run = flow, run
        self._target, self._checkpoint, self._lease, self._publish = target, checkpoint, run.lease, on_event
        self._failure: Exception | None = None
        self._last_batch = -1
        self._progress_lock = threading.Lock()
        self._committed, self._started = threading.Event(), threading.Event()
        self._unfinished = checkpoint.unfinished_batch()
        self._source_guard = SourceGuard(flow, target, checkpoint, on_event)
        self._capture_guard = CaptureGuard(flow, target, on_event)
        self._manifest = Manifest(checkpoint)
        self._digests: dict[int, str] = {}
        self._idle_inputs = IdleInputs(flow, target, checkpoint, run.clock)
        self._budget_guard = StateBudgetGuard(flow, checkpoint, run.clock, on_event)
        self._order: tuple[PlannedSource, ...] = ()
        self._over_budget: HeadraceError | None = None
        self._query: StreamingQuery
        # Only for continuous processing.
        self._epochs: EpochWatcher | None = None
        # An error of its topics or captures, found while the query runs.
        self._guard_error: HeadraceError | None = None

    def start(self, application: SparkSession) -> None:
        """Build the query and start it, unless the checkpoint is damaged or the plan cannot run as declared.

        Returns when Spark has started the query.
        """
        require_intact(self._checkpoint)
        require_batch_checkpoint(self.flow, self._checkpoint)
        pinned = require_same_state_store(self.flow, self._checkpoint)
        self._budget_guard.before_start()
        self._source_guard.before_start()
        self._capture_guard.begin()
        record_start_offsets(self.flow, self._target, self._checkpoint)
        session = flow_session(application, self.flow, self._run.memory_mb)
        declared = session.conf.get(PARTITIONS)
        if pinned is not None and str(pinned.partitions) != declared:
            self._publish(SettingPinned(self.flow.name, "shuffle partitions", str(declared), str(pinned.partitions)))
        # Queries inherit the pool of the thread that starts them.
        session.sparkContext.setLocalProperty("spark.scheduler.pool", self.flow.name)
        self._idle_inputs.begin(session)
        session.streams.addListener(_Listener(self._on_progress, self._idle_inputs.on_empty_trigger))
        try:
            require_matching_sinks(session, self.flow, self._target, self._checkpoint)
            self.flow.sink.prepare(session, self._target)
            result = plan_result(session, self._run)
            self._order = result.order
            if isinstance(self.flow.trigger, Continuous):
                until = latest_offsets(self.flow, self._target) if self.flow.trigger.until_done else ()
                self._epochs = EpochWatcher(self.flow, self._checkpoint, self._on_epoch, until)
            self._query = _set_trigger(self._writer(result.rows), self.flow).start()
            self._started.set()
            self._lease.on_lost(self._query.stop)
            if self._epochs is not None:
                self._epochs.start(self._query.stop)
            self._capture_guard.start(self._end_after_batch)
        except PySparkException as error:
            raise map_error(self.flow.name, error) from error

    def wait(self) -> None:
        """Return when the query has ended; raise its failure, mapped into the error tree."""
        failure: Exception | None = None
        try:
            self._query.awaitTermination()
        except PySparkException as error:
            failure = error
        if self._epochs is not None:
            self._epochs.close()
        self._capture_guard.close()
        # The listener's thread may not have reported the last batches yet; the query has their progress.
        for progress in self._query.recentProgress:
            self._on_progress(progress)
        self._budget_guard.on_end()
        guard_error = self._over_budget or self._guard_error
        if guard_error is not None:
            raise guard_error
        if failure is not None:
            raise self._source_guard.explain(map_error(self.flow.name, self._failure or failure)) from failure
        self._lease.check()

    def drain(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the in-flight batch to commit, then stop."""
        self._committed.clear()
        waited = 0.0
        while waited < timeout and self._query.isActive and self._query.status["isTriggerActive"]:
            if self._committed.wait(_POLL_SECONDS):
                break
            waited += _POLL_SECONDS
        self._query.stop()

    def _stop_after_batch(self) -> None:
        """Stop when no batch is in flight. The first batch may commit before `start` has returned."""
        self._started.wait()
        self.drain(_DRAIN_SECONDS)

    def _end_after_batch(self, error: HeadraceError) -> None:
        """Stop with an error when no batch is in flight."""
        self._guard_error = error
        self._stop_after_batch()

    def _writer(self, rows: DataFrame) -> DataStreamWriter:
        if is_continuous(self.flow):
            assert isinstance(self.flow.sink, SupportsNativeWrite)  # noqa: S101 - `compatibility.trigger` refuses others (HRC-108)
            native_write = self.flow.sink.native_write(rows, self._target)
            writer = native_write.rows.writeStream.format(native_write.format).options(**native_write.options)
        else:
            writer = rows.writeStream.foreachBatch(self._write)
        return (
            writer.queryName(self.flow.name)
            .outputMode(self.flow.mode.value)
            .option("checkpointLocation", self._checkpoint.location)
        )

    def _write(self, rows: DataFrame, batch_id: int) -> None:
        """Write one attempt of a batch. Spark calls this on a separate thread."""
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
            fence=self._lease.token,
            on_dead_letters=lambda letters: self._publish(RowsQuarantined(self.flow.name, batch_id, letters)),
        )
        try:
            self._require_budget()
            with self._source_guard.around_batch(batch_id), self._lease.checked():
                if batch_id == self._unfinished or self._must_compute_first:
                    self._compute_and_write(rows, batch)
                else:
                    self.flow.sink.write(rows, batch)
        except Exception as error:
            # Spark passes on a text without the cause; the supervisor needs the error itself.
            self._failure = self._lease.explain(error)
            raise

    def _require_budget(self) -> None:
        """Raise if the previous batch left too much state. The listener may not have reported it yet.

        The current batch is planned but not written: it runs first after the budget is raised.
        """
        if self._over_budget is None and self.flow.state.budget is not None:
            self._started.wait()
            previous = self._query.lastProgress
            if previous is not None:
                self._over_budget = self._budget_guard.over_budget_error(
                    previous.batchId, operator_states(previous.stateOperators)
                )
        if self._over_budget is not None:
            raise self._over_budget

    @cached_property
    def _must_compute_first(self) -> bool:
        """Whether a row may fail the flow after the sink has written other rows of the batch."""
        rules = [rule for input_ in self.flow.named_inputs.values() for rule in input_.rules]
        is_strict = any(rule.action == "fail" for rule in rules)
        return is_strict and self.flow.sink.guarantee is not Guarantee.EXACTLY_ONCE

    def _compute_and_write(self, rows: DataFrame, batch: Batch) -> None:
        """Compute the rows once, then write them: for a batch that was perhaps written already, or that a row may fail.

        An exactly-once sink that has committed the batch skips it without reading the rows. Its state would not be
        computed, and Spark would fail the batch.
        """
        persisted = rows.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            persisted.write.format("noop").mode("overwrite").save()
            self.flow.sink.write(persisted, batch)
        finally:
            persisted.unpersist()

    def _on_progress(self, progress: StreamingQueryProgress) -> None:
        # A trigger without new data reports progress too, under the id of the next batch.
        if "addBatch" not in progress.durationMs:
            return
        with self._progress_lock:
            if progress.batchId <= self._last_batch:
                return
            self._last_batch = progress.batchId
            self._record_in_manifest(progress.batchId)
            event = batch_committed(self.flow.name, progress, self._order)
            budget_error = self._budget_guard.on_batch(progress.batchId, event.state)
        self._publish(event)
        self._committed.set()
        if budget_error is not None and self._over_budget is None:
            self._over_budget = budget_error
            # Not on this thread: Spark reports the in-flight batch only after it returns.
            threading.Thread(target=self._stop_after_batch, daemon=True).start()
        self._idle_inputs.on_batch(progress, self._order)
        if is_continuous(self.flow):
            self._check_topics()

    def _on_epoch(self, epoch: int, records: int) -> None:
        """Publish an epoch of a continuous query. An empty epoch goes into the manifest only."""
        self._record_in_manifest(epoch)
        self._check_topics()
        if records:
            self._publish(
                BatchCommitted(
                    self.flow.name,
                    epoch,
                    rows_in=records,
                    rows_out=0,
                    invalid={},
                    dropped=0,
                    duration_ms=0,
                    watermark=None,
                    counted=False,
                )
            )

    def _check_topics(self) -> None:
        """Stop a query without batches if a topic was recreated."""
        try:
            self._source_guard.check_topics()
        except Transient:
            return  # the query itself fails if the broker stays away
        except HeadraceError as error:
            if self._query.isActive:
                self._guard_error = error
                self._query.stop()

    def _record_in_manifest(self, batch_id: int) -> None:
        """Record the files of a committed batch in the manifest. Not on the thread of the batches, which continue."""
        # A full disk does not stop the flow: the next batch records the files, and `verify` reports them.
        with suppress(OSError, Py4JError):
            self._manifest.record(batch_id, self._digests.pop(batch_id, None))


def _set_trigger(writer: DataStreamWriter, flow: Flow) -> DataStreamWriter:
    match flow.trigger:
        case Every() as interval:
            return writer.trigger(processingTime=interval.duration.spark())
        case AvailableNow():
            return writer.trigger(availableNow=True)
        case AsFastAsPossible():
            return writer.trigger(processingTime="0 seconds")
        case RealTime() as real_time:
            # The stubs do not know this trigger.
            return writer.trigger(realTime=real_time.duration.spark())  # type: ignore[call-overload,no-any-return]
        case Continuous() as continuous:
            return writer.trigger(continuous=continuous.duration.spark())


class _Listener(StreamingQueryListener):
    """Forwards progress. A session belongs to one flow, so every event here is of that flow."""

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
