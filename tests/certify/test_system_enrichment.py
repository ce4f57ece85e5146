"""Enrichment on a real broker: every purchase once, beside its product or waiting, against the plain-Python model."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from killed_driver import forget_last_commit, run_until_killed, target_for
from past_traffic import NOW
from pyspark.sql import functions as F

from headrace.clients.topics import create_topics
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.observe.flow_audit import quarantine_table
from headrace.operate.demos.enrichment import Compared, EnrichmentDemo, compare, versions_seen
from headrace.operate.generate import Generated, Generator, generate
from headrace.operate.replayed import consumed
from headrace.operate.run import Application
from headrace.operate.scene import DemoSettings, Scene
from headrace.patterns.enrichment.flows import PRODUCT, EnrichmentSettings, flows
from headrace.patterns.enrichment.generator import ProductGenerator, PurchaseGenerator, PurchaseTraffic
from headrace.sinks.dimension import AsOf
from headrace.sources.kafka import Kafka

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pyspark.sql import SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]


def settings_for(name: str) -> EnrichmentSettings:
    return EnrichmentSettings(
        topic=f"{name}-purchases",
        products_topic=f"{name}-products",
        trigger=AvailableNow(),
        products_trigger=AvailableNow(),
        max_offsets=1500,
    )


def flows_of(name: str) -> list[Flow]:
    """Return both flows, that of products in batches so small that it has some to be killed in."""
    products, purchases = flows(settings_for(name))
    source = Kafka(settings_for(name).products_topic, max_offsets_per_trigger=100)
    return [replace(products, inputs=Input(source, schema=PRODUCT)), purchases]


def traffic_for(settings: EnrichmentSettings) -> PurchaseTraffic:
    shares = PurchaseTraffic(rate=4, late=0.02, duplicates=0.02, malformed=0.02, seed=11)
    return replace(shares, purchases_topic=settings.topic, products_topic=settings.products_topic)


class Until:
    """The records of a generator between two moments, minutes before the end of the past."""

    topic = "unused"

    def __init__(self, records: Generator, first: int, last: int) -> None:
        self._records, self._first, self._last = records, first, last

    def events(self, _from: datetime, _until: datetime | None = None) -> Iterator[Generated]:
        first, last = (NOW - timedelta(minutes=minutes) for minutes in (self._first, self._last))
        return self._records.events(first, last)


def send_purchases(target: Target, settings: EnrichmentSettings, first: int, last: int) -> int:
    records = PurchaseGenerator(traffic_for(settings))
    return generate(Until(records, first, last), target, topic=settings.topic).records


def announce_products(target: Target, settings: EnrichmentSettings, first: int, last: int) -> None:
    """Send the products that are announced between two moments, and nobody has read them yet."""
    records = ProductGenerator(traffic_for(settings))
    generate(Until(records, first, last), target, topic=settings.products_topic)


def know_products(spark: SparkSession, target: Target, settings: EnrichmentSettings, first: int, last: int) -> None:
    """Let the products become known that are announced between two moments."""
    announce_products(target, settings, first, last)
    ran = Application(spark, target, flows(settings)[:1]).run()
    assert ran["products"].error is None


def write_history(spark: SparkSession, target: Target, settings: EnrichmentSettings) -> None:
    """Write what was told of products as their history: each state from its time to the next one's.

    Of every second product it is not known since when the first state was so.
    """
    told: dict[str, dict[str, dict[str, str]]] = {}
    for record in consumed(target, settings.products_topic):
        state = json.loads(record.value or b"", parse_float=str)
        told.setdefault(state["product_id"], {})[state["updated_at"]] = state
    rows = []
    for number, (product, states) in enumerate(told.items()):
        times = sorted(states)
        for place, (since, until) in enumerate(zip(times, [*times[1:], None], strict=True)):
            state, unknown = states[since], place == 0 and number % 2
            rows.append((product, state["name"], state["category"], state["price"], None if unknown else since, until))
    columns = "product_id string, name string, category string, price string, since string, until string"
    types = {"price": "decimal(10,2)", "since": "timestamp", "until": "timestamp"}
    history = spark.createDataFrame(rows, columns).withColumns({n: F.col(n).cast(t) for n, t in types.items()})
    history.write.format("delta").save(target.table(settings.dimension))


def run_purchases(spark: SparkSession, target: Target, settings: EnrichmentSettings) -> None:
    ran = Application(spark, target, flows(settings)[-1:]).run()
    assert ran["purchases"].error is None


def run(spark: SparkSession, target: Target, settings: EnrichmentSettings) -> Compared:
    """Run the purchases and compare them, and the products, with the model."""
    run_purchases(spark, target, settings)
    found = compare(spark, target, flows(settings), settings)
    assert found.comparison.differences == []
    return found


def test_every_purchase_is_there_once_and_gets_its_product_when_it_becomes_known(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    settings = settings_for("enriched")
    target = target_for(tmp_path, broker.bootstrap)
    create_topics(target.kafka, dict.fromkeys(settings.topics, 2))
    demo, scene = EnrichmentDemo(settings=settings), Scene(DemoSettings(), target)
    assert demo.status(scene, spark) == ()
    # Nothing is known at first: all purchases wait.
    send_purchases(target, settings, 30, 20)
    run_purchases(spark, target, settings)
    waiting = spark.read.format("delta").load(target.table(settings.table))
    assert waiting.where("enriched").count() == 0
    before = waiting.count()
    assert before > 2000

    know_products(spark, target, settings, 30, 20)
    send_purchases(target, settings, 20, 10)
    first = run(spark, target, settings)
    know_products(spark, target, settings, 20, 0)
    send_purchases(target, settings, 10, 0)
    run_purchases(spark, target, settings)
    second = demo.compare(scene, spark)
    assert second.comparison.differences == []

    # Two batches each, which saw the newest version of their time: 0 is the table as it was made, without rows.
    assert versions_seen(spark, target, settings) == [-1, -1, 1, 1, 2, 2]
    assert first.outcome.enriched_later > 0.8 * before
    told = cast("dict[str, int]", second.as_dict()["enrichment"])
    assert told["enriched_later"] > first.outcome.enriched_later
    assert 0 < told["waiting"] < before
    assert told["dimension_versions"] == 2
    enriched = second.comparison.rows["delta:silver/purchases"] - told["waiting"]
    assert demo.status(scene, spark) == [
        f"{enriched:,} purchases beside their products, {told['waiting']:,} wait for theirs; "
        "the dimension is at version 2"
    ]
    assert second.lines()[0].startswith(f"{told['enriched_later']:,} purchases came before their product")
    reasons = {row.reason for row in spark.read.format("delta").load(quarantine_table(target, "purchases")).collect()}
    assert reasons >= {
        "null_value",
        "malformed_json",
        "missing:quantity",
        "wrong_type:quantity",
        "event_time_in_future",
    }

    # The same purchases beside the products as they were when they were bought.
    history = replace(settings, dimension="dim/history", as_of=AsOf("ts", "since", "until"), max_offsets=100_000)
    elsewhere = target_for(tmp_path / "as-of", broker.bootstrap)
    write_history(spark, elsewhere, history)

    rows = run(spark, elsewhere, history).outcome.rows

    assert len(rows) == second.comparison.rows["delta:silver/purchases"]
    prices: dict[str, set[Decimal | None]] = {}
    for row in rows:
        prices.setdefault(row.product_id, set()).add(row.price)
    # Some had two prices while they were bought, some were bought before the first state that is known.
    assert sum(len(each - {None}) > 1 for each in prices.values()) > 10
    assert sum(len(each) > 1 and None in each for each in prices.values()) > 0


def test_a_driver_that_is_killed_in_the_middle_enriches_each_purchase_once(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    settings = settings_for("interrupted")
    target = target_for(tmp_path, broker.bootstrap)
    create_topics(target.kafka, dict.fromkeys(settings.topics, 2))
    announce_products(target, settings, 30, 25)
    send_purchases(target, settings, 30, 8)
    # The second batch of purchases is in their table, the third is under way, and so is one of the products.
    run_until_killed("test_enrichment", "interrupted", target, flow="purchases", batch=1)
    know_products(spark, target, settings, 25, 10)

    middle = run(spark, target, settings)

    assert middle.outcome.enriched_later > 0
    # Now as if it had died after the table had the last batch, before Spark noted it; and then products became known.
    seen = versions_seen(spark, target, settings)
    forget_last_commit(target, "purchases")
    know_products(spark, target, settings, 10, 0)
    send_purchases(target, settings, 8, 0)

    last = run(spark, target, settings)

    # The batch that was in stays as it was, and the next one meets the new version.
    assert versions_seen(spark, target, settings)[: len(seen)] == seen
    assert versions_seen(spark, target, settings)[len(seen)] > seen[-1]
    assert last.outcome.enriched_later > middle.outcome.enriched_later
