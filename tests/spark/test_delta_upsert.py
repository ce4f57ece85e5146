"""Batches merged into a Delta table by key, or replacing it: each once, however often it is attempted."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import DataType, DateType, LongType, StringType, TimestampNTZType

from headrace.clients.sql import typed_literal
from headrace.errors import FlowError
from headrace.flow.sink import Batch, Sink
from headrace.flow.target import Target
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sinks.delta.write import DeltaOverwrite
from headrace.sinks.fan_out import FanOut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Row = tuple[str | None, int, int]
UPSERT = DeltaUpsert("gold/stock", key=["item"], sequence="change")
OVERWRITE = DeltaOverwrite("gold/stock")


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))


def stock(spark: SparkSession, *rows: Row) -> DataFrame:
    return spark.createDataFrame(list(rows), "item string, pieces long, change long").coalesce(1)


def stored_rows(spark: SparkSession, target: Target) -> list[Row]:
    table = spark.read.format("delta").load(target.table("gold/stock"))
    return sorted(((row.item, row.pieces, row.change) for row in table.collect()), key=str)


def version(spark: SparkSession, target: Target) -> int:
    history = spark.sql(f"DESCRIBE HISTORY delta.`{target.table('gold/stock')}`")
    return int(history.agg({"version": "max"}).collect()[0][0])


def test_a_row_replaces_the_one_with_its_key_or_is_added(spark: SparkSession, target: Target):
    UPSERT.write(stock(spark, ("nut", 5, 1), ("bolt", 7, 2)), Batch("stock", "q1", 0, target))
    UPSERT.write(stock(spark, ("nut", 4, 3), ("gear", 1, 4)), Batch("stock", "q1", 1, target))

    assert stored_rows(spark, target) == [("bolt", 7, 2), ("gear", 1, 4), ("nut", 4, 3)]


def test_a_batch_that_is_run_again_changes_nothing(spark: SparkSession, target: Target):
    for number, rows in enumerate((stock(spark, ("nut", 5, 1)), stock(spark, ("nut", 4, 2)))):
        UPSERT.write(rows, Batch("stock", "q1", number, target))
    before = version(spark, target)

    UPSERT.write(stock(spark, ("nut", 9, 9)), Batch("stock", "q1", 1, target))

    assert stored_rows(spark, target) == [("nut", 4, 2)]
    assert version(spark, target) == before


def test_an_older_change_never_replaces_a_newer_one(spark: SparkSession, target: Target):
    UPSERT.write(stock(spark, ("nut", 5, 8)), Batch("stock", "q1", 0, target))
    UPSERT.write(stock(spark, ("nut", 1, 7)), Batch("stock", "q1", 1, target))

    assert stored_rows(spark, target) == [("nut", 5, 8)]


def test_of_several_changes_of_a_key_in_one_batch_the_newest_wins(spark: SparkSession, target: Target):
    UPSERT.write(stock(spark, ("nut", 5, 1), ("nut", 3, 3), ("nut", 4, 2)), Batch("stock", "q1", 0, target))

    assert stored_rows(spark, target) == [("nut", 3, 3)]


def test_a_key_may_be_null(spark: SparkSession, target: Target):
    UPSERT.write(stock(spark, (None, 5, 1)), Batch("stock", "q1", 0, target))
    UPSERT.write(stock(spark, (None, 6, 2)), Batch("stock", "q1", 1, target))

    assert stored_rows(spark, target) == [(None, 6, 2)]


def test_the_identity_of_a_merge_is_not_left_to_the_next_write_of_the_session(spark: SparkSession, target: Target):
    # A second sink of the same session that took over the first one's identity would skip its write.
    both = FanOut(UPSERT, DeltaUpsert("gold/copy", key=["item"]))
    both.write(stock(spark, ("nut", 5, 1)), Batch("stock", "q1", 0, target))

    assert spark.read.format("delta").load(target.table("gold/copy")).count() == 1
    assert spark.conf.get("spark.databricks.delta.write.txnAppId", None) is None


def test_the_complete_result_replaces_the_table_once_per_batch(spark: SparkSession, target: Target):
    OVERWRITE.write(stock(spark, ("nut", 5, 1), ("bolt", 1, 1)), Batch("stock", "q1", 0, target))
    OVERWRITE.write(stock(spark, ("nut", 6, 2)), Batch("stock", "q1", 1, target))
    OVERWRITE.write(stock(spark, ("nut", 9, 9)), Batch("stock", "q1", 1, target))

    assert stored_rows(spark, target) == [("nut", 6, 2)]


@pytest.mark.parametrize("sink", [UPSERT, OVERWRITE])
def test_a_new_checkpoint_counts_from_zero_and_loses_nothing(spark: SparkSession, target: Target, sink: Sink):
    sink.write(stock(spark, ("nut", 5, 1)), Batch("stock", "q1", 0, target))
    sink.write(stock(spark, ("nut", 6, 2)), Batch("stock", "q2", 0, target))

    assert stored_rows(spark, target) == [("nut", 6, 2)]


@pytest.mark.parametrize(
    ("value", "kind", "written"),
    [
        (7, LongType(), "7L"),
        (date(2026, 3, 2), DateType(), "DATE '2026-03-02'"),
        (datetime(2026, 3, 2, 1, 2, 3, 4, UTC), TimestampNTZType(), "TIMESTAMP_NTZ '2026-03-02 01:02:03.000004'"),
        ("a", StringType(), "'a'"),
    ],
)
def test_bounds_are_written_as_literals(value: Any, kind: DataType, written: str):
    assert typed_literal(value, kind) == written


def test_a_table_is_pruned_only_by_a_column_of_its_key_that_has_an_order(spark: SparkSession, target: Target):
    with pytest.raises(FlowError) as refused:
        DeltaUpsert("gold/stock", key=["item"], prune_by="change")
    assert refused.value.code == "HR-569"
    with pytest.raises(FlowError, match="is a string") as refused:
        replace(UPSERT, prune_by="item").write(stock(spark, ("nut", 1, 1)), Batch("stock", "q1", 0, target))
    assert refused.value.code == "HR-569"
