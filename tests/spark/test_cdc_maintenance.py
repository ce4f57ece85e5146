"""Captured tables are looked after by the flow that writes them: small files, old files, old tombstones."""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdc_changes import BEGAN, frame, into, row
from headrace.cdc.apply.maintenance import CdcMaintenance
from headrace.cdc.apply.mirror import Mirror
from headrace.errors import FlowError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}


@pytest.mark.spark
def test_maintenance_compacts_small_files_and_removes_old_files_and_tombstones(spark: SparkSession, tmp_path: Path):
    for number in range(3):
        changes = [row("c", 10 * number + 1, number, number)] + ([row("d", 10 * number + 2, 0)] if number == 1 else [])
        Mirror().apply(frame(spark, changes, 100 * number), into(tmp_path, number))
    last = into(tmp_path, 2)
    small = files(tmp_path / "orders")

    assert not CdcMaintenance(small_files=48).compact(spark, last.location, last.cache)
    assert CdcMaintenance(small_files=1).compact(spark, last.location, last.cache)
    assert not CdcMaintenance(small_files=1).compact(spark, last.location, last.cache)
    joined = files(tmp_path / "orders") - small
    assert len(joined) == 1

    # What an attempt left that was killed hours ago goes. What the last hour's versions hold stays, for their readers.
    left = tmp_path / "orders" / "part-00000-killed.snappy.parquet"
    left.write_bytes(b"PAR1")
    os.utime(left, (time.time() - 2 * 3600,) * 2)
    maintenance, now = CdcMaintenance(retention="1 hour", tombstones="30 days"), BEGAN + dt.timedelta(days=29)
    assert not maintenance.clean(spark, last, now - dt.timedelta(hours=23), now)
    assert left.exists()
    assert maintenance.clean(spark, last, now - dt.timedelta(days=1), now)
    assert files(tmp_path / "orders") == small | joined
    (detail,) = spark.sql(f"DESCRIBE DETAIL delta.`{last.location}`").collect()
    assert detail["properties"]["delta.deletedFileRetentionDuration"] == "interval 3600 seconds"
    assert spark.read.format("delta").load(last.tombstones).count() == 1
    assert CdcMaintenance(retention=None).clean(spark, last, now, now + dt.timedelta(days=2))
    assert spark.read.format("delta").load(last.tombstones).count() == 0
    assert {item.id for item in spark.read.format("delta").load(last.location).collect()} == {1, 2}


def test_files_that_a_batch_under_way_needs_are_never_declared_old():
    with pytest.raises(FlowError) as refused:
        CdcMaintenance(retention="10 minutes")

    assert refused.value.code == "HR-249"
