"""The flows of the IoT pattern as they are declared, without a broker, against tables worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

import live_run
import pytest
from pyspark.sql import functions as F

from headrace import AsFastAsPossible, FileSource, Input, RocksDB, Target
from headrace.patterns.iot.flows import READING, IotSettings, device_metrics, flows
from headrace.testing import Arrive, Crash, EndOfInput, Keyed, Point, rehearse

if TYPE_CHECKING:
    from pathlib import Path

    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)
METRICS, SILENT = flows()


def reading(device: str, minute: float, temperature: str = "20", humidity: str = "50") -> Keyed:
    fields = {"temperature": Decimal(temperature), "humidity": Decimal(humidity)}
    return Keyed(device, {"device_id": device, **fields, "ts": NOON + timedelta(minutes=minute)})


def test_figures_per_device_with_the_alert_that_follows(spark: SparkSession, tmp_path: Path):
    actual = rehearse(
        METRICS,
        [
            Arrive(reading("d1", 0, "20.05"), reading("d1", 1, "20.06"), reading("d2", 1, humidity="91")),
            Arrive(reading("d1", 4, "80.01", "99")),
        ],
        spark=spark,
        folder=tmp_path,
    )
    rows = actual.newest("window_start", "device_id")
    assert sorted((row.device_id, row.avg_temp, row.max_temp, row.reading_count, row.alert) for row in rows) == [
        ("d1", Decimal("40.040000"), Decimal("80.01"), 3, "HIGH_TEMP"),
        ("d2", Decimal("20.000000"), Decimal("20.00"), 1, "HIGH_HUMIDITY"),
    ]


def test_a_silence_that_ends_exactly_at_the_watermark_is_reported_once_despite_a_crash(
    spark: SparkSession, tmp_path: Path
):
    actual = rehearse(
        SILENT,
        [
            Arrive(reading("d1", 0), reading("d2", 0), reading("d2", 10)),
            # The watermark is two minutes behind: 12:15 from the next batch on, which is when d1 was silent too long.
            Arrive(reading("d2", 17)),
            Arrive(reading("d2", 17.5)),
            Crash(Point.AFTER_SINK),
            Arrive(reading("d1", 30), reading("d2", 30)),
            EndOfInput(),
        ],
        spark=spark,
        folder=tmp_path,
    )
    reported = [[(row.device_id, row.status, row.silent_seconds) for row in batch] for batch in actual.batches]
    assert reported[2] == [("d1", "SILENT", 900)]
    assert sorted(item for batch in reported for item in batch) == [
        ("d1", "BACK", 1800),
        ("d1", "SILENT", 900),
        # The input ended.
        ("d1", "SILENT", 900),
        ("d2", "SILENT", 900),
    ]
    assert actual.restarts == 1


def test_devices_that_are_all_silent_are_reported_by_idle_ticks_alone(spark: SparkSession, tmp_path: Path):
    """The watermark is 2 minutes and 2 seconds behind the clock while nothing comes."""
    (tmp_path / "in").mkdir()
    last = {"d1": 0, "d2": 1}
    readings = [
        {"device_id": device, "temperature": 20, "humidity": 50, "ts": str(live_run.NOON + timedelta(minutes=minute))}
        for device, minute in last.items()
    ]
    (tmp_path / "in" / "0.json").write_text("\n".join(map(json.dumps, readings)))
    declared = flows(IotSettings(idle_timeout="2 seconds", trigger=AsFastAsPossible()))[1]
    (input_,) = declared.named_inputs.values()
    sink, clock = live_run.Brittle(), live_run.Hands(1)
    rows = Input(FileSource(str(tmp_path / "in"), "json", READING), watermark=input_.watermark)
    flow = replace(declared, inputs=rows, sink=sink, state=RocksDB(shuffle_partitions=1))
    target = Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    with live_run.live(spark, target, flow, clock) as running:
        running.wait_rows(read=2)
        clock.minute = 17.5
        running.wait_rows(written=1)
        assert [(row[0], row[1], row[4]) for row in sink.rows()] == [("d1", "SILENT", 900)]
        clock.minute = 18.5
        running.wait_rows(written=2)
    assert [(row[0], row[1], row[4]) for row in sink.rows()] == [("d1", "SILENT", 900), ("d2", "SILENT", 900)]


def test_a_hot_device_is_one_row_per_task_and_window_when_rows_are_handed_on(spark: SparkSession):
    """90 % of 20,000 readings are of one device: four tasks hand on four rows of it, as of each of the others."""
    tasks, devices = 4, 11
    number = F.col("id")
    device = F.when(number % 10 > 0, "hot").otherwise(F.concat(F.lit("d"), (number / 10).cast("long") % (devices - 1)))
    readings = spark.range(0, 20_000, numPartitions=tasks).select(
        device.alias("device_id"),
        (number % 50).cast("decimal(6,2)").alias("temperature"),
        F.lit(50).cast("decimal(5,2)").alias("humidity"),
        F.lit(NOON).alias("ts"),
    )
    figures = partial(device_metrics, window="5 minutes", high_temp=80, high_humidity=90)(readings)

    rows = figures.collect()

    assert {row.device_id: row.reading_count for row in rows}["hot"] == 18_000
    assert shuffled_rows(figures._jdf.queryExecution().executedPlan()) == [tasks * devices]


def shuffled_rows(plan: JavaObject) -> list[int]:
    """Return how many rows each exchange of a plan that has run was given."""
    name = plan.getClass().getSimpleName()
    if name == "AdaptiveSparkPlanExec":
        return shuffled_rows(plan.executedPlan())
    if name in ("ShuffleQueryStageExec", "ResultQueryStageExec"):
        return shuffled_rows(plan.plan())
    own = [plan.metrics().apply("shuffleRecordsWritten").value()] if name == "ShuffleExchangeExec" else []
    children = plan.children()
    return own + [rows for at in range(children.size()) for rows in shuffled_rows(children.apply(at))]
