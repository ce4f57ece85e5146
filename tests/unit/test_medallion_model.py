"""The medallion without Spark: the model against tables worked out by hand, and the orders."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from headrace.patterns.medallion import model
from headrace.patterns.medallion.flows import RULES
from headrace.patterns.medallion.generator import MALFORMED, WebOrderTraffic
from headrace.patterns.records import ConsumedRecord, InvalidRecord

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)


def arrived(offset: int, minute: float = 0, **changes: object) -> ConsumedRecord:
    order = {"order_id": f"o{offset}", "customer_id": "c1", "country": "DE", "amount": 10, "items": 1}
    payload = json.dumps({**order, "ordered_at": "2024-05-06T11:00:00Z", **changes}).encode()
    at = round((NOON + timedelta(minutes=minute)).timestamp() * 1000)
    return ConsumedRecord(0, offset, at, None, payload)


def test_rules_are_counted_and_each_has_its_effect() -> None:
    actual = model.silver(
        [
            arrived(0),
            arrived(1, amount=0),
            arrived(2, ordered_at="2024-05-06T13:00:00.001Z"),
            arrived(3, ordered_at="2024-05-06T13:00:00.000Z"),
            arrived(4, customer_id="test-1"),
            arrived(5, items=51),
            # Against two rules: filed under the first, counted by both.
            arrived(6, amount=-1, customer_id="test-2"),
            arrived(7, items=1.0),
            ConsumedRecord(0, 8, 0, None, None),
        ]
    )
    assert [order.order_id for order in actual.orders] == ["o0", "o3", "o5"]
    assert sorted(actual.invalid, key=lambda bad: bad.offset) == [
        InvalidRecord(0, 1, "rule:positive_amount"),
        InvalidRecord(0, 2, "rule:not_from_the_future"),
        InvalidRecord(0, 6, "rule:positive_amount"),
        InvalidRecord(0, 7, "wrong_type:items"),
        InvalidRecord(0, 8, "null_value"),
    ]
    assert actual.violations == {
        "positive_amount": 2,
        "not_from_the_future": 1,
        "no_test_orders": 2,
        "few_items": 1,
        "sane_amount": 0,
    }


def test_the_model_knows_the_rules_of_the_flow_and_their_actions() -> None:
    assert {rule.name: rule.action for rule in RULES} == {name: action for name, (action, _) in model.RULES.items()}


def test_an_order_counts_once_within_an_hour_of_its_arrival_whatever_its_event_time() -> None:
    again = {"order_id": "o"}
    actual = model.silver(
        [arrived(0, 0, **again, ordered_at="2020-01-01T00:00:00Z"), arrived(1, 60, **again), arrived(2, 60.1, **again)]
    )
    assert [order.order_date for order in actual.orders] == [date(2020, 1, 1), date(2024, 5, 6)]


def test_gold_adds_up_exactly_by_day_and_country() -> None:
    orders = model.silver(
        [
            arrived(0, amount=0.10),
            arrived(1, amount=0.20, items=3),
            arrived(2, amount=0.20),
            arrived(3, country="FR"),
            arrived(4, ordered_at="2024-05-05T23:59:59.999Z"),
        ]
    ).orders
    day, before = date(2024, 5, 6), date(2024, 5, 5)
    assert model.gold(orders) == [
        model.DailySales(before, "DE", 1, 1, Decimal(10), Decimal(10), Decimal(10)),
        # 0.50 / 3, half up in the sixth digit
        model.DailySales(day, "DE", 3, 5, Decimal("0.50"), Decimal("0.166667"), Decimal("0.20")),
        model.DailySales(day, "FR", 1, 1, Decimal(10), Decimal(10), Decimal(10)),
    ]


def test_the_same_seed_results_in_the_same_orders_and_some_violate_each_rule_except_the_last() -> None:
    traffic = WebOrderTraffic(rate=20, late=0.02, duplicates=0.02, malformed=0.02)
    created = list(traffic.events(NOON, NOON + timedelta(minutes=10)))
    assert created == list(traffic.events(NOON, NOON + timedelta(minutes=10)))
    kinds = Counter(record.kind for record in created)
    assert {"order", "late", "duplicate", *MALFORMED} == set(kinds)
    actual = model.silver(ConsumedRecord(0, n, item.arrival_ms, item.key, item.value) for n, item in enumerate(created))
    assert {name for name, rows in actual.violations.items() if rows} == set(model.RULES) - {"sane_amount"}
    # What is left out: invalid, a test, or there already.
    assert len(actual.orders) < len(created) - kinds["duplicate"]
    late = [item.arrival_ms - (item.event_time_ms or 0) for item in created if item.kind == "late"]
    assert min(late) >= 24 * 3_600_000
