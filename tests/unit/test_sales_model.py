"""The model of real-time aggregates against tables worked out by hand, and the stream of sales."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from headrace.patterns.records import HOUR_MS, MINUTE_MS, ConsumedRecord, InvalidRecord
from headrace.patterns.sales.generator import CATEGORIES, MALFORMED, SalesTraffic
from headrace.patterns.sales.model import CATEGORY_SALES, ROLLING_REVENUE, SALE, GoldRow, RollingRevenue, gold, newest
from headrace.patterns.window_model import replay

DAY = datetime(2024, 5, 6, tzinfo=UTC)
GRAINS = {"5 minutes": 5 * MINUTE_MS, "1 hour": HOUR_MS, "1 day": 24 * HOUR_MS}


def ms(clock: str) -> int:
    return round(datetime.fromisoformat(f"2024-05-06T{clock}+00:00").timestamp() * 1000)


def consumed(*sales: tuple[str, str, str, str]) -> list[ConsumedRecord]:
    """Return records of sales: the time of day, the category, the amount, the user."""
    return [
        ConsumedRecord(
            0,
            offset,
            ms("23:59"),
            b"k",
            f'{{"product_id":"p","category":"{category}","amount":{amount},"user_id":"{user}",'
            f'"ts":"2024-05-06T{clock}:00Z"}}'.encode(),
        )
        for offset, (clock, category, amount, user) in enumerate(sales)
    ]


def row(grain: str, start: str, end: str, *rest: object) -> tuple[object, ...]:
    return grain, ms(start), ms(end) if end != "24:00" else ms("00:00") + 24 * HOUR_MS, *rest


def as_tuples(rows: list[GoldRow]) -> list[tuple[object, ...]]:
    return [
        (row.grain, row.window_start, row.window_end, row.category, row.revenue, row.orders, row.unique_users)
        for row in rows
    ]


def test_hours_and_days_add_sums_up_and_count_each_user_once():
    records = consumed(
        ("10:01", "toys", "10.00", "ann"),
        ("10:02", "toys", "-2.50", "bob"),
        ("10:06", "toys", "4.00", "ann"),
        ("10:59", "home", "1.00", "ann"),
        ("11:00", "toys", "8.00", "cid"),
        # Too late: the watermark of the first batch is 10:59, of the second one 11:00.
        ("10:07", "toys", "99.00", "dot"),
    )
    outcome = replay(records, [{0: (0, 5)}, {}, {0: (5, 6)}], CATEGORY_SALES)

    assert outcome.late == [0, 0, 1]
    assert as_tuples(gold(newest(outcome.batches), GRAINS)) == [
        row("5 minutes", "10:00", "10:05", "toys", Decimal("7.50"), 2, 2),
        row("5 minutes", "10:05", "10:10", "toys", Decimal("4.00"), 1, 1),
        row("5 minutes", "10:55", "11:00", "home", Decimal("1.00"), 1, 1),
        row("5 minutes", "11:00", "11:05", "toys", Decimal("8.00"), 1, 1),
        row("1 hour", "10:00", "11:00", "home", Decimal("1.00"), 1, 1),
        row("1 hour", "10:00", "11:00", "toys", Decimal("11.50"), 3, 2),
        row("1 hour", "11:00", "12:00", "toys", Decimal("8.00"), 1, 1),
        row("1 day", "00:00", "24:00", "home", Decimal("1.00"), 1, 1),
        row("1 day", "00:00", "24:00", "toys", Decimal("19.50"), 4, 3),
    ]


def test_a_sale_is_in_five_rolling_windows():
    outcome = replay(consumed(("10:01", "toys", "3.00", "ann")), [{0: (0, 1)}], ROLLING_REVENUE)

    starts = ["09:52", "09:54", "09:56", "09:58", "10:00"]
    assert newest(outcome.batches) == [
        RollingRevenue(ms(start), ms(start) + 10 * MINUTE_MS, "toys", Decimal("3.00"), 1) for start in starts
    ]


def test_every_kind_of_malformed_record_is_invalid_and_every_other_one_is_a_sale():
    created = list(SalesTraffic(rate=20, malformed=0.2).events(DAY, DAY + timedelta(minutes=3)))
    verdicts = [
        (item.kind, SALE.parse(ConsumedRecord(0, number, item.arrival_ms, item.key, item.value)))
        for number, item in enumerate(created)
    ]

    assert {kind for kind, verdict in verdicts if isinstance(verdict, InvalidRecord)} == set(MALFORMED)
    assert {kind for kind, verdict in verdicts if not isinstance(verdict, InvalidRecord)} == {
        "sale",
        "late",
        "duplicate",
    }


def test_the_same_seed_results_in_the_same_sales_of_all_categories_with_refunds_and_returning_users():
    created = list(SalesTraffic().events(DAY, DAY + timedelta(seconds=30)))
    assert created == list(SalesTraffic().events(DAY, DAY + timedelta(seconds=30)))
    assert created != list(SalesTraffic(seed=8).events(DAY, DAY + timedelta(seconds=30)))

    sales = [json.loads(item.value or b"") for item in created if item.kind == "sale"]
    assert {sale["category"] for sale in sales} == {category.name for category in CATEGORIES}
    assert 0 < sum(sale["amount"] < 0 for sale in sales) < 0.05 * len(sales)
    users = Counter(sale["user_id"] for sale in sales)
    assert max(users.values()) > 1


@pytest.mark.parametrize("kind", ["sale", "late"])
def test_late_sales_lie_twenty_minutes_behind_and_others_less_than_five(kind: str):
    created = SalesTraffic(rate=50, late=0.1).events(DAY, DAY + timedelta(minutes=2))
    behind = [item.arrival_ms - (item.event_time_ms or 0) for item in created if item.kind == kind]
    least, most = (0, 5) if kind == "sale" else (20, 60)
    assert least * MINUTE_MS <= min(behind) <= max(behind) <= most * MINUTE_MS
