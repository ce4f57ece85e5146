"""Enrichment on a real broker: every purchase once, beside its product or waiting, against the plain-Python model."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from killed_driver import forget_last_commit, run_until_killed, target_for
from past_traffic import NOW

from headrace.clients.topics import create_topics
from headrace.flow.flow import Flow
from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.observe.flow_audit import quarantine_table
from headrace.operate.demos.enrichment import Compared, compare, versions_seen
from headrace.operate.generate import Generated, Generator, generate
from headrace.operate.run import Application
from headrace.patterns.enrichment.flows import EnrichmentSettings, flows
from headrace.patterns.enrichment.generator import ProductGenerator, generator

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
    """Return the flow of purchases: which products it meets is decided by the test."""
    return flows(settings_for(name))[1:]


class Until:
    """The records of a generator between two moments, minutes before the end of the past."""

    topic = "unused"

    def __init__(self, records: Generator, first: int, last: int) -> None:
        self._records, self._first, self._last = records, first, last

    def events(self, _from: datetime, _until: datetime | None = None) -> Iterator[Generated]:
        first, last = (NOW - timedelta(minutes=minutes) for minutes in (self._first, self._last))
        return self._records.events(first, last)


def send_purchases(target: Target, settings: EnrichmentSettings, first: int, last: int) -> int:
    records = generator(rate=4, late=0.02, duplicates=0.02, malformed=0.02, seed=11)
    return generate(Until(records, first, last), target, topic=settings.topic).records


def know_products(spark: SparkSession, target: Target, settings: EnrichmentSettings, first: int, last: int) -> None:
    """Let the products become known that are announced between two moments."""
    generate(Until(ProductGenerator(11), first, last), target, topic=settings.products_topic)
    ran = Application(spark, target, flows(settings)[:1]).run()
    assert ran["products"].error is None


def run(spark: SparkSession, target: Target, settings: EnrichmentSettings) -> Compared:
    """Run the purchases and compare them, and the products, with the model."""
    ran = Application(spark, target, flows(settings)[1:]).run()
    assert ran["purchases"].error is None
    found = compare(spark, target, flows(settings), settings)
    assert found.comparison.differences == []
    return found


def test_every_purchase_is_there_once_and_gets_its_product_when_it_becomes_known(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    settings = settings_for("enriched")
    target = target_for(tmp_path, broker.bootstrap)
    create_topics(target.kafka, dict.fromkeys(settings.topics, 2))
    # Nothing is known at first: all purchases wait.
    send_purchases(target, settings, 30, 20)
    ran = Application(spark, target, flows(settings)[1:]).run()
    assert ran["purchases"].error is None
    waiting = spark.read.format("delta").load(target.table(settings.table))
    assert waiting.where("enriched").count() == 0
    before = waiting.count()
    assert before > 2000

    know_products(spark, target, settings, 30, 20)
    send_purchases(target, settings, 20, 10)
    first = run(spark, target, settings)
    know_products(spark, target, settings, 20, 0)
    send_purchases(target, settings, 10, 0)
    second = run(spark, target, settings)

    # Two batches each, which saw the newest version of their time: 0 is the table as it was made, without rows.
    assert versions_seen(spark, target, settings) == [-1, -1, 1, 1, 2, 2]
    assert first.outcome.enriched_later > 0.8 * before
    assert second.outcome.enriched_later > first.outcome.enriched_later
    assert sum(not row.enriched for row in second.outcome.rows) > 0
    reasons = {row.reason for row in spark.read.format("delta").load(quarantine_table(target, "purchases")).collect()}
    assert reasons >= {
        "null_value",
        "malformed_json",
        "missing:quantity",
        "wrong_type:quantity",
        "event_time_in_future",
    }


def test_a_driver_that_is_killed_in_the_middle_enriches_each_purchase_once(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    settings = settings_for("interrupted")
    target = target_for(tmp_path, broker.bootstrap)
    create_topics(target.kafka, dict.fromkeys(settings.topics, 2))
    know_products(spark, target, settings, 30, 25)
    send_purchases(target, settings, 30, 8)
    # Its second batch is in the table, the third is under way.
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
