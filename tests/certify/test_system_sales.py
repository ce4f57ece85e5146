"""Real-time aggregates on a real broker, without an interruption: every row against the plain-Python model."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.audit.flow_audit import quarantine_table
from headrace.demos.protocol import DemoContext, DemoSettings
from headrace.demos.records_demo import TargetComparison
from headrace.demos.sales import SalesDemo, compare_gold, expected_gold, gold_rows, replay_model, sketch_errors
from headrace.operate.late.repair import Repair
from headrace.operate.run import Application
from headrace.patterns.sales.flows import flows
from systems.killed_driver import target_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

from systems.sales import (
    NEVER_LATE_MS,
    filled,
    settings_for,
    shown_is_what_is_there,
    tables_are_as_declared,
    versions_that_do_not_add_up,
)

pytestmark = [pytest.mark.stack, pytest.mark.spark]


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
    demo, context = (
        SalesDemo(settings=settings),
        DemoContext(DemoSettings(rate=50, backfill=timedelta(seconds=2)), target),
    )
    verdict = demo.compare(context, spark)
    comparison = verdict.comparison
    assert comparison.differences == []
    # Equal and empty would prove nothing.
    assert all(rows > 0 for rows in comparison.rows.values()), comparison.rows
    assert verdict.lines()[0].startswith(f"{figures[gold.name].late:,} sales came after their 5 minutes were closed")
    reasons = {row.reason for row in spark.read.format("delta").load(quarantine_table(target, gold.name)).collect()}
    assert reasons >= {"null_value", "malformed_json", "missing:amount", "wrong_type:amount", "event_time_in_future"}

    with Repair.open(spark, target, gold) as work:
        plan = work.plan()
        work.apply(plan)

    assert plan.changed > 0
    assert plan.left == ()
    repaired = TargetComparison(spark=spark, target=target)
    outcome = replay_model(spark, target, gold, settings, delay_ms=NEVER_LATE_MS)
    compare_gold(repaired, settings, outcome)
    assert repaired.differences == []
    assert versions_that_do_not_add_up(spark, target, settings) == []
    # A few hundred users of a category: a sketch of 4,096 registers knows nearly each of them.
    errors = sketch_errors(expected_gold(outcome, settings), gold_rows(spark, target, settings))
    assert errors.keys() == set(settings.grains)
    assert max(item.root_mean_square for item in errors.values()) < settings.standard_error, {
        grain: asdict(item) for grain, item in errors.items()
    }
    assert set(verdict.as_dict()["sketch"]) == {"stated", *settings.grains}  # type: ignore[call-overload]
    tables_are_as_declared(spark, target, settings)
    days = [row for row in expected_gold(outcome, settings) if row.grain == "1 day"]
    shown_is_what_is_there(spark, demo, context, days)
