"""Real-time aggregates on a real broker: what their tests send, run and compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.clients.topics import create_topics
from headrace.demos.feeder import generate
from headrace.demos.protocol import DemoContext
from headrace.demos.records_demo import read_records
from headrace.demos.sales import SalesDemo, gold_rows, sum_mismatches
from headrace.flow.flow import Flow
from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.patterns.sales.flows import SalesSettings, flows
from headrace.patterns.sales.generator import generator
from headrace.patterns.sales.model import GoldRow
from systems.past_traffic import Past, set_by_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Longer than any record lies behind: with this delay nothing is late.
NEVER_LATE_MS = 7 * 24 * 3_600_000


KILLED = "cut-off"
# The flows of the driver that is killed, each with the batch in which that happens.
KILLED_IN = {"category_sales": 1}


def settings_for(name: str) -> SalesSettings:
    return SalesSettings(topic=f"{name}-sales", trigger=AvailableNow(), max_offsets=3000)


def flows_to_kill() -> list[Flow]:
    return [flow for flow in flows(settings_for(KILLED)) if flow.name in KILLED_IN]


def send_before_the_kill(target: Target) -> None:
    filled(target, settings_for(KILLED), rate=2)


def filled(target: Target, settings: SalesSettings, rate: float) -> int:
    """Make the topic, send an hour and a half of sales, and return how many there are."""
    create_topics(target.kafka, {settings.topic: 2})
    records = generator(rate=rate, late=0.03, duplicates=0.01, malformed=0.01, seed=11)
    return generate(Past(records, hours=1.5), target, topic=settings.topic).records


def versions_that_do_not_add_up(spark: SparkSession, target: Target, settings: SalesSettings) -> list[int]:
    location = target.table(settings.gold_table)
    newest = spark.sql(f"DESCRIBE HISTORY delta.`{location}`").agg({"version": "max"}).collect()[0][0]
    versions = {number: gold_rows(spark, target, settings, number) for number in range(1, newest + 1)}
    assert all(versions.values())
    return [number for number, rows in versions.items() if sum_mismatches(rows, settings.grains)]


def tables_are_as_declared(spark: SparkSession, target: Target, settings: SalesSettings) -> None:
    """Clustered by category, and merged without a look at files of other times."""
    for path in (settings.gold_table, settings.rolling_table):
        table = f"delta.`{target.table(path)}`"
        assert spark.sql(f"DESCRIBE DETAIL {table}").collect()[0].clusteringColumns == ["category", "window_start"]
        # A batch without rows looks for nothing.
        with_rows = "operation = 'MERGE' AND operationMetrics.numSourceRows > 0"
        merges = spark.sql(f"DESCRIBE HISTORY {table}").where(with_rows).collect()
        assert len(merges) >= 4
        assert all(
            "window_start" in (message := row.operationParameters["predicate"]) and ">=" in message for row in merges
        )


def shown_is_what_is_there(spark: SparkSession, demo: SalesDemo, scene: DemoContext, days: list[GoldRow]) -> None:
    """The demo's lines about the day, and its feed into the topic of its own."""
    shown = [line.split() for line in demo.status(scene, spark)]
    newest = max(row.window_start for row in days)
    assert [(words[0], words[1], words[3]) for words in shown] == [
        (row.category, f"{row.revenue:,}", f"{row.orders:,}")
        for row in sorted(days, key=lambda row: row.category)
        if row.window_start == newest
    ]
    topic = demo.settings.topic
    before = len(read_records(scene.target, topic))
    sent = demo.feed(scene, set_by_records(scene.target, topic))
    assert sent.records > 0
    records = read_records(scene.target, topic)
    assert len(records) - before == sent.records
    # Both flows are waited for until they have read all of it.
    ends = {(topic, number): sum(record.partition == number for record in records) for number in range(2)}
    assert demo.awaited_offsets(scene) == {"category_sales": ends, "rolling_revenue": ends}
