"""Delta tables are looked after by the flow that writes them: properties, small files, old files."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace import DeltaAppend, DeltaUpsert, Target
from headrace.flow.sink import Batch
from headrace.sinks.table_policy import TablePolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KEPT = {"delta.logRetentionDuration": "interval 90 days"}
NOW = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)


def operations(spark: SparkSession, location: str) -> list[str]:
    return [row.operation for row in spark.sql(f"DESCRIBE HISTORY delta.`{location}`").collect()]


def properties(spark: SparkSession, location: str) -> dict[str, str]:
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{location}`").first()
    assert detail is not None
    return dict(detail["properties"])


@pytest.mark.parametrize("kind", ["append", "upsert"])
def test_a_table_gets_its_properties_and_its_small_files_are_joined(spark: SparkSession, tmp_path: Path, kind: str):
    target = Target("t", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))
    first, then = TablePolicy(KEPT, small_files=0), TablePolicy({**KEPT, "delta.appendOnly": "false"}, small_files=2)

    def sink(policy: TablePolicy) -> DeltaAppend | DeltaUpsert:
        return DeltaAppend("t", policy=policy) if kind == "append" else DeltaUpsert("t", key=("id",), policy=policy)

    for number in range(3):
        sink(first).write(spark.range(number, number + 1).coalesce(1), Batch("f", "q", number, target))
    location = target.table("t")
    assert properties(spark, location).items() >= KEPT.items()
    assert "OPTIMIZE" not in operations(spark, location)

    # A policy that changed holds from the next start on, and one that did not changes nothing.
    sink(then).prepare(spark, target)
    sink(then).prepare(spark, target)
    assert properties(spark, location)["delta.appendOnly"] == "false"
    assert operations(spark, location).count("SET TBLPROPERTIES") == 1
    sink(then).write(spark.range(3, 4).coalesce(1), Batch("f", "q", 3, target))
    assert operations(spark, location)[0] == "OPTIMIZE"
    assert {row.id for row in spark.read.format("delta").load(location).collect()} == {0, 1, 2, 3}


def test_old_files_are_removed_when_it_is_time_and_not_before(spark: SparkSession, tmp_path: Path):
    location = str(tmp_path / "t")
    spark.range(3).coalesce(1).write.format("delta").save(location)
    left = tmp_path / "t" / "part-00000-killed.snappy.parquet"
    left.write_bytes(b"PAR1")
    os.utime(left, (0, 0))
    policy = TablePolicy(small_files=0, keep="1 hour", clean_every="1 day")

    # The first look only notes the time: a table that was never cleaned has nothing old that anybody knows of.
    policy.look_after(spark, location, NOW)
    policy.look_after(spark, location, NOW + dt.timedelta(hours=23))
    assert left.exists()
    policy.look_after(spark, location, NOW + dt.timedelta(days=1))
    assert not left.exists()
    assert spark.read.format("delta").load(location).count() == 3
    TablePolicy(small_files=0, keep=None).look_after(spark, location, NOW + dt.timedelta(days=3))
