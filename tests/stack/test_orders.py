"""Orders and payments on a real broker, every row of every join against the plain-Python model."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from killed_driver import run_until_killed, target_for
from past_traffic import NOW, Past
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.clients.topics import create_topics
from headrace.flow.flow import Flow
from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.operate.compare import Comparison, Row, table_rows
from headrace.operate.demos.orders import compare
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
        # A process that is to be killed has a cold JVM: two joins are enough for it.
        joins=("left", "full") if name == "cut" else ("inner", "left", "right", "full"),
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
    found = compare(spark, target, settings, restarted=False)
    assert found.differences == []
    # Equal and empty would prove nothing.
    assert all(rows > 0 for rows in found.rows.values()), found.rows
    assert found.rows["delta:silver/paid_orders"] < found.rows["delta:silver/orders_and_payments"]

    for how in settings.joins:
        figure = figures[NAMES[how]]
        outcome = replayed(spark, target, settings, how)
        assert sum(each.rows for each in figure.state) == outcome.state[-1]
        assert figure.held_back_by == min(figure.watermarks, key=figure.watermarks.__getitem__)
        # The one in force at the end is that of the input that holds back.
        lowest = min(figure.watermarks.values())
        assert outcome.watermarks[-1] == lowest.timestamp() * 1000 // 1

    # The night after: what came too late is put in, what was sent twice is there once.
    command = command_line(tmp_path / "project", target, spark, monkeypatch)
    for how in ("inner", "full"):
        reconciled(command, spark, target, settings, how)


def replayed(spark: SparkSession, target: Target, settings: OrderSettings, how: Join) -> model.Outcome:
    flow = next(each for each in flows(settings) if each.name == NAMES[how])
    records = [consumed(target, topic) for topic in settings.topics]
    return model.replay(*records, boundaries(spark, target, flow), model.JOINS[how])


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
        done = CliRunner().invoke(app, given)
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
    alone = model.day(*records, model.JOINS["full"], start, end)
    assert plan["never_came"] == {
        "payment(s) of an order": sum(row.pay_time is None for row in alone),
        "order(s) of a payment": sum(row.order_time is None for row in alone),
    }
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

    assert compare(spark, target, settings).differences == []
