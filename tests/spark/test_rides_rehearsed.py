"""The flows of ride analytics as they are declared, rehearsed without a broker, against tables worked out by hand."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from headrace.patterns.rides.flows import flows
from headrace.testing import Arrive, Clock, Crash, EndOfInput, Keyed, Point, rehearse

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.spark

CITY_RIDES, SURGE, DRIVER_METRICS = (
    {flow.name: flow for flow in flows()}[name] for name in ("city_rides", "surge", "driver_metrics")
)


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2024-05-06T{clock}").replace(tzinfo=UTC)


def ride(
    clock: str, status: str = "completed", fare: str | None = None, driver: str = "d1", rider: str = "u1"
) -> Keyed:
    return Keyed(
        "r",
        {
            "ride_id": "r",
            "driver_id": driver,
            "rider_id": rider,
            "city": "Paris",
            "pickup_lat": 48.85,
            "pickup_lon": 2.35,
            "fare_amount": None if fare is None else Decimal(fare),
            "status": status,
            "event_time": at(clock),
        },
    )


def shown(rows: list[Row], *columns: str) -> list[tuple[object, ...]]:
    """Return columns of rows, after the time of day at which their windows begin."""
    return sorted((f"{row.window_start:%H:%M}", *(row[column] for column in columns)) for row in rows)


def test_drivers_get_a_row_per_closed_window_with_exact_riders_once_also_when_the_driver_dies(
    spark: SparkSession, tmp_path: Path
):
    actual = rehearse(
        DRIVER_METRICS,
        [
            Arrive(
                ride("10:00", fare="10.00"),
                ride("10:14", fare="21.00", rider="u2"),
                ride("10:14", fare="5.00", rider="u2"),
                ride("10:05", "cancelled"),
                ride("10:20", fare="7.00", driver="d2"),
            ),
            # The watermark is 30 minutes behind: 10:16 after this batch, so the next one closes 10:00.
            Arrive(ride("10:46", fare="1.00", driver="d3")),
            Crash(Point.AFTER_SINK),
            Arrive(ride("10:47", "in_progress")),
            # Too late for 10:00, in time for 10:15.
            Arrive(ride("10:14", fare="99.00"), ride("10:29", fare="8.00", driver="d2")),
            EndOfInput(),
        ],
        spark=spark,
        folder=tmp_path,
    )
    assert shown(actual.rows, "driver_id", "completed_rides", "avg_fare", "unique_riders") == [
        ("10:00", "d1", 3, Decimal("12.000000"), 2),
        ("10:15", "d2", 2, Decimal("7.500000"), 1),
        ("10:45", "d3", 1, Decimal("1.000000"), 1),
    ]
    assert [json.loads(row.row)["fare_amount"] for row in actual.late] == [99.00]
    assert actual.restarts == 1


def test_a_city_shows_the_newest_figures_and_invalid_records_are_quarantined(spark: SparkSession, tmp_path: Path):
    actual = rehearse(
        CITY_RIDES,
        [
            Clock(at("11:00")),
            Arrive(ride("10:00", fare="10.00"), ride("10:01", "cancelled"), ride("10:02", "unknown")),
            Arrive(
                ride("10:04", fare="20.00"),
                ride("10:05", "in_progress"),
                Keyed("r", '{"ride_id": "torn'),
                ride("12:01", fare="1.00"),  # an hour and a minute ahead of the broker's clock
                {"ride_id": "without a key"},
            ),
        ],
        spark=spark,
        folder=tmp_path,
    )
    assert shown(
        actual.newest("window_start", "city"), "ride_count", "completed_rides", "avg_fare", "completion_rate"
    ) == [("10:00", 3, 2, Decimal("15.000000"), 0.6667), ("10:05", 1, 0, None, 0.0)]
    assert sorted(row.reason for row in actual.quarantine) == ["event_time_in_future", "malformed_json", "null_key"]


def test_prices_surge_by_active_rides_per_available_driver(spark: SparkSession, tmp_path: Path):
    def active(count: int, clock: str) -> list[Keyed]:
        return [ride(clock, "in_progress", driver=f"busy{number}") for number in range(count)]

    actual = rehearse(
        SURGE,
        [
            Arrive(*active(2, "10:00"), ride("10:01", driver="free")),
            Arrive(*active(3, "10:05"), ride("10:06", driver="free")),
            Arrive(*active(4, "10:10"), ride("10:11", driver="free")),
            Arrive(*active(1, "10:15")),
        ],
        spark=spark,
        folder=tmp_path,
    )
    columns = ("active_rides", "available_drivers", "surge_multiplier")
    assert shown(actual.newest("window_start", "city"), *columns) == [
        ("10:00", 2, 1, 1.0),
        ("10:05", 3, 1, 1.5),
        ("10:10", 4, 1, 2.0),
        ("10:15", 1, 0, 2.0),
    ]
