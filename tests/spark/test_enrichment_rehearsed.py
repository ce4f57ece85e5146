"""Purchases and products as declared, rehearsed without a broker, against tables worked out by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from headrace import CustomSink, FanOut
from headrace.flow.sink import Batch
from headrace.patterns.enrichment.flows import PRODUCT, EnrichmentSettings, flows
from headrace.testing import Arrive, Clock, Crash, Keyed, Point, rehearse

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PRODUCTS, PURCHASES = flows()
SETTINGS = EnrichmentSettings()


def at(clock: str, year: int = 2024) -> datetime:
    return datetime.fromisoformat(f"{year}-05-06T{clock}").replace(tzinfo=UTC)


def product(name: str, price: str, clock: str) -> dict[str, object]:
    fields = {"product_id": name, "name": name.title(), "category": "home", "price": Decimal(price)}
    return {**fields, "updated_at": at(clock)}


def purchase(number: str, name: str, moment: datetime, **others: object) -> Keyed:
    fields = {"purchase_id": number, "product_id": name, "user_id": "u1", "quantity": 1, "ts": moment}
    return Keyed(name, {**fields, **others})


def test_the_dimension_has_the_newest_state_of_each_product_whatever_the_order(spark: SparkSession, tmp_path: Path):
    no_price = product("rug", "1.00", "11:00")
    del no_price["price"]
    rehearsal = rehearse(
        PRODUCTS,
        [
            Arrive(
                product("lamp", "10.00", "10:00"), product("lamp", "9.00", "09:00"), product("desk", "50.00", "10:00")
            ),
            # An update that comes late does not replace a newer one.
            Arrive(product("lamp", "8.00", "09:30"), product("desk", "55.00", "10:01"), no_price),
            Crash(Point.AFTER_SINK),
        ],
        spark=spark,
        folder=tmp_path,
        sink=PRODUCTS.sink,
    )
    table = [(row.product_id, str(row.price), row.updated_at.minute) for row in rehearsal.table(SETTINGS.dimension)]
    assert sorted(table) == [("desk", "55.00", 1), ("lamp", "10.00", 0)]
    assert [row.reason for row in rehearsal.quarantine] == ["missing:price"]
    assert rehearsal.restarts == 1


def test_a_purchase_waits_for_its_product_and_retains_the_price_of_the_join(spark: SparkSession, tmp_path: Path):
    arriving = {
        0: [product("lamp", "10.00", "10:00")],
        1: [product("lamp", "12.00", "11:00"), product("desk", "50.00", "11:00")],
    }

    def change_products(rows: DataFrame, batch: Batch) -> None:
        """Do what the flow of products does between two batches of purchases."""
        if batch.id in arriving:
            frame = rows.sparkSession.createDataFrame([tuple(row.values()) for row in arriving[batch.id]], PRODUCT)
            PRODUCTS.sink.write(frame, Batch("products", "q1", batch.id, batch.target))

    rehearsal = rehearse(
        PURCHASES,
        [
            Clock(at("12:00")),
            Arrive(
                purchase("p1", "lamp", at("11:58")),
                purchase("p2", "desk", at("11:59")),
                purchase("p3", "rug", at("11:59")),
                purchase("no-quantity", "lamp", at("11:59"), quantity=None),
                purchase("future", "lamp", at("13:00:01")),
            ),
            # A purchase of years ago is not late: without state there is no window that it could miss.
            Arrive(purchase("p4", "lamp", at("12:00", year=2019))),
            Crash(Point.AFTER_SINK),
        ],
        spark=spark,
        folder=tmp_path,
        sink=FanOut(CustomSink("products", change_products), PURCHASES.sink),
    )
    rows = sorted(rehearsal.table(SETTINGS.table), key=lambda row: row.purchase_id)
    assert [(row.purchase_id, row.name, row.price, row.enriched) for row in rows] == [
        ("p1", "Lamp", Decimal("10.00"), True),
        ("p2", "Desk", Decimal("50.00"), True),
        ("p3", None, None, False),
        ("p4", "Lamp", Decimal("12.00"), True),
    ]
    # All but the first one were looked up in the second state of the products.
    first, *others = (row.dimension_version for row in rows)
    assert (len(set(others)), first < others[0]) == (1, True)
    assert sorted(row.reason for row in rehearsal.quarantine) == ["event_time_in_future", "missing:quantity"]
    assert (rehearsal.late, rehearsal.restarts) == ([], 1)
