"""A flow as a running Spark query: the only place that holds a `writeStream`.

The way of a row, each step one line of `start`:

    source.stream -> judged -> counted -> good -> beats -> watermark -> timed -> transform -> counted -> sink.write

Under a trigger without batches Spark writes by itself what `sink.native` tells it to: see `continuous`.
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
from headrace.flow.checks import compatibility
from headrace.flow.checks.check import require_none
from headrace.flow.checks.operators import Plan
from headrace.flow.flow import Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import AsFastAsPossible, AvailableNow, Continuous, Every, RealTime
from headrace.flow.sink import Batch, Native
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.integrity import require_intact
from headrace.runtime.checkpoint.lease import Holding
from headrace.runtime.checkpoint.manifest import Manifest
from headrace.runtime.checkpoint.ownership import require_lineage
from headrace.runtime.checkpoint.pinned_settings import PARTITIONS, require_same_store
from headrace.runtime.checkpoint.source_order import require_order
from headrace.runtime.clock import Clock, now_ms
from headrace.runtime.continuous import Epochs, ends, is_unbatched, note_beginning, require_continuable
from headrace.runtime.counters import as_event, count_results
from headrace.runtime.error_mapping import mapped
from headrace.runtime.events import BatchCommitted, Event, RowsQuarantined, SettingPinned
from headrace.runtime.guards.captures import CaptureGuard
from headrace.runtime.guards.idle_inputs import Heartbeats
from headrace.runtime.guards.sources import SourceGuard
from headrace.runtime.guards.state_budget import StateWatch
from headrace.runtime.inputs import Frames
from headrace.runtime.session import flow_session
from headrace.runtime.state.size import operator_states
from headrace.spark_plan.custom_state import prepare_custom_state
from headrace.spark_plan.operators import operators
from headrace.spark_plan.source_order import Place, planned_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# How long the batch after one that exceeded the budget may take to commit before it is broken off and left for later.
_PATIENCE_SECONDS = 60.0

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
        *,
        clock: Clock = now_ms,
        memory_mb: int | None = None,
    ) -> None:
        self.flow = flow
        self._target, self._checkpoint, self._holding, self._hear = target, checkpoint, holding, hear
        self._failure: Exception | None = None
        self._last_heard = -1
        self._hearing = threading.Lock()
        self._committed, self._started = threading.Event(), threading.Event()
        self._unfinished = checkpoint.unfinished()
        self._guard = SourceGuard(flow, target, checkpoint, hear)
        self._captures = CaptureGuard(flow, target, hear)
        self._manifest = Manifest(checkpoint)
        self._digests: dict[int, str] = {}
        self._memory_mb = memory_mb
        self._beats = Heartbeats(flow, target, checkpoint, clock)
        self._watch = StateWatch(flow, checkpoint, clock, hear)
        self._frames = Frames(flow, target, checkpoint, self._beats)
        self._order: tuple[Place, ...] = ()
        self._over_budget: HeadraceError | None = None
        self._query: StreamingQuery
        # Of a flow without batches: who looks at its commits.
        self._epochs: Epochs | None = None
        # What was found wrong with its topics or its captures meanwhile.
        self._found_wrong: HeadraceError | None = None

    def start(self, application: SparkSession) -> None:
        """Build the query and start it, unless the checkpoint is damaged or the plan cannot run as declared.

        Returns when Spark has taken it over.
        """
        require_intact(self._checkpoint)
        require_continuable(self.flow, self._checkpoint)
        kept = require_same_store(self.flow, self._checkpoint)
        self._watch.begin()
        self._guard.begin()
        self._captures.begin()
        note_beginning(self.flow, self._target, self._checkpoint)
        session = flow_session(application, self.flow, self._memory_mb)
        declared = session.conf.get(PARTITIONS)
        if kept is not None and str(kept.partitions) != declared:
            self._hear(SettingPinned(self.flow.name, "shuffle partitions", str(declared), str(kept.partitions)))
        # Queries inherit the pool of the thread that starts them.
        session.sparkContext.setLocalProperty("spark.scheduler.pool", self.flow.name)
        session.streams.addListener(_Listener(self._on_progress, self._beats.on_nothing))
        try:
            require_lineage(session, self.flow, self._target, self._checkpoint)
            self.flow.sink.prepare(session, self._target)
            result = self.flow.apply(self._frames.made(session))
            plan = Plan(operators(result, len(self._frames.streams)))
            require_none([*compatibility.trigger(self.flow), *compatibility.operators(self.flow, plan)])
            prepare_custom_state(session, result, self.flow.trigger)
            self._order = planned_order(result, self._frames.streams)
            require_order(self._checkpoint, self._order)
            if isinstance(self.flow.trigger, Continuous):
                until = ends(self.flow, self._target) if self.flow.trigger.until_done else ()
                self._epochs = Epochs(self.flow, self._checkpoint, self._on_epoch, until)
            counted = result if self._epochs is not None else count_results(result)
            self._query = _triggered(self._writer(counted), self.flow).start()
            self._started.set()
            self._holding.when_lost(self._query.stop)
            if self._epochs is not None:
                self._epochs.start(self._query.stop)
            self._captures.start(self._end_behind_it)
        except PySparkException as error:
            raise mapped(self.flow.name, error) from error

    def wait(self) -> None:
        """Return when the query has come to its end; raise what it died of, mapped into the error tree."""
        failure: Exception | None = None
        try:
            self._query.awaitTermination()
        except PySparkException as error:
            failure = error
        if self._epochs is not None:
            self._epochs.close()
        self._captures.close()
        # The listener's thread may not have told of the last batches yet; the query itself knows them.
        for progress in self._query.recentProgress:
            self._on_progress(progress)
        self._watch.close()
        wrong = self._over_budget or self._found_wrong
        if wrong is not None:
            raise wrong
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

    def _stop_behind_it(self) -> None:
        """Stop as soon as no batch is under way. The first batch may be committed before the start has returned."""
        self._started.wait()
        self.drain(_PATIENCE_SECONDS)

    def _end_behind_it(self, error: HeadraceError) -> None:
        """End with an error as soon as no batch is under way."""
        self._found_wrong = error
        self._stop_behind_it()

    def _writer(self, rows: DataFrame) -> DataStreamWriter:
        if is_unbatched(self.flow):
            assert isinstance(self.flow.sink, Native)  # noqa: S101 - `compatibility.trigger` refuses others (HRC-108)
            native = self.flow.sink.native(rows, self._target)
            writer = native.rows.writeStream.format(native.format).options(**native.options)
        else:
            writer = rows.writeStream.foreachBatch(self._write)
        return (
            writer.queryName(self.flow.name)
            .outputMode(self.flow.mode.value)
            .option("checkpointLocation", self._checkpoint.location)
        )

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
            tell=lambda aside: self._hear(RowsQuarantined(self.flow.name, batch_id, aside)),
        )
        try:
            self._require_within_budget()
            with self._guard.around(batch_id), self._holding.required():
                if batch_id == self._unfinished or self._computed_first:
                    self._write_again(rows, batch)
                else:
                    self.flow.sink.write(rows, batch)
        except Exception as error:
            # Spark passes only a text on that does not name the cause; the supervisor wants the error itself.
            self._failure = self._holding.explained(error)
            raise

    def _require_within_budget(self) -> None:
        """Raise when the batch before left too much state. The listener may not have told of it yet.

        The batch is planned then, and nothing of it is written: it is the first one when the budget is raised.
        """
        if self._over_budget is None and self.flow.state.budget is not None:
            self._started.wait()
            before = self._query.lastProgress
            if before is not None:
                self._over_budget = self._watch.exceeded(before.batchId, operator_states(before.stateOperators))
        if self._over_budget is not None:
            raise self._over_budget

    @cached_property
    def _computed_first(self) -> bool:
        """Whether a row may stop the flow, and the sink would have written others of its batch by then."""
        rules = [rule for given in self.flow.named_inputs.values() for rule in given.rules]
        is_strict = any(rule.action == "fail" for rule in rules)
        return is_strict and self.flow.sink.guarantee is not Guarantee.EXACTLY_ONCE

    def _write_again(self, rows: DataFrame, batch: Batch) -> None:
        """Write a batch that an earlier run may have written already, or that may yet turn out not to be written.

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
            event = as_event(self.flow.name, progress, self._order)
            over = self._watch.take(progress.batchId, event.state)
        self._hear(event)
        self._committed.set()
        if over is not None and self._over_budget is None:
            self._over_budget = over
            # Not on this thread: Spark tells of the batch under way only after it returns.
            threading.Thread(target=self._stop_behind_it, daemon=True).start()
        self._beats.on_batch(progress, self._order)
        if is_unbatched(self.flow):
            self._compare_ids()

    def _on_epoch(self, epoch: int, records: int) -> None:
        """Tell of an epoch of a continuous query. One that read nothing is noted, and not told."""
        self._note(epoch)
        self._compare_ids()
        if records:
            self._hear(
                BatchCommitted(
                    self.flow.name,
                    epoch,
                    rows_in=records,
                    rows_out=0,
                    bad={},
                    dropped=0,
                    duration_ms=0,
                    watermark=None,
                    counted=False,
                )
            )

    def _compare_ids(self) -> None:
        """Stop a query without batches when a topic was made again beneath it."""
        try:
            self._guard.look()
        except Transient:
            return  # the query itself notices when the broker stays away
        except HeadraceError as error:
            if self._query.isActive:
                self._found_wrong = error
                self._query.stop()

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
        case RealTime() as real_time:
            # The stubs do not know this trigger.
            return writer.trigger(realTime=real_time.duration.spark())  # type: ignore[call-overload,no-any-return]
        case Continuous() as continuous:
            return writer.trigger(continuous=continuous.duration.spark())


class _Listener(StreamingQueryListener):
    """Hands progress on. A session belongs to one flow, so every event here is that flow's."""

    def __init__(self, hear: Callable[[StreamingQueryProgress], None], nothing: Callable[[], None]) -> None:
        self._hear, self._nothing = hear, nothing

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._hear(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self._nothing()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...
