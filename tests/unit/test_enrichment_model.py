"""The model of enrichment against a table worked out by hand, and the streams of purchases and products."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from headrace.patterns.enrichment.flows import EnrichmentSettings, flows
from headrace.patterns.enrichment.generator import MALFORMED, EnrichmentTraffic, ProductGenerator, PurchaseTraffic
from headrace.patterns.enrichment.model import PURCHASE, Product, newest_products, replay
from headrace.patterns.records import ConsumedRecord, InvalidRecord
from headrace.sinks.delta.policy import TablePolicy

DAY = datetime(2024, 5, 6, tzinfo=UTC)
NOON_US = round(DAY.timestamp() * 1_000_000) + 12 * 3_600_000_000


def consumed(*products: str) -> list[ConsumedRecord]:
    """Return purchases of products, at 12:00, 12:01, ..."""
    return [
        ConsumedRecord(
            0,
            number,
            round(DAY.timestamp() * 1000) + 86_400_000,
            None,
            f'{{"purchase_id":"{number}","product_id":"{product}","user_id":"u","quantity":1,'
            f'"ts":"2024-05-06T12:{number:02d}:00Z"}}'.encode(),
        )
        for number, product in enumerate(products)
    ]


def product(name: str, price: str, since: int | None = None, until: int | None = None) -> Product:
    """Return a product that is valid from a minute after noon until before another one."""
    bounds = (None if minute is None else NOON_US + minute * 60_000_000 for minute in (since, until))
    return Product(name, name.upper(), "home", Decimal(price), *bounds)


def test_a_purchase_is_enriched_once_by_the_first_version_that_has_its_product():
    records = [*consumed("nut", "bolt", "gear", "nut"), ConsumedRecord(0, 4, 0, None, b"{")]
    versions = {3: [product("nut", "1.00")], 5: [product("nut", "2.00"), product("bolt", "4.00")]}

    actual = replay(records, [{0: (0, 2)}, {0: (2, 3)}, {0: (3, 5)}], [3, 3, 5], versions)

    reported = sorted(
        (row.purchase_id, row.name, row.price, row.enriched, row.dimension_version) for row in actual.rows
    )
    assert reported == [
        ("0", "NUT", Decimal("1.00"), True, 3),
        ("1", "BOLT", Decimal("4.00"), True, 5),
        ("2", None, None, False, 5),
        ("3", "NUT", Decimal("2.00"), True, 5),
    ]
    assert actual.enriched_later == 1
    assert actual.invalid == [InvalidRecord(0, 4, "malformed_json")]


def test_by_event_time_the_valid_row_is_taken_up_to_its_end():
    versions = {0: [product("nut", "1.00", 0, 2), product("nut", "2.00", 2, 3), product("nut", "4.00", 4)]}

    actual = replay(consumed(*["nut"] * 6), [{0: (0, 6)}], [0], versions)

    assert {row.purchase_id: row.price and str(row.price) for row in actual.rows} == {
        "0": "1.00",
        "1": "1.00",
        "2": "2.00",
        "3": None,
        "4": "4.00",
        "5": "4.00",
    }


def test_every_kind_of_malformed_record_is_invalid_and_every_other_one_is_a_purchase():
    created = PurchaseTraffic(rate=20, malformed=0.2).events(DAY, DAY + timedelta(minutes=3))
    verdicts = [
        (item.kind, PURCHASE.parse(ConsumedRecord(0, 0, item.arrival_ms, item.key, item.value))) for item in created
    ]

    assert {kind for kind, verdict in verdicts if isinstance(verdict, InvalidRecord)} == set(MALFORMED)
    assert {kind for kind, verdict in verdicts if not isinstance(verdict, InvalidRecord)} == {
        "purchase",
        "late",
        "duplicate",
    }


def test_products_are_in_order_independent_of_the_start_and_change_their_price():
    created = list(ProductGenerator().events(DAY, DAY + timedelta(minutes=30)))
    later = list(ProductGenerator().events(DAY + timedelta(minutes=20), DAY + timedelta(minutes=30)))

    assert [item.arrival_ms for item in created] == sorted(item.arrival_ms for item in created)
    assert {item.kind for item in created} == {"product", "price"}
    end = [ConsumedRecord(0, number, 0, item.key, item.value) for number, item in enumerate(created)]
    same = [ConsumedRecord(0, number, 0, item.key, item.value) for number, item in enumerate(later)]
    complete = newest_products(end)
    # Those that are no longer sold are not sent any more.
    assert {name: item for name, item in complete.items() if name in newest_products(same)} == newest_products(same)
    prices: dict[str, set[str]] = {}
    for item in created:
        reported = json.loads(item.value or b"")
        prices.setdefault(reported["product_id"], set()).add(reported["price"])
    assert any(len(price) > 1 for price in prices.values())


def test_both_tables_have_the_declared_policy():
    stored = TablePolicy(retention="2 days")

    assert [flow.sink.policy for flow in flows(EnrichmentSettings(policy=stored))] == [stored, stored]
    assert [flow.sink.policy for flow in flows()] == [TablePolicy(), TablePolicy()]


def test_both_come_in_one_stream_in_order_each_on_its_topic():
    settings, end = PurchaseTraffic(rate=5, products_topic="known"), DAY + timedelta(minutes=10)
    both = EnrichmentTraffic(rate=5, products_topic="known")
    created = list(both.events(DAY, end))

    assert [item.arrival_ms for item in created] == sorted(item.arrival_ms for item in created)
    products = [item for item in created if item.topic == "known"]
    assert products == list(ProductGenerator(settings).events(DAY, end))
    # None is the topic of the generator itself.
    purchases = [item for item in created if item.topic is None]
    assert purchases == list(settings.events(DAY, end))
    assert len(products) + len(purchases) == len(created)
    assert both.topic == "purchases"
    # What is known at the first moment comes before the first purchase.
    assert created.index(purchases[0]) > 100


def test_some_products_are_bought_before_they_are_announced_and_some_never_are():
    hour = DAY + timedelta(hours=1)
    announced = {
        json.loads(event.value or b"")["product_id"]: event.arrival_ms
        for event in ProductGenerator().events(DAY, hour)
        if event.kind == "product"
    }
    bought = {
        (json.loads(event.value or b"")["product_id"], event.arrival_ms)
        for event in PurchaseTraffic(rate=5, malformed=0, late=0).events(hour - timedelta(minutes=9), hour)
    }
    before = {name for name, at in bought if name in announced and at < announced[name]}
    never = {name for name, _ in bought} - announced.keys()
    assert len(before) > 3
    assert 0 < len(never) < 0.2 * len({name for name, _ in bought})
