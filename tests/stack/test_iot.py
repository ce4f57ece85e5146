"""The IoT pattern on a real broker, every row of every sink against the plain-Python model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from killed_driver import forget_last_commit, run_until_killed, target_for
from past_traffic import NOW, Past

from headrace.clients.topics import create_topics
from headrace.flow.flow import Flow
from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.observe.flow_audit import late_table, quarantine_table
from headrace.operate.compare import Comparison, table_rows, topic_rows
from headrace.operate.demos.iot import compare
from headrace.operate.generate import Generated, generate
from headrace.operate.late_repair import repairing
from headrace.operate.replayed import consumed
from headrace.operate.run import Application
from headrace.patterns.iot.flows import IotSettings, flows
from headrace.patterns.iot.generator import generator
from headrace.patterns.iot.model import DEVICE_METRICS, recomputed
from headrace.patterns.traffic import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]

MOST = 1500


def settings_for(name: str) -> IotSettings:
    return IotSettings(
        topic=f"{name}-telemetry",
        alerts_topic=f"{name}-alerts",
        status_topic=f"{name}-status",
        trigger=AvailableNow(),
        max_offsets=MOST,
    )


def flows_of(name: str) -> list[Flow]:
    return flows(settings_for(name))


@dataclass(frozen=True)
class Returned:
    """The past of a plant, and at its end a device that was offline for six hours and sends what it kept."""

    topic: ClassVar[str] = "unused"

    past: Past

    def events(self, from_: datetime, until: datetime | None = None) -> Iterator[Generated]:
        yield from self.past.events(from_, until)
        now = round(NOW.timestamp() * 1000)
        for minute in range(0, 360, 3):
            ts = NOW - timedelta(hours=6) + timedelta(minutes=minute)
            fields = {"device_id": "dev-back", "temperature": 85.5, "humidity": 40, "ts": ts.isoformat()}
            yield Record(b"dev-back", json.dumps(fields).encode(), round(ts.timestamp() * 1000), now, "returned")


def filled(target: Target, settings: IotSettings, *, rate: float) -> int:
    """Make the topics, send the records, and return how many there are."""
    create_topics(target.kafka, dict.fromkeys(settings.topics, 2))
    records = generator(rate=rate, late=0.02, duplicates=0.01, malformed=0.01, seed=11)
    return generate(Returned(Past(records, hours=1.5)), target, topic=settings.topic).records


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
    found, spread = compare(spark, target, flows(settings), settings)
    assert found.differences == []
    assert found.repeated == {}
    # Equal and empty would prove nothing.
    assert all(rows > 0 for rows in found.rows.values()), found.rows
    alerts = {(row["alert"]) for row in topic_rows(target, settings.alerts_topic)}
    assert alerts == {"HIGH_TEMP", "HIGH_HUMIDITY"}
    assert {row["status"] for row in topic_rows(target, settings.status_topic)} == {"SILENT", "BACK"}
    # The bound holds: every batch but the last is as large as it may be, split between partitions, and none is larger.
    assert MOST * 0.99 < int(str(spread["largest_batch"])) <= MOST
    assert sent > 4 * MOST
    assert spread["hottest_device"] == "dev-0000"
    reasons = {
        row.reason for row in spark.read.format("delta").load(quarantine_table(target, "device_metrics")).collect()
    }
    assert reasons >= {"null_key", "malformed_json", "missing:humidity", "wrong_type:temperature"}

    # The readings that the device kept for six hours are late, but for those of the last two batches.
    late = spark.read.format("delta").load(late_table(target, "device_metrics"))
    kept = late.where("row like '%dev-back%'").count()
    assert kept > 90
    gold_flow = next(flow for flow in flows(settings) if flow.name == "device_metrics")
    with repairing(spark, target, gold_flow) as work:
        plan = work.plan()
        work.apply(plan)

    assert plan.left == ()
    assert sum(plan.windows.values()) == figures["device_metrics"].late
    whole = recomputed(consumed(target, settings.topic), DEVICE_METRICS)
    assert sum(row.device_id == "dev-back" and row.alert == "HIGH_TEMP" for row in whole) >= 70
    after = Comparison()
    after.add("gold", [asdict(row) for row in whole], table_rows(spark, "delta", target.table(settings.gold_table)))
    assert after.differences == []


def test_a_driver_that_is_killed_in_the_middle_leaves_the_same_tables_and_tells_each_silence_once(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    settings = settings_for("iot-killed")
    target = target_for(tmp_path, broker.bootstrap)
    filled(target, settings, rate=1)
    # Its second batch is in the topic; the third, and those of the other flow, are under way.
    run_until_killed("test_iot", "iot-killed", target, flow="silent_devices", batch=1)

    Application(spark, target, flows(settings)).run()

    found, _ = compare(spark, target, flows(settings), settings)
    assert found.differences == []
    assert all(rows > 0 for place, rows in found.rows.items() if not place.startswith("late rows")), found.rows

    # Now as if it had died after the sinks had the last batch, before Spark noted it: the sinks skip the batch.
    forget_last_commit(target, "device_metrics")
    again = Application(spark, target, [replace(flows(settings)[0])]).run()

    assert (again["device_metrics"].error, again["device_metrics"].batches) == (None, 1)
    assert compare(spark, target, flows(settings), settings)[0].differences == []
