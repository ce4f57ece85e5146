"""Orders and payments on a real broker, every row of every join against the plain-Python model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from killed_driver import run_until_killed, target_for
from past_traffic import NOW, Past
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.clients.topics import create_topics
from headrace.errors import RecoveryError
from headrace.flow.flow import Flow
from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.operate.compare import Comparison, Row, table_rows
from headrace.operate.demos.orders import compare, hit_rates, states, watermarks
from headrace.operate.generate import generate
from headrace.operate.replayed import boundaries, consumed
from headrace.operate.run import Application
from headrace.patterns.orders import model
from headrace.patterns.orders.flows import NAMES, Join, OrderSettings, flows
from headrace.patterns.orders.generator import OrderGenerator, OrderTraffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]


def settings_of(name: str) -> OrderSettings:
    return OrderSettings(
        orders_topic=f"{name}-orders",
        payments_topic=f"{name}-payments",
        trigger=AvailableNow(),
        max_offsets=600,
    )


def flows_of(name: str) -> list[Flow]:
    return flows(settings_of(name))


def filled(target: Target, settings: OrderSettings, hours: float, rate: float) -> int:
    """Make the topics, send the records of some hours, and return how many there are."""
    create_topics(target.kafka, dict.fromkeys(settings.topics, 2))
    traffic = OrderTraffic(
        rate,
        late=0.05,
        malformed=0.01,
        seed=11,
        orders_topic=settings.orders_topic,
        payments_topic=settings.payments_topic,
    )
    return generate(Past(OrderGenerator(traffic), hours), target).records


def test_every_row_of_every_join_equals_the_model_and_the_night_after_what_came_too_late_is_in(
    broker: Broker, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings, target = settings_of("joined"), target_for(tmp_path, broker.bootstrap)
    sent = filled(target, settings, hours=4, rate=0.4)

    figures = Application(spark, target, flows(settings)).run()

    assert {name: figure.error for name, figure in figures.items()} == dict.fromkeys(figures)
    assert {figure.rows_in for figure in figures.values()} == {sent}
    found = compare(spark, target, settings)
    assert found.differences == []
    # Equal and empty would prove nothing.
    assert all(rows > 0 for rows in found.rows.values()), found.rows
    assert found.rows["delta:silver/paid_orders"] < found.rows["delta:silver/orders_and_payments"]

    assert {each.input for each in replayed(spark, target, settings, "inner").late} == {"orders", "payments"}
    told = states(spark, target, settings)
    for how in settings.joins:
        figure = figures[NAMES[how]]
        outcome = replayed(spark, target, settings, how)
        assert sum(each.rows for each in figure.state) == outcome.state[-1]
        # All that was kept and is not any more. Some rows are past their end when they come: in and out in one batch.
        good = sent - sum(map(len, outcome.bad.values())) - len(outcome.late)
        assert 0 < sum(outcome.forgotten) <= figure.evicted <= good - outcome.state[-1]
        # Bad and late records are not kept, and the first hour had fewer payments than the others.
        assert told[NAMES[how]]["forecast"] == pytest.approx(outcome.state[-1], rel=0.15)
        assert told[NAMES[how]]["forecast_bytes"] > 0
        reached = newest(target, settings, model.JOINS[how].delay_ms)
        assert {name: each.timestamp() * 1000 // 1 for name, each in figure.watermarks.items()} == reached
        # The one in force at the end is that of the topic that is further behind.
        assert figure.held_back_by == min(reached, key=reached.__getitem__)
        assert outcome.watermarks[-1] == min(reached.values())

    # Of the minutes that are judged: the orders that are paid within the hour, but for payments that came too late.
    rates = hit_rates(spark, target, settings)
    orders, paid = (sum(int(str(each[name])) for each in rates) for name in ("orders", "paid"))
    assert 0.88 < paid / orders < 0.95
    without_left = replace(settings, joins=("inner", "full"))
    assert hit_rates(spark, target, without_left) == rates
    assert hit_rates(spark, target, replace(settings, joins=("inner", "right"))) == []

    # The night after: what came too late is put in, what was sent twice is there once.
    command = command_line(tmp_path / "project", target, spark, monkeypatch)
    for how in ("inner", "full"):
        reconciled(command, spark, target, settings, how)

    # A day whose records the broker has let go of is not computed from what is left.
    ends = [TopicPartition(settings.orders_topic, partition, 300) for partition in (0, 1)]
    admin = AdminClient(dict(target.kafka))
    for answer in admin.delete_records(ends).values():
        answer.result(30)
    with pytest.raises(RecoveryError, match="cannot be computed anew") as refused:
        command(NAMES["full"])
    assert refused.value.code == "HR-357"


def newest(target: Target, settings: OrderSettings, delay_ms: int) -> dict[str, int]:
    """Return, by input, the watermark of its newest good record."""
    orders = [model.judge_order(each) for each in consumed(target, settings.orders_topic)]
    payments = [model.judge_payment(each) for each in consumed(target, settings.payments_topic)]
    return {
        "orders": max(each.order_time for each in orders if isinstance(each, model.Order)) - delay_ms,
        "payments": max(each.pay_time for each in payments if isinstance(each, model.Payment)) - delay_ms,
    }


def replayed(
    spark: SparkSession, target: Target, settings: OrderSettings, how: Join, recorded: list[int] | None = None
) -> model.Outcome:
    flow = next(each for each in flows(settings) if each.name == NAMES[how])
    records = [consumed(target, topic) for topic in settings.topics]
    return model.replay(*records, boundaries(spark, target, flow), model.JOINS[how], recorded)


def command_line(
    folder: Path, target: Target, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Return `headrace reconcile orders` of a project with these flows, on the Spark of this run."""
    monkeypatch.setattr("headrace.cli.reconcile.opened_session", lambda *_words, **_named: spark)
    folder.mkdir()
    (folder / "joined_flows.py").write_text("from test_orders import flows_of\n\njoins = flows_of('joined')\n")
    places = {"lake": target.lake, "checkpoints": target.checkpoints, "kafka": dict(target.kafka)}
    (folder / "headrace.yml").write_text(
        json.dumps({"name": "joined", "flows": ["joined_flows.py"], "targets": {"dev": places}})
    )

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        given = ["reconcile", "orders", *words, "--day", f"{NOW:%Y-%m-%d}", "--project", str(folder), "--json"]
        done = CliRunner().invoke(app, given, catch_exceptions=False)
        (line,) = done.stdout.splitlines()
        return done.exit_code, json.loads(line)

    return run


def reconciled(
    command: Callable[..., tuple[int, dict[str, Any]]],
    spark: SparkSession,
    target: Target,
    settings: OrderSettings,
    how: Join,
) -> None:
    before = table_rows(spark, "delta", target.table(settings.table(how)))
    code, found = command(NAMES[how], "--repair", "--yes")
    (plan,) = found["flows"]
    assert (code, plan["repaired"], plan["whole"]) == (0, True, False)
    start, end = (round(datetime.fromisoformat(plan[each]).timestamp() * 1000) for each in ("start", "end"))
    assert start < end < (NOW - timedelta(hours=1)).timestamp() * 1000
    records = [consumed(target, topic) for topic in settings.topics]
    rows = table_rows(spark, "delta", target.table(settings.table(how)))
    compared = Comparison()
    due = model.day(*records, model.JOINS[how], start, end)
    compared.add("repaired", [row._asdict() for row in due], [row for row in rows if start <= _moment(row) < end])
    assert compared.differences == []
    assert len(rows) - len(before) == sum(plan["added"].values()) - sum(plan["removed"].values())
    assert plan["added"]["late"] > 0
    assert plan["removed"]["duplicate"] > 0
    # Examples are of each cause, and what is to be removed was in the table.
    assert {each["cause"] for each in plan["examples"]} == {*plan["added"], *plan["removed"]}
    taken = {each["order_id"] for each in plan["examples"] if each["change"] == "remove"}
    assert taken <= {row["order_id"] for row in before}
    if how == "full":
        # The order came too late, and its payment stood alone until now.
        lone = {row["order_id"] for row in before if row["order_time"] is None and start <= _moment(row) < end}
        assert lone & {row.order_id for row in due if row.order_time is not None and row.pay_time is not None}
    alone = model.day(*records, model.JOINS["full"], start, end)
    assert plan["never_came"] == {
        "payment(s) of an order": sum(row.pay_time is None for row in alone),
        "order(s) of a payment": sum(row.order_time is None for row in alone),
    }
    assert {each["order_id"] for each in plan["alone"]} <= {row.order_id for row in alone if None in row}
    assert len(plan["alone"]) == sum(min(20, count) for count in plan["never_came"].values()) > 20
    code, again = command(NAMES[how])
    assert (code, again["flows"][0]["added"], again["flows"][0]["removed"]) == (0, {}, {})


def _moment(row: Row) -> int:
    moment = row["order_time"] or row["pay_time"]
    assert isinstance(moment, datetime)
    return round(moment.timestamp() * 1000)


def test_a_driver_that_is_killed_in_the_middle_leaves_the_same_joins(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    settings, target = settings_of("cut"), target_for(tmp_path, broker.bootstrap)
    filled(target, settings, hours=3, rate=0.4)
    run_until_killed("test_orders", "cut", target, flow="orders_with_payments", batch=2)

    Application(spark, target, flows(settings)).run()

    found = compare(spark, target, settings)
    assert found.differences == []
    assert all(rows > 0 for rows in found.rows.values()), found.rows
    # The driver began anew once, and that explains the watermarks of every join.
    for how in settings.joins:
        recorded = watermarks(spark, target, NAMES[how])
        assert replayed(spark, target, settings, how, recorded).restarts <= 1
