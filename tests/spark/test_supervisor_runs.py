"""The supervisor with real queries: what it starts again, what it leaves down, how it ends."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
from live_run import PATIENCE
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import DataError, ServiceUnavailable
from headrace.flow.flow import Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.inputs import Input
from headrace.flow.levers import AsFastAsPossible, AvailableNow, OutputMode, Trigger
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.runtime.events import BatchCommitted, EventBus, FlowEvent, FlowFailed, FlowStopped
from headrace.runtime.supervisor import Backoff, Supervisor

pytestmark = pytest.mark.spark

QUICK = Backoff(first=0.01, longest=0.02)


@dataclass(frozen=True)
class Folder:
    """A folder of text files as a stream: one file a batch."""

    path: str
    name: str = "folder"
    carries_payload: bool = False

    def preflight(self, target: Target) -> None: ...

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        return spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(self.path)

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        raise AssertionError("nothing here is audited")


@dataclass
class CollectingSink:
    """Keeps rows in memory, and raises what it was given, one error for each write, before it keeps anything."""

    errors: list[Exception] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    name: str = "kept"
    guarantee: ClassVar[Guarantee] = Guarantee.BEST_EFFORT
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset(OutputMode)

    def preflight(self, target: Target) -> None: ...

    def prepare(self, spark: SparkSession, target: Target, cache: RunCache) -> None: ...

    def write(self, rows: DataFrame, batch: Batch) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.rows.extend(row.value for row in rows.collect())


def away(number: int = 601) -> ServiceUnavailable:
    return ServiceUnavailable("A part is away.", why="w", state="s", remedy="r", code=f"HR-{number}")


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))


@pytest.fixture
def lines(tmp_path: Path) -> str:
    """Two files of one line each."""
    folder = tmp_path / "lines"
    folder.mkdir()
    for number, line in enumerate("ab", start=1):
        file = folder / f"{number}.txt"
        file.write_text(f"{line}\n")
        # Spark takes files by their times, in milliseconds: two written within one come in any order.
        os.utime(file, (number, number))
    return str(folder)


def flow(name: str, lines: str, sink: CollectingSink, trigger: Trigger | None = None) -> Flow:
    return Flow(name, Input(Folder(lines)), lambda rows: rows, sink, trigger=trigger or AvailableNow())


def test_a_transient_error_starts_the_flow_again_and_no_row_is_lost(spark: SparkSession, target: Target, lines: str):
    sink, bus, events = CollectingSink(errors=[away(), away(602)]), EventBus(), []
    bus.subscribe(events.append)

    errors = Supervisor(spark, target, [flow("again", lines, sink)], bus, backoff=QUICK).run()

    assert errors == {}
    assert sorted(sink.rows) == ["a", "b"]
    failed = [(event.error.code, event.retry_in) for event in events if isinstance(event, FlowFailed)]
    assert failed == [("HR-601", 0.01), ("HR-602", 0.02)]
    assert events[-1] == FlowStopped("again")


def test_a_terminal_error_stops_the_flow_while_the_others_continue(spark: SparkSession, target: Target, lines: str):
    bad = CollectingSink(errors=[DataError("It is wrong.", why="w", state="s", remedy="r", code="HR-500")] * 2)
    good, bus, events = CollectingSink(), EventBus(), []
    bus.subscribe(events.append)

    flows = [flow("down", lines, bad), flow("up", lines, good)]
    errors = Supervisor(spark, target, flows, bus, backoff=QUICK).run()

    assert {name: error.code for name, error in errors.items()} == {"down": "HR-500"}
    assert bad.rows == []
    assert len(bad.errors) == 1, "a terminal error must not be tried again"
    assert sorted(good.rows) == ["a", "b"]


def test_a_flow_that_never_recovers_stops_after_its_attempts(spark: SparkSession, target: Target, lines: str):
    sink = CollectingSink(errors=[away() for _ in range(9)])

    errors = Supervisor(
        spark, target, [flow("lost", lines, sink)], EventBus(), backoff=Backoff(0.01, 0.01, attempts=2)
    ).run()

    assert errors["lost"].code == "HR-601"
    assert len(sink.errors) == 6, "one start and two more"


def test_a_failure_of_the_flows_own_python_is_terminal_and_names_it(spark: SparkSession, target: Target, lines: str):
    sink = CollectingSink(errors=[ValueError("seven is not a colour")])

    errors = Supervisor(spark, target, [flow("python", lines, sink)], EventBus(), backoff=QUICK).run()

    assert errors["python"].code == "HR-206"
    assert errors["python"].why == "ValueError: seven is not a colour."


def test_a_python_worker_that_dies_starts_the_flow_again_and_no_row_is_lost_or_repeated(
    spark: SparkSession, target: Target, lines: str, tmp_path: Path
):
    died, bus, events = tmp_path / "died", EventBus(), []
    bus.subscribe(events.append)

    def dying(batches):
        for batch in batches:
            if "b" in batch["value"].to_pylist() and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    sink = CollectingSink()
    worker = Flow(
        "worker", Input(Folder(lines)), lambda rows: rows.mapInArrow(dying, rows.schema), sink, AvailableNow()
    )
    errors = Supervisor(spark, target, [worker], bus, backoff=QUICK).run()

    assert errors == {}
    assert sorted(sink.rows) == ["a", "b"]
    (failed,) = [event.error for event in events if isinstance(event, FlowFailed)]
    assert (failed.code, failed.what) == ("HR-618", "Flow 'worker': A Python worker died.")


def test_drain_waits_for_the_in_flight_batch_to_commit(spark: SparkSession, target: Target, lines: str):
    sink, bus, committed = CollectingSink(), EventBus(), threading.Event()

    def on_event(event: FlowEvent) -> None:
        if isinstance(event, BatchCommitted) and event.batch_id == 1:
            committed.set()

    bus.subscribe(on_event)
    supervisor = Supervisor(spark, target, [flow("drained", lines, sink, AsFastAsPossible())], bus, backoff=QUICK)
    running = threading.Thread(target=supervisor.run)
    running.start()
    assert committed.wait(PATIENCE)

    supervisor.drain()
    running.join(PATIENCE)

    assert not running.is_alive()
    assert sorted(sink.rows) == ["a", "b"]
