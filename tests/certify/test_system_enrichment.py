"""Enrichment on a real broker, without an interruption: every row against the plain-Python model."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from headrace.audit.flow_audit import quarantine_table
from headrace.clients.topics import create_topics
from headrace.demos.enrichment import EnrichmentDemo, dimension_versions
from headrace.demos.protocol import DemoContext, DemoSettings
from headrace.sinks.delta.dimension import AsOf
from systems.killed_driver import target_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

from systems.enrichment import know_products, run, run_purchases, send_purchases, settings_for, write_history

pytestmark = [pytest.mark.stack, pytest.mark.spark]


def test_every_purchase_is_there_once_and_gets_its_product_when_it_becomes_known(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    settings = settings_for("enriched")
    target = target_for(tmp_path, broker.bootstrap)
    create_topics(target.kafka, dict.fromkeys(settings.topics, 2))
    demo, context = EnrichmentDemo(settings=settings), DemoContext(DemoSettings(), target)
    assert demo.status(context, spark) == ()
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
    second = demo.compare(context, spark)
    assert second.comparison.differences == []

    # Two batches each, which saw the newest version of their time: 0 is the table as it was made, without rows.
    assert dimension_versions(spark, target, settings) == [-1, -1, 1, 1, 2, 2]
    assert first.outcome.enriched_later > 0.8 * before
    figures = cast("dict[str, int]", second.as_dict()["enrichment"])
    assert figures["enriched_later"] > first.outcome.enriched_later
    assert 0 < figures["waiting"] < before
    assert figures["dimension_versions"] == 2
    enriched = second.comparison.rows["delta:silver/purchases"] - figures["waiting"]
    assert demo.status(context, spark) == [
        f"{enriched:,} purchases with their products, {figures['waiting']:,} wait for theirs; "
        "the dimension is at version 2"
    ]
    assert second.lines()[0].startswith(f"{figures['enriched_later']:,} purchases came before their product")
    reasons = {row.reason for row in spark.read.format("delta").load(quarantine_table(target, "purchases")).collect()}
    assert reasons >= {
        "null_value",
        "malformed_json",
        "missing:quantity",
        "wrong_type:quantity",
        "event_time_in_future",
    }

    # The same purchases, joined with the products as they were when they were bought.
    history = replace(settings, dimension="dim/history", as_of=AsOf("ts", "since", "until"), max_offsets=100_000)
    elsewhere = target_for(tmp_path / "as-of", broker.bootstrap)
    write_history(spark, elsewhere, history)

    rows = run(spark, elsewhere, history).outcome.rows

    assert len(rows) == second.comparison.rows["delta:silver/purchases"]
    prices: dict[str, set[Decimal | None]] = {}
    for row in rows:
        prices.setdefault(row.product_id, set()).add(row.price)
    # Some had two prices while they were bought, some were bought before the first state that is known.
    assert sum(len(item - {None}) > 1 for item in prices.values()) > 10
    assert sum(len(item) > 1 and None in item for item in prices.values()) > 0
