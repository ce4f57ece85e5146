"""Ride analytics on a real broker, every row of every sink against the plain-Python model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from killed_driver import forget_last_commit, run_until_killed, target_for
from past_traffic import Past

from headrace.clients.topics import create_topics
from headrace.flow.flow import Flow
from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.observe.flow_audit import late_table, quarantine_table
from headrace.operate.demos.rides import compare
from headrace.operate.generate import generate
from headrace.operate.run import Application
from headrace.patterns.rides.flows import RideSettings, flows
from headrace.patterns.rides.generator import generator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]


def settings_for(name: str) -> RideSettings:
    return RideSettings(
        topic=f"{name}-events",
        city_topic=f"{name}-city",
        surge_topic=f"{name}-surge",
        alerts_topic=f"{name}-alerts",
        city_trigger=AvailableNow(),
        driver_trigger=AvailableNow(),
        max_offsets=5000,
    )


def flows_of(name: str) -> list[Flow]:
    return flows(settings_for(name))


def past_rides(rate: float, *, oversized: bool = False) -> Past:
    records = generator(rate=rate, late=0.03, duplicates=0.01, malformed=0.01, seed=11, oversized=oversized)
    return Past(records, hours=1.5)


def filled(target: Target, settings: RideSettings, records: Past) -> int:
    """Make the topics, send the records, and return how many there are."""
    # Large enough for the 5 MB record: the flow is to judge it, not the topic.
    create_topics(target.kafka, dict.fromkeys(settings.topics, 2), {"max.message.bytes": "10485760"})
    return generate(records, target, topic=settings.topic).records


def test_every_row_of_every_sink_equals_the_model(broker: Broker, spark: SparkSession, tmp_path: Path):
    # 1.5 hours at 5 records a second, in 6 batches of about 17 minutes: windows close, and late rows come after them.
    settings = settings_for("to-the-end")
    target = target_for(tmp_path, broker.bootstrap)
    sent = filled(target, settings, past_rides(rate=5, oversized=True))

    figures = Application(spark, target, flows(settings)).run()

    assert {name: figure.error for name, figure in figures.items()} == dict.fromkeys(figures)
    assert {figure.rows_in for figure in figures.values()} == {sent}
    found = compare(spark, target, flows(settings), settings)
    assert found.differences == []
    assert found.repeated == {}
    # Equal and empty would prove nothing.
    assert all(rows > 0 for rows in found.rows.values()), found.rows
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


def test_a_driver_that_is_killed_in_the_middle_leaves_the_same_tables(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    settings = settings_for("killed")
    target = target_for(tmp_path, broker.bootstrap)
    filled(target, settings, past_rides(rate=4))
    # Its second batch is in the table; the third, and those of the other flows, are under way.
    run_until_killed("test_rides", "killed", target, flow="driver_metrics", batch=1)

    Application(spark, target, flows(settings)).run()

    found = compare(spark, target, flows(settings), settings)
    assert found.differences == []
    assert all(rows > 0 for place, rows in found.rows.items() if not place.startswith("late rows")), found.rows

    # Now as if it had died after the sinks had the last batch, before Spark noted it: the sinks skip the batch, and
    # the state that it holds is committed all the same.
    forget_last_commit(target, "driver_metrics")
    again = Application(spark, target, [flow for flow in flows(settings) if flow.name == "driver_metrics"]).run()

    assert (again["driver_metrics"].error, again["driver_metrics"].batches) == (None, 1)
    assert compare(spark, target, flows(settings), settings).differences == []
