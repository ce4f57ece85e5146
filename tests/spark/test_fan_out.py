"""One batch into several sinks, with a crash between two of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from headrace.errors import FlowError
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch, Sink
from headrace.flow.target import Target
from headrace.sinks.console import Console
from headrace.sinks.delta.write import DeltaAppend
from headrace.sinks.fan_out import FanOut, Filtered
from headrace.sinks.files import FileSink
from headrace.sinks.kafka.topic import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TABLE, FOLDER = DeltaAppend("table"), FileSink("folder")


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))


@dataclass
class Recording:
    """A sink that fails as often as declared, and otherwise records its rows."""

    failures: int = 0
    observed: list[tuple[str, list[int]]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    guarantee: ClassVar[Guarantee] = Guarantee.BEST_EFFORT
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND, OutputMode.UPDATE})
    name: str = "recording"

    def preflight(self, target: Target) -> None:
        self.calls.append(f"preflight {target.name}")

    def prepare(self, spark: SparkSession, target: Target, cache: RunCache) -> None:
        self.calls.append(f"prepare {target.name}")

    def write(self, rows: DataFrame, batch: Batch) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("killed here")
        self.observed.append((batch.step, sorted(row["id"] for row in rows.collect())))


def rows(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(item,) for item in ids], "id long").coalesce(1)


def stored_rows(spark: SparkSession, target: Target, sink: DeltaAppend | FileSink) -> list[int]:
    kind = "delta" if isinstance(sink, DeltaAppend) else "parquet"
    return sorted(row["id"] for row in spark.read.format(kind).load(target.table(sink.path)).collect())


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_crash_before_any_sink_and_the_batch_run_again_leaves_every_row_once(
    spark: SparkSession, target: Target, position: int
) -> None:
    sinks: list[Sink] = [TABLE, FOLDER]
    sinks.insert(position, Recording(failures=1))
    fan_out, batch = FanOut(*sinks), Batch("rides", "q1", 0, target)
    with pytest.raises(ConnectionError):
        fan_out.write(rows(spark, 1, 2), batch)
    fan_out.write(rows(spark, 1, 2), batch)
    assert stored_rows(spark, target, TABLE) == stored_rows(spark, target, FOLDER) == [1, 2]


def test_sinks_before_the_crash_have_the_batch_and_sinks_after_it_do_not(spark: SparkSession, target: Target) -> None:
    later = Recording()
    with pytest.raises(ConnectionError):
        FanOut(TABLE, Recording(failures=1), later).write(rows(spark, 1), Batch("rides", "q1", 0, target))
    assert stored_rows(spark, target, TABLE) == [1]
    assert later.observed == []


def test_two_sinks_of_one_table_both_write_because_their_steps_differ(spark: SparkSession, target: Target) -> None:
    fan_out = FanOut(Filtered("id < 2", TABLE), Filtered("id >= 2", TABLE))
    for _ in range(2):
        fan_out.write(rows(spark, 1, 2, 3), Batch("rides", "q1", 0, target))
    assert stored_rows(spark, target, TABLE) == [1, 2, 3]


def test_every_sink_gets_its_own_step_also_in_a_fan_out_of_fan_outs(spark: SparkSession, target: Target) -> None:
    recording = Recording()
    FanOut(recording, FanOut(recording, recording), recording).write(rows(spark, 1), Batch("r", "q1", 0, target))
    assert [step for step, _ in recording.observed] == ["0.0", "0.1.0", "0.1.1", "0.2"]


def test_only_passes_on_the_rows_that_meet_its_condition(spark: SparkSession, target: Target) -> None:
    all_rows, some, none = Recording(), Recording(), Recording()
    fan_out = FanOut(all_rows, Filtered("id > 1 and id % 2 = 1", some), Filtered("id is null", none))
    fan_out.write(rows(spark, 1, 2, 3, 5), Batch("rides", "q1", 0, target))
    assert [sink.observed[0][1] for sink in (all_rows, some, none)] == [[1, 2, 3, 5], [3, 5], []]


def test_a_batch_is_computed_once_for_all_sinks_and_unpersisted_afterwards(spark: SparkSession, target: Target) -> None:
    counted = spark.sparkContext.accumulator(0)

    def count(row: object) -> object:
        counted.add(1)
        return row

    created = spark.createDataFrame(rows(spark, 1, 2, 3).rdd.map(count), "id long")
    FanOut(Recording(), Recording(), Recording()).write(created, Batch("rides", "q1", 0, target))
    assert counted.value == 3
    assert not created.is_cached


def test_a_batch_is_unpersisted_also_when_a_sink_fails(spark: SparkSession, target: Target) -> None:
    created = rows(spark, 1)
    with pytest.raises(ConnectionError):
        FanOut(Recording(failures=1)).write(created, Batch("rides", "q1", 0, target))
    assert not created.is_cached


def test_every_sink_is_asked_and_prepared(spark: SparkSession, target: Target) -> None:
    first, second = Recording(), Recording()
    fan_out = FanOut(first, Filtered("true", second))
    fan_out.preflight(target)
    fan_out.prepare(spark, target, RunCache())
    assert first.calls == second.calls == ["preflight test", "prepare test"]


@pytest.mark.parametrize(
    ("sinks", "weakest"),
    [
        ((TABLE, FOLDER), Guarantee.EXACTLY_ONCE),
        ((TABLE, KafkaSink("t")), Guarantee.AT_LEAST_ONCE),
        ((Console(), KafkaSink("t"), TABLE), Guarantee.BEST_EFFORT),
        ((TABLE, Filtered("true", KafkaSink("t"))), Guarantee.AT_LEAST_ONCE),
        ((TABLE, FanOut(TABLE, Console())), Guarantee.BEST_EFFORT),
    ],
)
def test_a_fan_out_has_the_guarantee_of_its_weakest_sink(sinks: tuple[Sink, ...], weakest: Guarantee) -> None:
    assert FanOut(*sinks).guarantee is weakest


def test_the_modes_are_those_that_every_sink_takes() -> None:
    assert FanOut(KafkaSink("t"), Recording()).output_modes == {OutputMode.APPEND, OutputMode.UPDATE}
    assert FanOut(KafkaSink("t"), TABLE).output_modes == {OutputMode.APPEND}


def test_the_name_is_made_of_the_names_of_all_sinks() -> None:
    assert FanOut(TABLE, FanOut(FOLDER, KafkaSink("t"))).name == "delta:table + parquet:folder + kafka:t"


def test_a_fan_out_to_nowhere_is_refused() -> None:
    with pytest.raises(FlowError) as refused:
        FanOut()
    assert refused.value.code == "HR-204"
