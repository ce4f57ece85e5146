"""A flow as a running Spark query: the only module with a `writeStream`.

The path of a row: the steps of `inputs`, then the transform of the flow, then its sink. Everything that watches the
query is a guard: `guards/order.py` lists them. Under a trigger without batches Spark writes the rows itself, as
`sink.native_write` says: see `continuous`.
"""

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.flow.levers import AsFastAsPossible, AvailableNow, Continuous, Every, RealTime, Trigger
from headrace.flow.run_cache import RunCache
from headrace.runtime.batch_writer import BatchWriter
from headrace.runtime.continuous import native_write
from headrace.runtime.error_mapping import map_error
from headrace.runtime.guards.order import OrderedGuards
from headrace.runtime.plan import plan_result
from headrace.runtime.progress import CommittedBatchReporter, listen
from headrace.runtime.run import Run
from headrace.runtime.session import flow_session
from headrace.runtime.stopping import Stopper


class RunningQuery:
    """The query of one run of a flow. Used by one supervisor thread; `drain` may be called from another."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._stopper = Stopper()
        self._cache = RunCache()
        self._guards = OrderedGuards(run, self._stopper, self._cache)
        self._batches = BatchWriter(run, self._guards, self._cache, self._stopper.last_progress)
        self._query: StreamingQuery
        self._reports: CommittedBatchReporter

    def start(self, application: SparkSession) -> None:
        """Build the query and start it, unless a guard refuses or the plan cannot run as declared.

        Returns when Spark has started the query.
        """
        run, session = self._run, flow_session(application, self._run.flow, self._run.memory_mb)
        # Queries inherit the pool of the thread that starts them.
        session.sparkContext.setLocalProperty("spark.scheduler.pool", run.flow.name)
        try:
            self._guards.before_start(session)
            run.flow.sink.prepare(session, run.target, self._cache)
            rows, order = plan_result(session, run)
            self._reports = CommittedBatchReporter(run.flow.name, order, self._guards.on_progress)
            listen(session, on_progress=self._reports.report)
            self._query = self._start(rows)
        except Exception as error:
            self._stopper.set_started(None)
            self._guards.on_end(None)
            self._cache.close()
            if isinstance(error, PySparkException):
                raise map_error(run.flow.name, error) from error
            raise
        self._stopper.set_started(self._query)

    def wait(self) -> None:
        """Return when the query has ended; raise its failure, mapped into the error tree."""
        failure: PySparkException | None = None
        try:
            self._query.awaitTermination()
        except PySparkException as error:
            failure = error
        # The listener's thread may not have reported the last batches yet; the query has their progress.
        for progress in self._query.recentProgress:
            self._reports.report(progress)
        ended = self._stopper.error
        if ended is None and failure is not None:
            ended = map_error(self._run.flow.name, self._batches.error or failure)
        ended = self._guards.on_end(ended)
        self._cache.close()
        if ended is not None and failure is not None:
            raise ended from failure
        if ended is not None:
            raise ended

    def drain(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the in-flight batch to commit, then stop."""
        self._stopper.drain(timeout)

    def _start(self, rows: DataFrame) -> StreamingQuery:
        flow = self._run.flow
        native = native_write(flow, self._run.target, rows)
        if native is None:
            writer = rows.writeStream.foreachBatch(self._batches.write)
        else:
            writer = native.rows.writeStream.format(native.format).options(**native.options)
        return (
            writer.queryName(flow.name)
            .outputMode(flow.mode.value)
            .option("checkpointLocation", self._run.checkpoint.location)
            # The stubs do not know the trigger `realTime`.
            .trigger(**_trigger_options(flow.trigger))  # type: ignore[arg-type]
            .start()
        )


def _trigger_options(trigger: Trigger) -> dict[str, str | bool]:
    match trigger:
        case Every() as interval:
            return {"processingTime": interval.duration.as_interval()}
        case AvailableNow():
            return {"availableNow": True}
        case AsFastAsPossible():
            return {"processingTime": "0 seconds"}
        case RealTime() as real_time:
            return {"realTime": real_time.duration.as_interval()}
        case Continuous() as continuous:
            return {"continuous": continuous.duration.as_interval()}
