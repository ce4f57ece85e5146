"""The IoT pattern on a real broker, without an interruption: every row against the plain-Python model."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.audit.flow_audit import late_table, quarantine_table
from headrace.demos.compare import Comparison, table_rows, topic_rows
from headrace.demos.iot import IotDemo
from headrace.demos.protocol import DemoContext, DemoSettings
from headrace.demos.records_demo import read_records
from headrace.operate.run import Application
from headrace.patterns.iot.flows import flows
from model_examples import DEVICE_METRICS, recompute
from systems.killed_driver import target_for
from systems.past_traffic import NOW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

from systems.iot import MOST, filled, repaired, settings_for, shown_is_what_is_there, the_bound_holds, to_ms

pytestmark = [pytest.mark.stack, pytest.mark.spark]


def test_every_row_equals_the_model_and_a_device_that_was_offline_for_hours_is_repaired_into_gold(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    # 1.5 hours at 1.2 readings a second, in batches of about 20 minutes: windows close, and late rows come after them.
    settings = settings_for("iot-whole")
    target = target_for(tmp_path, broker.bootstrap)
    sent = filled(target, settings, rate=1.2)

    figures = Application(spark, target, flows(settings)).run()

    assert {name: figure.error for name, figure in figures.items()} == dict.fromkeys(figures)
    assert {figure.rows_in for figure in figures.values()} == {sent}
    demo, context = (
        IotDemo(settings=settings),
        DemoContext(DemoSettings(rate=50, backfill=timedelta(seconds=2)), target),
    )
    verdict = demo.compare(context, spark)
    comparison = verdict.comparison
    assert comparison.differences == []
    assert comparison.repeated == {}
    # Equal and empty would prove nothing.
    assert all(rows > 0 for rows in comparison.rows.values()), comparison.rows
    alerts = {(row["alert"]) for row in topic_rows(target, settings.alerts_topic)}
    assert alerts == {"HIGH_TEMP", "HIGH_HUMIDITY"}
    assert {row["status"] for row in topic_rows(target, settings.status_topic)} == {"SILENT", "BACK"}
    the_bound_holds(spark, target, settings, verdict.as_dict()["skew"])
    assert sent > 4 * MOST
    reasons = {
        row.reason for row in spark.read.format("delta").load(quarantine_table(target, "device_metrics")).collect()
    }
    assert reasons >= {"null_key", "malformed_json", "missing:humidity", "wrong_type:temperature"}

    # The readings that the device buffered for six hours are late, but for those of the last two batches.
    late = spark.read.format("delta").load(late_table(target, "device_metrics"))
    ledger_rows = late.where("row like '%dev-back%'").count()
    assert ledger_rows > 90
    plan = repaired(tmp_path / "project", target)
    assert (plan["ok"], plan["left"]) == (True, [])
    assert sum(window["rows"] for window in plan["windows"]) == figures["device_metrics"].late
    complete = recompute(read_records(target, settings.topic), DEVICE_METRICS)
    assert sum(row.device_id == "dev-back" and row.alert == "HIGH_TEMP" for row in complete) >= 70
    after = Comparison()
    after.add("gold", [asdict(row) for row in complete], table_rows(spark, "delta", target.table(settings.gold_table)))
    assert after.differences == []
    shown_is_what_is_there(spark, demo, context, [row for row in complete if row.window_start == to_ms(NOW) - 600_000])
