"""Ride analytics on a real broker, without an interruption: every row against the plain-Python model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.audit.flow_audit import late_table, quarantine_table
from headrace.demos.rides import compare
from headrace.operate.run import Application
from headrace.patterns.rides.flows import flows
from systems.killed_driver import target_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

from systems.rides import filled, past_rides, settings_for

pytestmark = [pytest.mark.stack, pytest.mark.spark]


def test_every_row_of_every_sink_equals_the_model(broker: Broker, spark: SparkSession, tmp_path: Path):
    # 1.5 hours at 5 records a second, in 6 batches of about 17 minutes: windows close, and late rows come after them.
    settings = settings_for("to-the-end")
    target = target_for(tmp_path, broker.bootstrap)
    sent = filled(target, settings, past_rides(rate=5, oversized=True))

    figures = Application(spark, target, flows(settings)).run()

    assert {name: figure.error for name, figure in figures.items()} == dict.fromkeys(figures)
    assert {figure.rows_in for figure in figures.values()} == {sent}
    comparison = compare(spark, target, flows(settings), settings)
    assert comparison.differences == []
    assert comparison.repeated == {}
    # Equal and empty would prove nothing.
    assert all(rows > 0 for rows in comparison.rows.values()), comparison.rows
    reasons = {row.reason for row in spark.read.format("delta").load(quarantine_table(target, "surge")).collect()}
    assert reasons >= {
        "null_value",
        "too_large",
        "null_key",
        "malformed_json",
        "missing:ride_id",
        "wrong_type:fare_amount",
        "wrong_type:event_time",
        "event_time_in_future",
    }
    late = spark.read.format("delta").load(late_table(target, "city_rides"))
    assert figures["city_rides"].late == late.count()
    assert late.where("window_end > watermark").count() == 0
