"""Orders and payments on a real broker, without an interruption: every row against the plain-Python model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.demos.orders.demo import compare, join_hit_rates, join_states
from headrace.errors import RecoveryError
from headrace.operate.run import Application
from headrace.patterns.orders.flows import NAMES, flows
from model_examples import JOINS
from systems.killed_driver import target_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

from systems.orders import command_line, filled, newest, reconciled, replayed, settings_of

pytestmark = [pytest.mark.stack, pytest.mark.spark]


def test_every_row_of_every_join_equals_the_model_and_the_night_after_what_came_too_late_is_in(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    settings, target = settings_of("joined"), target_for(tmp_path, broker.bootstrap)
    sent = filled(target, settings, hours=4, rate=0.4)

    figures = Application(spark, target, flows(settings)).run()

    assert {name: figure.error for name, figure in figures.items()} == dict.fromkeys(figures)
    assert {figure.rows_in for figure in figures.values()} == {sent}
    comparison = compare(spark, target, settings)
    assert comparison.differences == []
    # Equal and empty would prove nothing.
    assert all(rows > 0 for rows in comparison.rows.values()), comparison.rows
    assert comparison.rows["delta:silver/paid_orders"] < comparison.rows["delta:silver/orders_and_payments"]

    assert {row.input for row in replayed(spark, target, settings, "inner").late} == {"orders", "payments"}
    reported = join_states(spark, target, settings)
    for how in settings.joins:
        figure = figures[NAMES[how]]
        outcome = replayed(spark, target, settings, how)
        assert sum(row.rows for row in figure.state) == outcome.state[-1]
        # All rows that were removed from the state. Some are past their end when they come: in and out in one batch.
        good = sent - sum(map(len, outcome.invalid.values())) - len(outcome.late)
        assert 0 < sum(outcome.evicted) <= figure.evicted <= good - outcome.state[-1]
        # Invalid and late records are not stored, and the first hour had fewer payments than the others.
        assert reported[NAMES[how]]["forecast"] == pytest.approx(outcome.state[-1], rel=0.15)
        assert reported[NAMES[how]]["forecast_bytes"] > 0
        reached = newest(target, settings, JOINS[how].delay_ms)
        assert {name: row.timestamp() * 1000 // 1 for name, row in figure.watermarks.items()} == reached
        # The one in force at the end is that of the topic that is further behind.
        assert figure.slowest_input == min(reached, key=reached.__getitem__)
        assert outcome.watermarks[-1] == min(reached.values())

    # Of the minutes that are judged: the orders that are paid within the hour, but for payments that came too late.
    rates = join_hit_rates(spark, target, settings)
    orders, paid = (sum(int(str(row[name])) for row in rates) for name in ("orders", "paid"))
    assert 0.88 < paid / orders < 0.95
    without_left = replace(settings, joins=("inner", "full"))
    assert join_hit_rates(spark, target, without_left) == rates
    assert join_hit_rates(spark, target, replace(settings, joins=("inner", "right"))) == []

    # The night after: what came too late is put in, what was sent twice is there once.
    command = command_line("joined", tmp_path / "project", target)
    for how in ("inner", "full"):
        reconciled(command, spark, target, settings, how)

    # A day whose records the broker has deleted is not computed from what is left.
    ends = [TopicPartition(settings.orders_topic, partition, 300) for partition in (0, 1)]
    admin = AdminClient(dict(target.kafka))
    for answer in admin.delete_records(ends).values():
        answer.result(30)
    with pytest.raises(RecoveryError, match="cannot be recomputed") as refused:
        command(NAMES["full"])
    assert refused.value.code == "HR-357"
