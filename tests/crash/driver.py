"""All cases as flows of one application that stops each of them at a point of a batch.

As a program it is a driver that waits at the point until it is killed, or ends when its standard input ends.
In the process of a test (`ThreadDriver`) an exception ends the flow at the point.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from crash.armed import arm, tell
from crash.cases import CASES, Case
from crash.readers import half_done
from crash.sqlite_store import in_the_middle
from headrace.cdc import sink as delta_cdc
from headrace.cdc.apply.published import PublishedTable
from headrace.cdc.sink import DeltaCdc
from headrace.errors import Terminal
from headrace.flow.flow import Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.run_cache import RunCache
from headrace.flow.secret import Secret
from headrace.flow.sink import Batch, Sink, WrapsSinks
from headrace.flow.target import Database, Target
from headrace.operate.run import open_application
from headrace.runtime.events import BatchCommitted, FlowEvent, FlowFailed
from headrace.sinks.custom import CustomExactlyOnceSink
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sinks.fan_out import FanOut
from headrace.sinks.kafka.exactly_once import KafkaExactlyOnceSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# A blocked task holds its slot, and every flow needs one more to continue.
_SLOTS = 32
# At a task, as on a cluster: a driver on one machine does not retry by default.
_ATTEMPTS = 4

# Not a point to die at: the driver keeps running, and loses a Python worker in the batch of the stage.
LOST_WORKER = "lost worker"
# What is reported of a flow that an exception has ended, at whichever point it was to end.
REACHED = "reached"

# Ends a flow, or stops it until the driver is dead.
Stop = Callable[[str, str], None]


class StoppedAtPoint(Terminal):
    """Ends the work of a flow at a point, where a kill would end the whole process."""


def wait_for_the_kill(case: str, point: str) -> None:
    tell(wait=True, case=case, point=point)


def end_the_flow(case: str, point: str) -> None:
    raise StoppedAtPoint(f"{case} ends at {point}.", why="A test wants it.", state="See the point.", remedy="None.")


@dataclass(frozen=True)
class Plan:
    """What one driver is to do: run these cases, and stop each of them at points, each in the batch of a stage."""

    cases: tuple[str, ...]
    folder: str
    bootstrap: str
    database: tuple[str, str, str]
    stops: tuple[tuple[str, int], ...] = ()

    @property
    def target(self) -> Target:
        url, user, password = self.database
        return Target(
            "crash",
            lake=f"{self.folder}/lake",
            checkpoints=f"{self.folder}/checkpoints",
            master=f"local[{_SLOTS},{_ATTEMPTS}]",
            kafka={"bootstrap.servers": self.bootstrap},
            spark={"spark.python.daemon.module": "crash.armed"},
            databases={"shop": Database(url, user, Secret("local", password))},
        )

    def encoded(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decoded(cls, text: str) -> Plan:
        fields = json.loads(text)
        stops = tuple((point, stage) for point, stage in fields["stops"])
        return cls(**fields | {"cases": tuple(fields["cases"]), "database": tuple(fields["database"]), "stops": stops})

    def flows(self, stop: Stop) -> list[Flow]:
        """Return the flows of the cases, with probes where they stop."""
        return [CASES[name].flow(probed(CASES[name], self.stops, stop)) for name in self.cases]


@dataclass(frozen=True)
class Probe(WrapsSinks):
    """A sink that stops at points, by number of the batch, and is otherwise the sink that it holds."""

    sink: Sink
    points: Mapping[int, str]
    stop: Stop

    @property
    def name(self) -> str:
        return self.sink.name

    @property
    def guarantee(self) -> Guarantee:
        return self.sink.guarantee

    @property
    def output_modes(self) -> frozenset[OutputMode]:
        return self.sink.output_modes

    def preflight(self, target: Target) -> None:
        self.sink.preflight(target)

    def prepare(self, spark: SparkSession, target: Target, cache: RunCache) -> None:
        self.sink.prepare(spark, target, cache)

    def wrapped_sinks(self, step: str) -> tuple[tuple[str, Sink]]:
        return ((step, self.sink),)

    def write(self, rows: DataFrame, batch: Batch) -> None:
        point = self.points.get(batch.id)
        if point in ("P0", "P1"):
            self.stop(batch.flow, point)
        if point == "P2":
            rows = self._stopping_in_the_middle(rows, batch)
        if point == LOST_WORKER:
            rows = rows.mapInArrow(_losing_a_worker(batch.flow), rows.schema)
        self.sink.write(rows, batch)
        if point == "P3":
            self.stop(batch.flow, point)

    def _stopping_in_the_middle(self, rows: DataFrame, batch: Batch) -> DataFrame:
        """Have the sink stop when a part of the batch is in its place. Some keep the rows before they write any."""
        match self.sink:
            case DeltaUpsert() as table:
                _CommitClock.put_into(rows.sparkSession, table, batch)
            case DeltaCdc():
                _stop_before_publishing(batch)
            case KafkaExactlyOnceSink(slots=slots):
                arm(batch.flow, passing=slots - 1)
            case CustomExactlyOnceSink():
                in_the_middle.append(lambda batch: tell(wait=True, case=batch.flow, point="P2"))
            case _:
                return rows.mapInArrow(_stopping(batch.flow), rows.schema)
        return rows


def _stop_before_publishing(stopped: Batch) -> None:
    """Have the sink for captured tables stop when all of them have the batch and it is not published."""
    publish = delta_cdc.publish

    def stopping(session: SparkSession, location: str, tables: Iterable[PublishedTable], batch: Batch) -> None:
        if batch.app_id == stopped.app_id:
            tell(wait=True, case=batch.flow, point="P2")
        publish(session, location, tables, batch)

    delta_cdc.publish = stopping


def _stopping(case: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that passes rows on in every task but the last of two, which stops when it has read them."""

    def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        read = list(batches)
        if context is not None and context.partitionId() == 1:
            tell(wait=True, case=case, point="P2")
        yield from read

    return passed


def _losing_a_worker(case: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that passes rows on, and in the first attempt at the last of two tasks kills its process."""

    def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        read = list(batches)
        if context is not None and context.partitionId() == 1 and context.attemptNumber() == 0:
            tell(case=case, point=LOST_WORKER)
            os.kill(os.getpid(), signal.SIGKILL)
        yield from read

    return passed


class _CommitClock:
    """The clock of a Delta table, which Delta looks at while it commits. It stops when files lack a commit."""

    def __init__(self, place: Sink, batch: Batch) -> None:
        self._place, self._batch = place, batch

    @classmethod
    def put_into(cls, spark: SparkSession, place: DeltaUpsert, batch: Batch) -> None:
        """Have Delta look at this clock for the table: it keeps one log per table, and the clock with it."""
        jvm = spark._jvm
        assert jvm is not None
        log = jvm.org.apache.spark.sql.delta.DeltaLog
        path = jvm.org.apache.hadoop.fs.Path(batch.target.table(place.path))
        # Of this table only: another one may have its clock already.
        log.invalidateCache(spark._jsparkSession, path)
        log.forTable(spark._jsparkSession, path, cls(place, batch))

    def getTimeMillis(self) -> int:
        if half_done(self._place, self._batch.target):
            tell(wait=True, case=self._batch.flow, point="P2")
        return time.time_ns() // 1_000_000

    def nanoTime(self) -> int:
        return time.monotonic_ns()

    def waitTillTime(self, moment: int) -> int:
        return moment

    class Java:
        implements: ClassVar[list[str]] = ["org.apache.spark.util.Clock"]


def probed(case: Case, stops: tuple[tuple[str, int], ...], stop: Stop) -> Sink:
    """Return the case's sink with probes where it stops."""
    points = {case.batch_to_die_in(point, stage): point for point, stage in stops}
    if not isinstance(case.sink, FanOut):
        return Probe(case.sink, points, stop)
    within = list(case.sink.sinks)
    middle = {batch: point for batch, point in points.items() if point == "P2"}
    within[case.middle] = Probe(within[case.middle], middle, stop)
    return Probe(FanOut(*within), {batch: point for batch, point in points.items() if point != "P2"}, stop)


def report_of(event: FlowEvent) -> dict[str, object] | None:
    """Return what the chain wants to know of an event."""
    if isinstance(event, BatchCommitted):
        return {"case": event.flow, "committed": event.batch_id}
    if isinstance(event, FlowFailed) and isinstance(event.error, StoppedAtPoint):
        return {"case": event.flow, "point": REACHED}
    if isinstance(event, FlowFailed):
        return {"case": event.flow, "error": str(event.error), "down": event.retry_in is None}
    return None


def main() -> None:
    plan = Plan.decoded(Path(sys.argv[1]).read_text())

    def say(event: FlowEvent) -> None:
        report = report_of(event)
        if report is not None:
            tell(**report)

    application, _spark = open_application(plan.flows(wait_for_the_kill), plan.target, log=Path(sys.argv[2]))
    application.bus.subscribe(say)

    def drain() -> None:
        sys.stdin.read()
        application.drain()

    threading.Thread(target=drain, daemon=True).start()
    failed = [figures.error for figures in application.run().values() if figures.error]
    if failed:
        sys.exit(str(failed[0]))


if __name__ == "__main__":
    main()
