"""Bronze, silver and gold as declared, rehearsed without a broker, against tables worked out by hand."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.patterns.medallion.flows import ORDER, flows
from headrace.testing import Arrive, Clock, Crash, Keyed, Point, rehearse

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BRONZE, SILVER, GOLD = flows()
# The columns that Spark's Kafka source has with `includeHeaders`, as far as bronze reads them.
RECORD = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField(
            "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
        ),
    ]
)
SILVER_ROW = StructType([*ORDER, StructField("order_date", DateType())])


def at(clock: str, day: str = "06") -> datetime:
    return datetime.fromisoformat(f"2024-05-{day}T{clock}").replace(tzinfo=UTC)


def order(
    number: str, *, amount: str = "20.00", ordered: datetime | None = None, **others: object
) -> dict[str, object]:
    fields = {"order_id": number, "customer_id": "c1", "country": "DE", "amount": Decimal(amount), "items": 2}
    return {**fields, "ordered_at": ordered or at("09:59"), **others}


def test_bronze_contains_every_record_with_its_offset_once_also_after_a_crash(spark: SparkSession, tmp_path: Path):
    def record(offset: int, value: bytes | None, **others: object) -> dict[str, object]:
        place = {"topic": "web-orders", "partition": 1, "offset": offset, "timestamp": at("10:00")}
        return {"key": b"k", "value": value, "headers": None, **place, **others}

    rehearsal = rehearse(
        BRONZE,
        [
            # Valid or not is for silver to say, and a record from years ago is not late here.
            Arrive(record(7, b'{"order_id": "o1"}', headers=[{"key": "shop", "value": b"\x01"}]), record(8, b"{torn")),
            Arrive(record(9, None, key=None), record(10, b"\xff", timestamp=datetime(2001, 1, 1, tzinfo=UTC))),
            Crash(Point.AFTER_SINK),
        ],
        spark=spark,
        folder=tmp_path,
        columns={"rows": RECORD},
    )
    columns = ("offset", "payload", "key", "topic", "partition")
    assert [tuple(row[name] for name in columns) for row in sorted(rehearsal.rows, key=lambda row: row.offset)] == [
        (7, b'{"order_id": "o1"}', b"k", "web-orders", 1),
        (8, b"{torn", b"k", "web-orders", 1),
        (9, None, None, "web-orders", 1),
        (10, b"\xff", b"k", "web-orders", 1),
    ]
    assert [[tuple(header) for header in row.headers or ()] for row in rehearsal.rows if row.offset == 7] == [
        [("shop", b"\x01")]
    ]
    assert (rehearsal.quarantine, rehearsal.late, rehearsal.restarts) == ([], [], 1)


def test_silver_contains_each_valid_order_once_within_an_hour_of_its_arrival(spark: SparkSession, tmp_path: Path):
    rehearsal = rehearse(
        SILVER,
        [
            Clock(at("10:00")),
            Arrive(
                order("o1"),
                # Late by its event time, and in time by its arrival, which is what the watermark is on.
                order("o2", amount="5.50", country="FR", ordered=at("23:59", day="01")),
                order("negative", amount="-1.00"),
                order("test", customer_id="test-1"),  # dropped: no table has it
                order("many", items=51),  # a warning: the row stays
                order("just", ordered=at("11:00")),
                order("future", ordered=at("11:00:00.001")),
                Keyed("k", '{"order_id": "torn'),
                {name: value for name, value in order("no-country").items() if name != "country"},
            ),
            Clock(at("11:00")),
            Arrive(order("o1", amount="99.00")),
            Crash(Point.AFTER_SINK),
            # The watermark is an hour behind: 11:30 after this batch. The next one forgets what arrived until 10:30.
            Clock(at("12:30")),
            Arrive(order("o3")),
            Arrive(),
            Arrive(order("o1", amount="7.00"), order("o3", amount="99.00")),
        ],
        spark=spark,
        folder=tmp_path,
    )
    table = [
        [(row.order_id, str(row.amount), row.country, row.order_date) for row in batch] for batch in rehearsal.batches
    ]
    today = date(2024, 5, 6)
    assert [sorted(batch) for batch in table if batch] == [
        [
            ("just", "20.00", "DE", today),
            ("many", "20.00", "DE", today),
            ("o1", "20.00", "DE", today),
            ("o2", "5.50", "FR", date(2024, 5, 1)),
        ],
        [("o3", "20.00", "DE", today)],
        [("o1", "7.00", "DE", today)],
    ]
    assert sorted(row.reason for row in rehearsal.quarantine) == [
        "malformed_json",
        "missing:country",
        "rule:not_from_the_future",
        "rule:positive_amount",
    ]
    assert (rehearsal.late, rehearsal.restarts) == ([], 1)


def test_a_late_order_changes_the_figures_of_its_own_day(spark: SparkSession, tmp_path: Path):
    def row(day: int, country: str, amount: str, items: int = 1) -> dict[str, object]:
        moment = datetime(2024, 5, day, 10, tzinfo=UTC)
        return order("o", amount=amount, country=country, items=items, ordered=moment) | {"order_date": moment.date()}

    rehearsal = rehearse(
        GOLD,
        [
            Arrive(row(6, "DE", "20.00", 2), row(6, "DE", "10.01"), row(1, "FR", "5.50")),
            Arrive(row(1, "FR", "4.00", 3), row(6, "NL", "0.10", 60)),
            Crash(Point.AFTER_SINK),
        ],
        spark=spark,
        folder=tmp_path,
        columns={"rows": SILVER_ROW},
    )
    figures = [
        (
            row.order_date.day,
            row.country,
            row.orders,
            row.items,
            str(row.revenue),
            str(row.avg_order),
            str(row.largest_order),
        )
        for row in rehearsal.newest("order_date", "country")
    ]
    assert sorted(figures) == [
        (1, "FR", 2, 4, "9.50", "4.750000", "5.50"),
        (6, "DE", 2, 3, "30.01", "15.005000", "20.00"),
        (6, "NL", 1, 60, "0.10", "0.100000", "0.10"),
    ]
    # The second batch changes two of the three rows, and leaves the third one alone.
    assert [len(batch) for batch in rehearsal.batches] == [2, 2]
    assert rehearsal.restarts == 1
