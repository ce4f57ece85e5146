"""The medallion on a real broker: every row of every layer against the model, and made again from bronze."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from killed_driver import run_until_killed, target_for
from past_traffic import NOW, Past

from headrace.clients.topics import create_topics
from headrace.flow.flow import Flow
from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.observe.flow_audit import quarantine_table
from headrace.operate.compare import Comparison, Row, table_rows
from headrace.operate.demos.medallion import compare
from headrace.operate.generate import generate
from headrace.operate.redrive import redriving
from headrace.operate.run import Application, FlowFigures
from headrace.patterns.medallion.flows import MedallionSettings, flows
from headrace.patterns.medallion.generator import generator
from headrace.sinks.table_policy import TablePolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]


def settings_for(name: str) -> MedallionSettings:
    return MedallionSettings(
        topic=f"{name}-orders",
        max_offsets=1500,
        max_files=4,
        bronze_trigger=AvailableNow(),
        silver_trigger=AvailableNow(),
        gold_trigger=AvailableNow(),
        silver_policy=TablePolicy({"delta.logRetentionDuration": "interval 3650 days"}, keep=None, small_files=2),
    )


def flows_of(name: str) -> list[Flow]:
    return flows(settings_for(name))


def filled(target: Target, settings: MedallionSettings, *, rate: float) -> int:
    """Make the topic, send orders of an hour and a half, and return how many there are."""
    create_topics(target.kafka, {settings.topic: 2})
    records = generator(rate=rate, late=0.03, duplicates=0.02, malformed=0.02, seed=11)
    return generate(Past(records, hours=1.5), target, topic=settings.topic).records


def send(target: Target, topic: str, order: Mapping[str, object], headers: Mapping[str, bytes]) -> None:
    producer = Producer({"bootstrap.servers": target.kafka["bootstrap.servers"], "partitioner": "murmur2_random"})
    now = round(NOW.timestamp() * 1000)
    producer.produce(topic, json.dumps(order).encode(), b"c-1", timestamp=now, headers=dict(headers))
    assert producer.flush(10) == 0


def run_layers(spark: SparkSession, target: Target, layers: list[Flow]) -> dict[str, FlowFigures]:
    """Run one layer to its end after the other."""
    figures = {flow.name: Application(spark, target, [flow]).run()[flow.name] for flow in layers}
    assert {name: each.error for name, each in figures.items()} == dict.fromkeys(figures)
    return figures


def test_every_row_of_every_layer_equals_the_model_and_bronze_makes_silver_and_gold_again(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    settings = settings_for("layers")
    target = target_for(tmp_path, broker.bootstrap)
    sent = filled(target, settings, rate=1)
    # An order of last year: no watermark stands in its way to gold.
    old = {"order_id": "old", "customer_id": "c-1", "country": "PT", "amount": 12.5, "items": 1}
    ordered_at = (NOW - timedelta(days=365)).isoformat()
    send(target, settings.topic, {**old, "ordered_at": ordered_at}, {"trace": b"\x00\xff", "from": b"till 7"})

    figures = run_layers(spark, target, flows(settings))

    found, expected = compare(spark, target, flows(settings), settings)
    assert found.differences == []
    assert all(rows > 0 for place, rows in found.rows.items() if not place.startswith("late rows")), found.rows
    assert figures["bronze"].rows_out == sent + 1
    assert figures["silver"].rules == expected.broken
    assert {name: rows > 0 for name, rows in expected.broken.items()} == {
        **dict.fromkeys(expected.broken, True),
        "sane_amount": False,
    }
    assert set(figures["silver"].bad) >= {
        "rule:positive_amount",
        "rule:not_from_the_future",
        "malformed_json",
        "null_value",
    }
    gold = table_rows(spark, "delta", target.table(settings.gold_table))
    assert [(row["orders"], str(row["revenue"])) for row in gold if row["country"] == "PT"] == [(1, "12.50")]
    # Its small files were joined between batches, and readers of the versions before saw nothing of it.
    made = spark.sql(f"DESCRIBE HISTORY delta.`{target.table(settings.silver_table)}`").collect()
    assert "OPTIMIZE" in {row.operation for row in made}
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{target.table(settings.bronze_table)}`").first()
    assert detail is not None
    assert detail["properties"]["delta.logRetentionDuration"] == "interval 3650 days"

    # Everything behind bronze goes, and is made again, in other batches.
    before = {path: _kept(spark, target, path) for path in (settings.silver_table, settings.gold_table)}
    for name in ("silver", "gold"):
        shutil.rmtree(target.flow_folder(name))
        shutil.rmtree(target.table(f"_headrace/{name}"), ignore_errors=True)
    for path in before:
        shutil.rmtree(target.table(path))
    rebuilt = flows(replace(settings, max_files=7))
    run_layers(spark, target, rebuilt[1:])

    after = Comparison()
    for path, rows in before.items():
        after.add(path, rows, _kept(spark, target, path))
    assert after.differences == []
    assert compare(spark, target, rebuilt, settings)[0].differences == []

    # A rule turns out to be wrong, and is taken back: what it kept out is driven again, by way of bronze.
    loose = flows(replace(settings, rules=tuple(rule for rule in settings.rules if rule.name != "positive_amount")))
    filed = table_rows(spark, "delta", quarantine_table(target, "silver"))
    orders = [_order(row) for row in filed if row["reason"] == "rule:positive_amount"]
    # Test orders are dropped now, as ever.
    refused = {order["order_id"] for order in orders if not order["customer_id"].startswith("test-")}
    assert refused
    assert not refused & {row["order_id"] for row in before[settings.silver_table]}
    with redriving(spark, target, loose[1]) as again:
        assert again.apply(again.plan("rule:positive_amount")) == len(orders)
    run_layers(spark, target, loose)
    assert refused <= {row["order_id"] for row in _kept(spark, target, settings.silver_table)}


def _order(row: Row) -> dict[str, str]:
    value = row["value"]
    assert isinstance(value, bytes | bytearray)
    return json.loads(bytes(value))


def _kept(spark: SparkSession, target: Target, path: str) -> list[Row]:
    return table_rows(spark, "delta", target.table(path))


def test_a_driver_that_is_killed_in_the_middle_leaves_the_same_layers(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    settings = settings_for("layers-killed")
    target = target_for(tmp_path, broker.bootstrap)
    filled(target, settings, rate=1)
    # Silver waits for bronze's table, and dies with its first batch; bronze and gold are under way.
    run_until_killed("test_medallion", "layers-killed", target, flow="silver", batch=0)

    run_layers(spark, target, flows(settings))

    found, _ = compare(spark, target, flows(settings), settings)
    assert found.differences == []
    assert all(rows > 0 for place, rows in found.rows.items() if not place.startswith("late rows")), found.rows
