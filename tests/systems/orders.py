"""Orders and payments on a real broker: what their tests send, run and compare."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.clients.topics import create_topics
from headrace.demos.compare import Comparison, Row, table_rows
from headrace.demos.feeder import generate
from headrace.demos.records_demo import batch_ranges, read_records
from headrace.flow.flow import Flow
from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.patterns.orders import model
from headrace.patterns.orders.flows import NAMES, Join, OrderSettings, flows
from headrace.patterns.orders.generator import OrderTraffic
from model_examples import JOINS, daily_rows
from systems.past_traffic import NOW, Past

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


KILLED = "cut"
# The flows of the driver that is killed, each with the batch in which that happens.
KILLED_IN = {NAMES["full"]: 1}


def settings_of(name: str) -> OrderSettings:
    return OrderSettings(
        orders_topic=f"{name}-orders",
        payments_topic=f"{name}-payments",
        trigger=AvailableNow(),
        max_offsets=600,
        # The other two are in `make certify`, and in tests without a broker.
        **({"joins": ("inner", "full")} if name == KILLED else {}),
    )


def flows_of(name: str) -> list[Flow]:
    return flows(settings_of(name))


def flows_to_kill() -> list[Flow]:
    return [flow for flow in flows_of(KILLED) if flow.name in KILLED_IN]


def send_before_the_kill(target: Target) -> None:
    filled(target, settings_of(KILLED), hours=4, rate=0.4)


def filled(target: Target, settings: OrderSettings, hours: float, rate: float) -> int:
    """Make the topics, send the records of some hours, and return how many there are."""
    create_topics(target.kafka, dict.fromkeys(settings.topics, 2))
    traffic = OrderTraffic(
        rate, late=0.05, malformed=0.01, seed=11, topic=settings.orders_topic, payments_topic=settings.payments_topic
    )
    return generate(Past(traffic, hours), target).records


def newest(target: Target, settings: OrderSettings, delay_ms: int) -> dict[str, int]:
    """Return, by input, the watermark of its newest good record."""
    orders = [model.ORDER.parse(record) for record in read_records(target, settings.orders_topic)]
    payments = [model.PAYMENT.parse(record) for record in read_records(target, settings.payments_topic)]
    return {
        "orders": max(order.order_time for order in orders if isinstance(order, model.Order)) - delay_ms,
        "payments": max(payment.pay_time for payment in payments if isinstance(payment, model.Payment)) - delay_ms,
    }


def replayed(
    spark: SparkSession, target: Target, settings: OrderSettings, how: Join, recorded: list[int] | None = None
) -> model.JoinOutcome:
    flow = next(item for item in flows(settings) if item.name == NAMES[how])
    records = [read_records(target, topic) for topic in settings.topics]
    return model.replay(*records, batch_ranges(spark, target, flow), JOINS[how], recorded)


def command_line(name: str, folder: Path, target: Target) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Return `headrace reconcile orders` of a project with these flows, on the Spark of this run."""
    folder.mkdir()
    (folder / f"{name}_flows.py").write_text(f"from systems.orders import flows_of\n\njoins = flows_of({name!r})\n")
    places = {"lake": target.lake, "checkpoints": target.checkpoints, "kafka": dict(target.kafka)}
    (folder / "headrace.yml").write_text(
        json.dumps({"name": name, "flows": [f"{name}_flows.py"], "targets": {"dev": places}})
    )

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        declared = ["reconcile", "orders", *words, "--day", f"{NOW:%Y-%m-%d}", "--project", str(folder), "--json"]
        done = CliRunner().invoke(app, declared, catch_exceptions=False)
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
    code, actual = command(NAMES[how], "--repair", "--yes")
    (plan,) = actual["flows"]
    assert (code, plan["repaired"], plan["is_full_day"]) == (0, True, False)
    start, end = (round(datetime.fromisoformat(plan[name]).timestamp() * 1000) for name in ("start", "end"))
    assert start < end < (NOW - timedelta(hours=1)).timestamp() * 1000
    records = [read_records(target, topic) for topic in settings.topics]
    rows = table_rows(spark, "delta", target.table(settings.table(how)))
    compared = Comparison()
    due = daily_rows(*records, JOINS[how], start, end)
    compared.add("repaired", [row._asdict() for row in due], [row for row in rows if start <= _moment(row) < end])
    assert compared.differences == []
    assert len(rows) - len(before) == sum(plan["added"].values()) - sum(plan["removed"].values())
    assert plan["added"]["late"] > 0
    assert plan["removed"]["duplicate"] > 0
    # Examples are of each cause, and what is to be removed was in the table.
    assert {item["cause"] for item in plan["examples"]} == {*plan["added"], *plan["removed"]}
    taken = {item["order_id"] for item in plan["examples"] if item["change"] == "remove"}
    assert taken <= {row["order_id"] for row in before}
    if how == "full":
        # The order came too late, and its payment had no order until now.
        lone = {row["order_id"] for row in before if row["order_time"] is None and start <= _moment(row) < end}
        assert lone & {row.order_id for row in due if row.order_time is not None and row.pay_time is not None}
    alone = daily_rows(*records, JOINS["full"], start, end)
    assert plan["unmatched"] == {
        "payment(s) of an order": sum(row.pay_time is None for row in alone),
        "order(s) of a payment": sum(row.order_time is None for row in alone),
    }
    assert {item["order_id"] for item in plan["alone"]} <= {row.order_id for row in alone if None in row}
    assert len(plan["alone"]) == sum(min(20, count) for count in plan["unmatched"].values()) > 20
    code, again = command(NAMES[how])
    assert (code, again["flows"][0]["added"], again["flows"][0]["removed"]) == (0, {}, {})


def _moment(row: Row) -> int:
    moment = row["order_time"] or row["pay_time"]
    assert isinstance(moment, datetime)
    return round(moment.timestamp() * 1000)
