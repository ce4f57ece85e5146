"""The flows of real-time aggregates as declared, rehearsed without a broker, against tables worked out by hand."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from headrace.patterns.sales.flows import SalesSettings, flows
from headrace.testing import Arrive, Clock, Crash, Keyed, Point, rehearse

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.spark

CATEGORY_SALES, ROLLING_REVENUE = flows()


def sale(moment: str, amount: str, user: str = "u1", category: str = "toys") -> Keyed:
    """Return a sale of a day in May and a time of day, such as `06T10:00`."""
    ts = datetime.fromisoformat(f"2024-05-{moment}").replace(tzinfo=UTC)
    fields = {"product_id": "p1", "category": category, "amount": Decimal(amount), "user_id": user, "ts": ts}
    return Keyed("p1", fields)


def remove_field(record: Keyed, field: str) -> Keyed:
    assert isinstance(record.value, dict)
    return Keyed(record.key, {name: value for name, value in record.value.items() if name != field})


def late_windows(rows: list[Row]) -> list[tuple[str, float]]:
    """Return when the window of each row of the late ledger starts, and the amount of the sale."""
    return sorted((f"{row.window_start:%H:%M}", json.loads(row.row)["amount"]) for row in rows)


def test_hours_and_days_are_the_sums_of_their_minutes_after_an_update_and_a_crash(spark: SparkSession, tmp_path: Path):
    rehearsal = rehearse(
        CATEGORY_SALES,
        [
            Arrive(
                sale("05T23:58", "3.00", "u9", "books"),
                sale("06T09:58", "4.00", "u2"),
                sale("06T10:00", "10.00"),
                sale("06T10:04:59", "5.50", "u2"),
                sale("06T10:03", "7.25", category="books"),
                sale("06T10:06", "2.00"),
            ),
            # A refund by a third buyer, in a window that is in the table already.
            Arrive(sale("06T10:05:30", "-0.50", "u3")),
            Crash(Point.AFTER_SINK),
        ],
        spark=spark,
        folder=tmp_path,
        sink=CATEGORY_SALES.sink,
    )
    table = [
        (row.grain, f"{row.window_start:%dT%H:%M}", row.category, str(row.revenue), row.orders, row.unique_users)
        for row in rehearsal.table(SalesSettings().gold_table)
    ]
    assert sorted(table) == [
        # Users cannot be added up: u1 buys in both windows of 10 o'clock, u2 at 9 and at 10 o'clock.
        ("1 day", "05T00:00", "books", "3.00", 1, 1),
        ("1 day", "06T00:00", "books", "7.25", 1, 1),
        ("1 day", "06T00:00", "toys", "21.00", 5, 3),
        ("1 hour", "05T23:00", "books", "3.00", 1, 1),
        ("1 hour", "06T09:00", "toys", "4.00", 1, 1),
        ("1 hour", "06T10:00", "books", "7.25", 1, 1),
        ("1 hour", "06T10:00", "toys", "17.00", 4, 3),
        ("5 minutes", "05T23:55", "books", "3.00", 1, 1),
        ("5 minutes", "06T09:55", "toys", "4.00", 1, 1),
        ("5 minutes", "06T10:00", "books", "7.25", 1, 1),
        ("5 minutes", "06T10:00", "toys", "15.50", 2, 2),
        ("5 minutes", "06T10:05", "toys", "1.50", 2, 2),
    ]
    assert rehearsal.restarts == 1


def test_a_sale_counts_in_every_rolling_window_that_is_still_open(spark: SparkSession, tmp_path: Path):
    rehearsal = rehearse(
        ROLLING_REVENUE,
        [
            Clock(datetime(2024, 5, 6, 11, tzinfo=UTC)),
            # The watermark is two minutes behind: 10:04 after this batch.
            Arrive(
                sale("06T10:00", "5.00"),
                sale("06T10:03", "2.50"),
                sale("06T10:06", "1.00"),
                remove_field(sale("06T10:01", "1.00"), "amount"),
                sale("06T12:00:01", "1000.00"),  # more than an hour ahead of the broker's clock
                Keyed("p1", '{"product_id": "torn'),
            ),
            Arrive(sale("06T10:05", "0.10")),
            Crash(Point.AFTER_SINK),
            # Spark compares with the watermark of the batch before. The windows of 9:52 and 9:54 are closed by now,
            # those of 9:56, 9:58 and 10:00 take the first sale.
            Arrive(sale("06T10:01", "0.25"), sale("06T09:53", "99.00")),
        ],
        spark=spark,
        folder=tmp_path,
    )
    windows = [
        (f"{row.window_start:%H:%M}", f"{row.window_end:%H:%M}", str(row.revenue), row.orders)
        for row in rehearsal.newest("window_start", "category")
    ]
    assert sorted(windows) == [
        ("09:52", "10:02", "5.00", 1),
        ("09:54", "10:04", "7.50", 2),
        ("09:56", "10:06", "7.85", 4),
        ("09:58", "10:08", "8.85", 5),
        ("10:00", "10:10", "8.85", 5),
        ("10:02", "10:12", "3.60", 3),
        ("10:04", "10:14", "1.10", 2),
        ("10:06", "10:16", "1.00", 1),
    ]
    # The ledger has a row for every window that a sale missed.
    assert late_windows(rehearsal.late) == [
        ("09:44", 99.00),
        ("09:46", 99.00),
        ("09:48", 99.00),
        ("09:50", 99.00),
        ("09:52", 0.25),
        ("09:52", 99.00),
        ("09:54", 0.25),
    ]
    assert sorted(row.reason for row in rehearsal.quarantine) == [
        "event_time_in_future",
        "malformed_json",
        "missing:amount",
    ]
    assert rehearsal.restarts == 1
