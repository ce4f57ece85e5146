"""Batches appended to a folder of Parquet files, behind the log of what is committed."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from headrace.errors import RecoveryError
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.sinks.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SINK = Files("gold/rides")


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))


def rows(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(each, f"city {each % 2}") for each in ids], "id long, city string").coalesce(1)


def batch(target: Target, number: int) -> Batch:
    return Batch("rides", "q1", number, target)


def held(spark: SparkSession, target: Target) -> list[int]:
    return sorted(row["id"] for row in spark.read.parquet(target.table(SINK.path)).collect())


def on_disk(target: Target) -> list[int]:
    """Return what lies in the folder, committed or not."""
    files = Path(target.table(SINK.path)).glob("**/*.parquet")
    return sorted(each for file in files for each in pq.ParquetFile(file).read()["id"].to_pylist())


def test_a_batch_that_is_run_again_is_written_once(spark: SparkSession, target: Target) -> None:
    SINK.write(rows(spark, 1, 2), batch(target, 0))
    SINK.write(rows(spark, 1, 2), batch(target, 0))
    SINK.write(rows(spark, 3), batch(target, 1))
    assert held(spark, target) == on_disk(target) == [1, 2, 3]


def test_a_reader_sees_only_the_files_of_batches_that_committed(spark: SparkSession, target: Target) -> None:
    """A driver killed before the commit leaves files behind that no log names: here batch 1, its log entry removed."""
    SINK.write(rows(spark, 1), batch(target, 0))
    SINK.write(rows(spark, 2), batch(target, 1))
    for entry in (Path(target.table(SINK.path)) / "_spark_metadata").glob("*1*"):
        entry.unlink()
    assert on_disk(target) == [1, 2]
    assert held(spark, target) == [1]
    SINK.write(rows(spark, 2), batch(target, 1))
    assert held(spark, target) == [1, 2]


def test_a_batch_that_fails_half_way_is_not_seen_and_is_written_when_it_is_run_again(
    spark: SparkSession, target: Target
) -> None:
    SINK.write(rows(spark, 1), batch(target, 0))
    failing = rows(spark, 2, 3).selectExpr("if(id = 3, raise_error('lost'), id) as id", "city")
    with pytest.raises(Exception, match="lost"):
        SINK.write(failing, batch(target, 1))
    assert held(spark, target) == [1]
    SINK.write(rows(spark, 2, 3), batch(target, 1))
    assert held(spark, target) == [1, 2, 3]


def test_files_are_parquet_that_other_readers_understand(spark: SparkSession, target: Target) -> None:
    moment = datetime(2024, 5, 6, 12, 0, 0, 250_000, tzinfo=UTC)
    made = spark.createDataFrame(
        [(moment, Decimal("12.345678"), "Zürich", None)],
        "at timestamp, fare decimal(14,6), city string, riders long",
    )
    SINK.write(made.coalesce(1), batch(target, 0))
    (file,) = Path(target.table(SINK.path)).glob("*.parquet")
    assert pq.ParquetFile(file).read().to_pylist() == [
        {"at": moment, "fare": Decimal("12.345678"), "city": "Zürich", "riders": None}
    ]


def test_partitions_are_folders(spark: SparkSession, target: Target) -> None:
    Files(SINK.path, partition_by=("city",)).write(rows(spark, 1, 2, 3), batch(target, 0))
    folder = Path(target.table(SINK.path))
    assert sorted(each.name for each in folder.iterdir() if each.name.startswith("city=")) == [
        "city=city 0",
        "city=city 1",
    ]
    assert held(spark, target) == [1, 2, 3]


def test_a_batch_without_rows_makes_no_difference(spark: SparkSession, target: Target) -> None:
    SINK.write(rows(spark, 1), batch(target, 0))
    SINK.write(rows(spark), batch(target, 1))
    assert held(spark, target) == [1]


def test_the_batches_of_another_checkpoint_are_refused_and_not_lost(spark: SparkSession, target: Target) -> None:
    SINK.write(rows(spark, 1), Batch("rides", "q1", 0, target))
    with pytest.raises(RecoveryError, match="HR-305"):
        SINK.write(rows(spark, 2), Batch("rides", "q2", 0, target))
    assert held(spark, target) == [1]
