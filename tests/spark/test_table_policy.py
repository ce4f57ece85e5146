"""Delta tables are looked after by the flow that writes them: properties, small files, old files."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace import DeltaAppend, DeltaSource, DeltaUpsert, Target
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch
from headrace.sinks.delta.policy import TablePolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

RETAINED = {"delta.logRetentionDuration": "interval 90 days"}
NOW = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
HOUR, DAY = 3600, 86_400


def dated_back(path: Path, seconds: int) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def operations(spark: SparkSession, location: str) -> list[str]:
    return [row.operation for row in spark.sql(f"DESCRIBE HISTORY delta.`{location}`").collect()]


def properties(spark: SparkSession, location: str) -> dict[str, str]:
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{location}`").first()
    assert detail is not None
    return dict(detail["properties"])


@pytest.mark.parametrize("kind", ["append", "upsert"])
def test_a_table_gets_its_properties_and_its_small_files_are_joined(spark: SparkSession, tmp_path: Path, kind: str):
    target = Target("t", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))
    first = TablePolicy(RETAINED, small_files=0, retention="60 days")
    then = TablePolicy({**RETAINED, "delta.appendOnly": "false"}, small_files=2, retention=None)

    def sink(policy: TablePolicy) -> DeltaAppend | DeltaUpsert:
        return DeltaAppend("t", policy=policy) if kind == "append" else DeltaUpsert("t", key=("id",), policy=policy)

    for number in range(3):
        sink(first).write(spark.range(number, number + 1).coalesce(1), Batch("f", "q", number, target))
    location = target.table("t")
    created = properties(spark, location)
    assert created.items() >= {**RETAINED, "delta.deletedFileRetentionDuration": "interval 60 days"}.items()
    assert "OPTIMIZE" not in operations(spark, location)

    # A policy that changed holds from the next start on, and one that did not changes nothing.
    sink(then).prepare(spark, target, RunCache())
    sink(then).prepare(spark, target, RunCache())
    assert properties(spark, location)["delta.appendOnly"] == "false"
    assert operations(spark, location).count("SET TBLPROPERTIES") == 1
    sink(then).write(spark.range(3, 4).coalesce(1), Batch("f", "q", 3, target))
    assert operations(spark, location)[0] == "OPTIMIZE"
    assert {row.id for row in spark.read.format("delta").load(location).collect()} == {0, 1, 2, 3}

    # No file was removed, so that versions can be read again, however old they are.
    for entry in (tmp_path / "t" / "_delta_log").glob("*.json"):
        dated_back(entry, 89 * DAY)
    again = DeltaSource("t", max_files_per_trigger=1, starting_version=0)
    table_id = spark.sql(f"DESCRIBE DETAIL delta.`{location}`").first()["id"]  # type: ignore[index]
    # Up to where the properties changed. A table that is merged into is made by a commit of its own.
    last = {"append": 3, "upsert": 4}[kind]
    end = {"reservoirId": table_id, "reservoirVersion": last, "index": -1, "isStartingVersion": False}
    read = again.batch(spark.newSession(), target, again.start_offset(json.dumps(end)) or "", json.dumps(end))
    assert {row.id for row in read.collect()} == {0, 1, 2}


def test_old_files_are_removed_when_it_is_time_and_not_before(spark: SparkSession, tmp_path: Path):
    location, cache = str(tmp_path / "t"), RunCache()
    spark.range(3).coalesce(1).write.format("delta").save(location)
    # What attempts left that were killed, two hours ago and eight days: Delta's own rule is a week.
    left = {hours: tmp_path / "t" / f"part-00000-{hours}.snappy.parquet" for hours in (2, 8 * 24)}
    for hours, path in left.items():
        path.write_bytes(b"PAR1")
        dated_back(path, hours * HOUR)
    longer, policy = (
        TablePolicy(small_files=0, retention=collect, clean_every="1 day") for collect in ("30 days", "1 hour")
    )

    # The first look only notes the time: a table that was never cleaned has nothing old that anybody knows of.
    policy.run_maintenance(spark, location, cache, NOW)
    policy.run_maintenance(spark, location, cache, NOW + dt.timedelta(hours=23))
    assert all(path.exists() for path in left.values())
    longer.run_maintenance(spark, location, cache, NOW + dt.timedelta(days=1))
    assert all(path.exists() for path in left.values())
    policy.run_maintenance(spark, location, cache, NOW + dt.timedelta(days=2))
    assert not any(path.exists() for path in left.values())
    assert spark.read.format("delta").load(location).count() == 3
    TablePolicy(small_files=0, retention=None).run_maintenance(spark, location, cache, NOW + dt.timedelta(days=4))
