"""The joins of orders and payments as they are declared, rehearsed without a broker, against a table by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from headrace.patterns.orders.flows import NAMES, Join, flows, hit_rate
from headrace.testing import Arrive, Keyed, rehearse

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.spark

# What each batch writes, worked out by hand: empty ones are among them.
PAID, JUST = ("paid", True, True), ("just", True, True)
LONE, UNPAID = ("lone", False, True), ("unpaid", True, False)
REPORTED: dict[Join, list[list[tuple[str, bool, bool]]]] = {
    "left": [[PAID], [], [JUST], [], [], [], [UNPAID]],
    "right": [[PAID], [], [JUST], [], [LONE], [], []],
    "full": [[PAID], [], [JUST], [], [LONE], [], [UNPAID]],
}


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2024-05-06T{clock}").replace(tzinfo=UTC)


def order(name: str, clock: str) -> Keyed:
    return Keyed(name, {"order_id": name, "user_id": "u1", "order_time": at(clock)})


def payment(name: str, clock: str) -> Keyed:
    return Keyed(name, {"order_id": name, "amount": Decimal("9.50"), "pay_time": at(clock)})


def shown(rows: list[Row]) -> list[tuple[str, bool, bool]]:
    """Return which order it is, whether its order is there, and whether a payment is."""
    return sorted((row.order_id, row.order_time is not None, row.pay_time is not None) for row in rows)


@pytest.mark.parametrize("how", REPORTED)
def test_a_row_without_partner_is_written_by_the_batch_whose_watermark_has_passed_its_bound(
    spark: SparkSession, tmp_path: Path, how: Join
):
    actual = rehearse(
        next(flow for flow in flows() if flow.name == NAMES[how]),
        [
            Arrive(orders=[order("paid", "10:00"), order("unpaid", "10:00")], payments=[payment("paid", "10:20")]),
            # A payment exactly an hour after its order is in time, a millisecond later it is not.
            Arrive(orders=[order("just", "10:10"), order("over", "10:10")]),
            Arrive(payments=[payment("just", "11:10:00"), payment("over", "11:10:00.001"), payment("lone", "10:40")]),
            # Both watermarks are 30 minutes behind, and the lower one counts: that of the payments, 11:00 to the
            # millisecond. The bound of the unpaid order is 11:00: a payment of then would not be late yet.
            Arrive(orders=[order("new", "12:30")], payments=[payment("paid", "11:30")]),
            # 11:00 is past the payment of 10:40, and not past the bound of 10:00.
            Arrive(orders=[order("next", "12:29")]),
            Arrive(payments=[payment("none", "11:30:00.001")]),
            Arrive(orders=[order("last", "12:28")]),
        ],
        spark=spark,
        folder=tmp_path,
    )
    assert [shown(batch) for batch in actual.batches] == REPORTED[how]


def test_the_hit_rate_counts_an_order_once(spark: SparkSession):
    rows = [
        ("a", at("10:00:10"), at("10:05")),
        ("a", at("10:00:10"), at("10:06")),
        ("b", at("10:00:50"), None),
        ("c", at("10:01:00"), at("10:02")),
        ("d", None, at("10:01")),
    ]
    frame = spark.createDataFrame(rows, "order_id string, order_time timestamp, pay_time timestamp")
    actual = hit_rate(frame).orderBy("window_start").collect()
    assert [(row.orders, row.paid, row.hit_rate) for row in actual] == [(2, 1, 0.5), (1, 1, 1.0)]
