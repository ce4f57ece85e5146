"""The medallion on a real broker, without an interruption: every row against the plain-Python model."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.demos.compare import Comparison, table_rows
from headrace.demos.medallion import MedallionDemo, compare
from headrace.demos.protocol import DemoContext, DemoSettings
from headrace.operate.quarantine.redrive import open_redrive
from headrace.patterns.medallion.flows import flows
from systems.killed_driver import target_for
from systems.past_traffic import NOW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

from systems.medallion import (
    RETAINED,
    filled,
    forget_all_behind_bronze,
    order_of,
    quarantined,
    rows_of,
    run_layers,
    send,
    settings_for,
)

pytestmark = [pytest.mark.stack, pytest.mark.spark]


def test_every_row_of_every_layer_equals_the_model_and_bronze_makes_silver_and_gold_again(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    settings = settings_for("layers")
    target = target_for(tmp_path, broker.bootstrap)
    sent = filled(target, settings, rate=1)
    # An order of last year: no watermark drops it on its way to gold.
    old = {"order_id": "old", "customer_id": "c-1", "country": "PT", "amount": 12.5, "items": 1}
    ordered_at = (NOW - timedelta(days=365)).isoformat()
    send(target, settings.topic, {**old, "ordered_at": ordered_at}, {"trace": b"\x00\xff", "from": b"till 7"})
    # Against two rules: the second one would leave it out if it were driven again.
    tried = {**old, "order_id": "tried", "customer_id": "test-1", "amount": 0}
    send(target, settings.topic, {**tried, "ordered_at": ordered_at}, {})

    figures = run_layers(spark, target, flows(settings))

    demo, context = MedallionDemo(settings=settings), DemoContext(DemoSettings(), target, figures)
    verdict = demo.compare(context, spark)
    comparison = verdict.comparison
    assert comparison.differences == []
    assert all(rows > 0 for place, rows in comparison.rows.items() if not place.startswith("late rows")), (
        comparison.rows
    )
    assert figures["bronze"].rows_out == sent + 2
    assert comparison.rows["rules of silver"] == len(settings.rules)
    assert verdict.figures["rules"] == figures["silver"].rules
    assert {name for name, rows in figures["silver"].rules.items() if not rows} == {"sane_amount"}
    assert set(figures["silver"].invalid) >= {
        "rule:positive_amount",
        "rule:not_from_the_future",
        "malformed_json",
        "null_value",
    }
    gold = table_rows(spark, "delta", target.table(settings.gold_table))
    assert [(row["orders"], str(row["revenue"])) for row in gold if row["country"] == "PT"] == [(1, "12.50")]
    (reported,) = demo.status(context, spark)
    assert f"{settings.bronze_table} {sent + 2:,}, " in reported
    assert reported.endswith(f"{settings.gold_table} {len(gold):,}")
    # Its small files were joined between batches, and readers of the versions before saw nothing of it.
    created = spark.sql(f"DESCRIBE HISTORY delta.`{target.table(settings.silver_table)}`").collect()
    assert "OPTIMIZE" in {row.operation for row in created}
    (detail,) = spark.sql(f"DESCRIBE DETAIL delta.`{target.table(settings.bronze_table)}`").collect()
    assert detail["properties"].items() >= RETAINED.items()

    # A rule was too strict, and only warns from now on: the rows that it dropped are redriven, by way of bronze.
    warned = (replace(rule, action="warn") if rule.name == "positive_amount" else rule for rule in settings.rules)
    loose = replace(settings, rules=tuple(warned), max_files=7)
    refused = [
        order_of(row)["order_id"] for row in quarantined(spark, target) if row["reason"] == "rule:positive_amount"
    ]
    driven = [order for order in refused if order != "tried"]
    assert len(driven) == len(refused) - 1 > 0
    assert not set(refused) & {row["order_id"] for row in rows_of(spark, target, settings.silver_table)}
    with open_redrive(spark, target, flows(loose)[1]) as again:
        plan = again.plan("rule:positive_amount")
        assert plan.still_invalid == {"rule:no_test_orders": 1}
        assert again.apply(plan) == len(driven)
    run_layers(spark, target, flows(loose))
    before = {path: rows_of(spark, target, path) for path in (settings.silver_table, settings.gold_table)}
    assert set(driven) <= {row["order_id"] for row in before[settings.silver_table]}

    # Everything behind bronze goes, and is made again, in other batches. What was sent again is known: it counts once.
    forget_all_behind_bronze(target, settings)
    rebuilt = run_layers(spark, target, flows(loose)[1:])

    after = Comparison()
    for path, rows in before.items():
        after.add(path, rows, rows_of(spark, target, path))
    assert after.differences == []
    assert rebuilt["silver"].rules["positive_amount"] == len(refused)
    comparison, expected = compare(spark, target, flows(loose), loose)
    assert comparison.differences == []
    assert rebuilt["silver"].rules == expected.violations
