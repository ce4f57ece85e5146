"""The medallion on a real broker: every row of every layer against the model, and made again from bronze."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from killed_driver import forget_last_commit, run_until_killed, target_for
from past_traffic import NOW, Past

from headrace.clients.filesystem import LocalFiles
from headrace.clients.topics import create_topics
from headrace.flow.flow import ONLY, Flow
from headrace.flow.levers import AvailableNow, Every
from headrace.flow.target import Target
from headrace.observe.flow_audit import quarantine_table
from headrace.operate.compare import Comparison, Row, table_rows
from headrace.operate.demos.medallion import MedallionDemo, compare
from headrace.operate.generate import generate
from headrace.operate.redrive import redriving
from headrace.operate.replayed import consumed
from headrace.operate.run import Application, FlowFigures
from headrace.operate.scene import DemoSettings, Scene
from headrace.patterns.medallion import model
from headrace.patterns.medallion.flows import MedallionSettings, flows
from headrace.patterns.medallion.generator import generator
from headrace.runtime.checkpoint import Checkpoint
from headrace.sinks.table_policy import TablePolicy
from headrace.sources.bronze import BronzeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

KEPT = {"delta.logRetentionDuration": "interval 3650 days", "delta.checkpointInterval": "100"}

pytestmark = [pytest.mark.stack, pytest.mark.spark]


def settings_for(name: str) -> MedallionSettings:
    return MedallionSettings(
        topic=f"{name}-orders",
        max_offsets=1500,
        max_files=4,
        bronze_trigger=AvailableNow(),
        silver_trigger=AvailableNow(),
        gold_trigger=AvailableNow(),
        silver_policy=TablePolicy(KEPT, keep=None, small_files=2),
    )


def flows_of(name: str) -> list[Flow]:
    """Return the flows of the driver that is killed: bronze has minutes to go, and the others go on while it does."""
    slow, soon = Every("5 seconds"), Every("1 second")
    small = replace(settings_for(name), max_offsets=100, bronze_trigger=slow)
    return flows(replace(small, silver_trigger=soon, gold_trigger=soon))


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
    # Against two rules: the second one would leave it out if it were driven again.
    tried = {**old, "order_id": "tried", "customer_id": "test-1", "amount": 0}
    send(target, settings.topic, {**tried, "ordered_at": ordered_at}, {})

    figures = run_layers(spark, target, flows(settings))

    demo, scene = MedallionDemo(settings=settings), Scene(DemoSettings(), target, figures)
    verdict = demo.compare(scene, spark)
    found = verdict.comparison
    assert found.differences == []
    assert all(rows > 0 for place, rows in found.rows.items() if not place.startswith("late rows")), found.rows
    assert figures["bronze"].rows_out == sent + 2
    assert found.rows["rules of silver"] == len(settings.rules)
    assert verdict.figures["rules"] == figures["silver"].rules
    assert {name for name, rows in figures["silver"].rules.items() if not rows} == {"sane_amount"}
    assert set(figures["silver"].bad) >= {
        "rule:positive_amount",
        "rule:not_from_the_future",
        "malformed_json",
        "null_value",
    }
    gold = table_rows(spark, "delta", target.table(settings.gold_table))
    assert [(row["orders"], str(row["revenue"])) for row in gold if row["country"] == "PT"] == [(1, "12.50")]
    (told,) = demo.status(scene, spark)
    assert f"{settings.bronze_table} {sent + 2:,}, " in told
    assert told.endswith(f"{settings.gold_table} {len(gold):,}")
    # Its small files were joined between batches, and readers of the versions before saw nothing of it.
    made = spark.sql(f"DESCRIBE HISTORY delta.`{target.table(settings.silver_table)}`").collect()
    assert "OPTIMIZE" in {row.operation for row in made}
    (detail,) = spark.sql(f"DESCRIBE DETAIL delta.`{target.table(settings.bronze_table)}`").collect()
    assert detail["properties"].items() >= KEPT.items()

    # A rule turns out to be too strict, and only warns from now on: what it kept out is driven again, by way of bronze.
    warned = (replace(rule, action="warn") if rule.name == "positive_amount" else rule for rule in settings.rules)
    loose = replace(settings, rules=tuple(warned), max_files=7)
    refused = [_order(row)["order_id"] for row in _filed(spark, target) if row["reason"] == "rule:positive_amount"]
    driven = [order for order in refused if order != "tried"]
    assert len(driven) == len(refused) - 1 > 0
    assert not set(refused) & {row["order_id"] for row in _kept(spark, target, settings.silver_table)}
    with redriving(spark, target, flows(loose)[1]) as again:
        plan = again.plan("rule:positive_amount")
        assert plan.still_bad == {"rule:no_test_orders": 1}
        assert again.apply(plan) == len(driven)
    run_layers(spark, target, flows(loose))
    before = {path: _kept(spark, target, path) for path in (settings.silver_table, settings.gold_table)}
    assert set(driven) <= {row["order_id"] for row in before[settings.silver_table]}

    # Everything behind bronze goes, and is made again, in other batches. What was sent again is known: it counts once.
    forget_all_behind_bronze(target, settings)
    rebuilt = run_layers(spark, target, flows(loose)[1:])

    after = Comparison()
    for path, rows in before.items():
        after.add(path, rows, _kept(spark, target, path))
    assert after.differences == []
    assert rebuilt["silver"].rules["positive_amount"] == len(refused)
    found, expected = compare(spark, target, flows(loose), loose)
    assert found.differences == []
    assert rebuilt["silver"].rules == expected.broken


def forget_all_behind_bronze(target: Target, settings: MedallionSettings) -> None:
    for name in ("silver", "gold"):
        shutil.rmtree(target.flow_folder(name))
    for path in (settings.silver_table, settings.gold_table):
        shutil.rmtree(target.table(path))
    shutil.rmtree(quarantine_table(target, "silver"))


def _filed(spark: SparkSession, target: Target) -> list[Row]:
    return table_rows(spark, "delta", quarantine_table(target, "silver"))


def _order(row: Row) -> dict[str, str]:
    value = row["value"]
    assert isinstance(value, bytes | bytearray)
    return json.loads(bytes(value))


def _kept(spark: SparkSession, target: Target, path: str) -> list[Row]:
    return table_rows(spark, "delta", target.table(path))


def _broken(spark: SparkSession, target: Target, settings: MedallionSettings, first: int) -> dict[str, int]:
    """Return how many rows of silver's batches, from the first to the last, break each rule."""
    checkpoint, source = silver_checkpoint(target), flows(settings)[1].named_inputs[ONLY].source
    assert isinstance(source, BronzeTable)
    end = checkpoint.entry(checkpoint.committed()[-1]).offsets[0]
    start = checkpoint.entry(first - 1).offsets[0] if first else source.beginning(end or "")
    read = {(row["partition"], row["offset"]) for row in source.batch(spark, target, start or "", end or "").collect()}
    records = [each for each in consumed(target, settings.topic) if (each.partition, each.offset) in read]
    return dict(model.silver(records).broken)


def silver_checkpoint(target: Target) -> Checkpoint:
    return Checkpoint.of("silver", target, LocalFiles())


def test_a_driver_that_is_killed_in_the_middle_leaves_the_same_layers(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    settings = settings_for("layers-killed")
    target = target_for(tmp_path, broker.bootstrap)
    sent = filled(target, settings, rate=1)
    # Gold has a batch of what silver made of the first ones of bronze; all three are under way.
    run_until_killed("test_medallion", "layers-killed", target, flow="gold", batch=0)
    assert len(_kept(spark, target, settings.bronze_table)) < sent
    first = len(silver_checkpoint(target).committed())

    # What the dead driver counted is lost with it. The batch that it was in is counted now.
    figures = run_layers(spark, target, flows(settings))
    assert figures["silver"].rules == _broken(spark, target, settings, first)

    # Now as if it had died after silver had the last batch, before Spark noted it.
    forget_last_commit(target, "silver")
    last = len(silver_checkpoint(target).committed())
    again = run_layers(spark, target, flows(settings)[1:2])
    assert again["silver"].batches == 1
    # That of a batch without rows has no counts.
    assert Counter(again["silver"].rules) == Counter(_broken(spark, target, settings, last))

    found, _ = compare(spark, target, flows(settings), settings)
    assert found.differences == []
    assert all(rows > 0 for place, rows in found.rows.items() if not place.startswith("late rows")), found.rows
