"""Batches appended to a Delta table: each once, however often it is attempted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable, QueryBuilder

from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.sinks.delta.write import DeltaAppend

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SINK = DeltaAppend("gold/rides")


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))


def rows(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(item, f"city {item % 2}") for item in ids], "id long, city string").coalesce(1)


def stored_rows(target: Target) -> list[int]:
    """Read the table with another reader than the one that wrote it."""
    # Not to_pyarrow_table(): its threads sometimes abort the interpreter at its exit (deltalake 1.6, pyarrow 26).
    actual = QueryBuilder().register("held", DeltaTable(target.table(SINK.path))).execute("SELECT id FROM held")
    return sorted(actual.read_all()["id"].to_pylist())


def test_a_batch_that_is_run_again_is_written_once(spark: SparkSession, target: Target) -> None:
    batch = Batch("rides", "q1", 0, target)
    SINK.write(rows(spark, 1, 2), batch)
    SINK.write(rows(spark, 1, 2), batch)
    assert stored_rows(target) == [1, 2]
    assert DeltaTable(target.table(SINK.path)).version() == 0


def test_a_new_checkpoint_counts_from_zero_and_loses_nothing(spark: SparkSession, target: Target) -> None:
    SINK.write(rows(spark, 1), Batch("rides", "q1", 0, target))
    SINK.write(rows(spark, 2), Batch("rides", "q1", 1, target))
    SINK.write(rows(spark, 3), Batch("rides", "q2", 0, target))
    assert stored_rows(target) == [1, 2, 3]


def test_another_flow_and_another_step_write_their_own_batch_of_the_same_number(
    spark: SparkSession, target: Target
) -> None:
    for batch in (
        Batch("rides", "q1", 0, target),
        Batch("other", "q1", 0, target),
        Batch("rides", "q1", 0, target, step="0.1"),
    ):
        SINK.write(rows(spark, 1), batch)
    assert stored_rows(target) == [1, 1, 1]


def test_the_batch_is_recorded_in_the_commit_of_its_rows(spark: SparkSession, target: Target) -> None:
    """One commit, so that a crash leaves both or neither."""
    SINK.write(rows(spark, 1), Batch("rides", "q1", 7, target))
    log = Path(target.table(SINK.path)) / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    recorded = [(action["txn"]["appId"], action["txn"]["version"]) for action in actions if "txn" in action]
    assert recorded == [("q1:rides:0", 7)]
    assert sum("add" in action for action in actions) == 1


def test_a_batch_that_fails_half_way_leaves_nothing_and_is_written_when_it_is_run_again(
    spark: SparkSession, target: Target
) -> None:
    batch = Batch("rides", "q1", 1, target)
    SINK.write(rows(spark, 1), Batch("rides", "q1", 0, target))
    failing = rows(spark, 2, 3).selectExpr("if(id = 3, raise_error('lost'), id) as id", "city")
    with pytest.raises(Exception, match="lost"):
        SINK.write(failing, batch)
    assert stored_rows(target) == [1]
    SINK.write(rows(spark, 2, 3), batch)
    assert stored_rows(target) == [1, 2, 3]


def test_a_batch_without_rows_makes_no_difference(spark: SparkSession, target: Target) -> None:
    SINK.write(rows(spark, 1), Batch("rides", "q1", 0, target))
    SINK.write(rows(spark), Batch("rides", "q1", 1, target))
    SINK.write(rows(spark, 2), Batch("rides", "q1", 2, target))
    assert stored_rows(target) == [1, 2]


def test_partitions_are_folders_of_the_table(spark: SparkSession, target: Target) -> None:
    sink = DeltaAppend(SINK.path, partition_by=("city",))
    sink.write(rows(spark, 1, 2), Batch("rides", "q1", 0, target))
    assert DeltaTable(target.table(SINK.path)).metadata().partition_columns == ["city"]
    assert stored_rows(target) == [1, 2]
