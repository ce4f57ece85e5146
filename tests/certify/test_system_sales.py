"""Real-time aggregates on a real broker, every row of both tables against the plain-Python model."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from threading import Event, Timer
from typing import TYPE_CHECKING

import pytest
from killed_driver import forget_last_commit, run_until_killed, target_for
from past_traffic import Past

from headrace.clients.topics import create_topics
from headrace.flow.flow import Flow
from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.observe.flow_audit import quarantine_table
from headrace.operate.compare import Comparison
from headrace.operate.demos.sales import (
    SalesDemo,
    add_gold,
    compare,
    expected_gold,
    gold_rows,
    not_adding_up,
    replayed,
    sketch_errors,
)
from headrace.operate.generate import generate
from headrace.operate.late_repair import repairing
from headrace.operate.replayed import consumed
from headrace.operate.run import Application
from headrace.operate.scene import DemoSettings, Scene
from headrace.patterns.sales.flows import SalesSettings, flows
from headrace.patterns.sales.generator import generator
from headrace.patterns.sales.model import GoldRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]

# Longer than any record lies behind: with this delay nothing is late.
_NEVER_LATE_MS = 7 * 24 * 3_600_000


def settings_for(name: str) -> SalesSettings:
    return SalesSettings(topic=f"{name}-sales", trigger=AvailableNow(), max_offsets=3000)


def flows_of(name: str) -> list[Flow]:
    return flows(settings_for(name))


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
    return [number for number, rows in versions.items() if not_adding_up(rows, settings.grains)]


def test_both_tables_equal_the_model_and_add_up_also_after_a_repair_of_late_sales(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    # 1.5 hours at 2 records a second, in 4 batches of about 25 minutes: windows close, and late rows come after them.
    settings = settings_for("whole")
    target = target_for(tmp_path, broker.bootstrap)
    sent = filled(target, settings, rate=2)
    gold, rolling = flows(settings)

    figures = Application(spark, target, [gold, rolling]).run()

    assert {name: figure.error for name, figure in figures.items()} == dict.fromkeys(figures)
    assert {figure.rows_in for figure in figures.values()} == {sent}
    demo, scene = SalesDemo(settings=settings), Scene(DemoSettings(rate=50, backfill=timedelta(seconds=2)), target)
    verdict = demo.compare(scene, spark)
    found = verdict.comparison
    assert found.differences == []
    # Equal and empty would prove nothing.
    assert all(rows > 0 for rows in found.rows.values()), found.rows
    assert verdict.lines()[0].startswith(f"{figures[gold.name].late:,} sales came after their 5 minutes were closed")
    reasons = {row.reason for row in spark.read.format("delta").load(quarantine_table(target, gold.name)).collect()}
    assert reasons >= {"null_value", "malformed_json", "missing:amount", "wrong_type:amount", "event_time_in_future"}

    with repairing(spark, target, gold) as work:
        plan = work.plan()
        work.apply(plan)

    assert plan.changed > 0
    assert plan.left == ()
    repaired = Comparison()
    outcome = replayed(spark, target, gold, settings, delay_ms=_NEVER_LATE_MS)
    add_gold(repaired, spark, target, settings, outcome)
    assert repaired.differences == []
    assert versions_that_do_not_add_up(spark, target, settings) == []
    # A few hundred users of a category: a sketch of 4,096 registers knows nearly each of them.
    errors = sketch_errors(expected_gold(outcome, settings), gold_rows(spark, target, settings))
    assert errors.keys() == set(settings.grains)
    assert max(each.root_mean_square for each in errors.values()) < settings.standard_error, {
        grain: asdict(each) for grain, each in errors.items()
    }
    assert set(verdict.as_dict()["sketch"]) == {"stated", *settings.grains}  # type: ignore[call-overload]
    tables_are_as_declared(spark, target, settings)
    days = [row for row in expected_gold(outcome, settings) if row.grain == "1 day"]
    shown_is_what_is_there(spark, demo, scene, days)


def tables_are_as_declared(spark: SparkSession, target: Target, settings: SalesSettings) -> None:
    """Clustered by category, and merged without a look at files of other times."""
    for path in (settings.gold_table, settings.rolling_table):
        table = f"delta.`{target.table(path)}`"
        assert spark.sql(f"DESCRIBE DETAIL {table}").collect()[0].clusteringColumns == ["category", "window_start"]
        # A batch without rows looks for nothing.
        with_rows = "operation = 'MERGE' AND operationMetrics.numSourceRows > 0"
        merges = spark.sql(f"DESCRIBE HISTORY {table}").where(with_rows).collect()
        assert len(merges) >= 4
        assert all("window_start" in (said := row.operationParameters["predicate"]) and ">=" in said for row in merges)


def shown_is_what_is_there(spark: SparkSession, demo: SalesDemo, scene: Scene, days: list[GoldRow]) -> None:
    """The demo's lines about the day, and its feed into the topic of its own."""
    shown = [line.split() for line in demo.status(scene, spark)]
    newest = max(row.window_start for row in days)
    assert [(words[0], words[1], words[3]) for words in shown] == [
        (row.category, f"{row.revenue:,}", f"{row.orders:,}")
        for row in sorted(days, key=lambda row: row.category)
        if row.window_start == newest
    ]
    topic, stop = demo.settings.topic, Event()
    before = len(consumed(scene.target, topic))
    Timer(1, stop.set).start()
    sent = demo.feed(scene, stop)
    assert sent.records > 0
    records = consumed(scene.target, topic)
    assert len(records) - before == sent.records
    # Both flows are waited for until they have read all of it.
    ends = {(topic, number): sum(record.partition == number for record in records) for number in range(2)}
    assert demo.awaited(scene) == {"category_sales": ends, "rolling_revenue": ends}


def test_a_driver_that_is_killed_in_the_middle_leaves_the_same_tables(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    settings = settings_for("cut-off")
    target = target_for(tmp_path, broker.bootstrap)
    filled(target, settings, rate=2)
    # Its second batch is in the table; the third, and those of the other flow, are under way.
    run_until_killed("test_sales", "cut-off", target, flow="category_sales", batch=1)

    Application(spark, target, flows(settings)).run()

    found = compare(spark, target, flows(settings), settings)
    assert found.differences == []
    assert all(rows > 0 for rows in found.rows.values()), found.rows

    # Now as if it had died after the table had the last batch, before Spark noted it.
    forget_last_commit(target, "category_sales")
    again = Application(spark, target, flows(settings)[:1]).run()

    assert (again["category_sales"].error, again["category_sales"].batches) == (None, 1)
    assert compare(spark, target, flows(settings), settings).differences == []
    assert versions_that_do_not_add_up(spark, target, settings) == []
