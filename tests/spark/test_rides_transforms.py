"""The transforms of ride analytics on batch frames, against tables worked out by hand."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql import functions as F

from headrace.patterns.rides.flows import RIDE, city_rides, counted_rides, driver_metrics, surge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Ride = dict[str, object]


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2024-05-06T{clock}").replace(tzinfo=UTC)


def ride(clock: str, status: str = "completed", **changes: object) -> Ride:
    return {
        "ride_id": "r",
        "driver_id": "d1",
        "rider_id": "u1",
        "city": "Paris",
        "pickup_lat": 48.85,
        "pickup_lon": 2.35,
        "dropoff_lat": None,
        "dropoff_lon": None,
        "fare_amount": None,
        "status": status,
        "event_time": at(clock),
        **changes,
    }


def fare(text: str) -> Decimal:
    return Decimal(text)


def frame(spark: SparkSession, rides: list[Ride]) -> DataFrame:
    return spark.createDataFrame([tuple(ride[field.name] for field in RIDE) for ride in rides], RIDE)


def sorted_rows(result: DataFrame) -> list[tuple[object, ...]]:
    """Return rows with the time of day of their windows, sorted."""
    shown = [F.date_format(name, "HH:mm").alias(name) for name in ("window_start", "window_end")]
    rest = [column for column in result.columns if column not in ("window_start", "window_end")]
    return sorted(tuple(row) for row in result.select(*shown, *rest).collect())


# ---- known rides ----


def test_only_rides_of_a_known_status_are_returned_with_their_day_and_hour_in_utc(spark: SparkSession) -> None:
    rides = [
        ride("00:00:00", "completed"),
        ride("23:59:59.999", "cancelled"),
        ride("12:30:00", "in_progress"),
        ride("12:00:00", "requested"),
        ride("12:00:00", "Completed"),
        ride("12:00:00", ""),
    ]
    stored = counted_rides(frame(spark, rides)).select("status", F.col("event_date").cast("string"), "hour_of_day")
    assert sorted(tuple(row) for row in stored.collect()) == [
        ("cancelled", "2024-05-06", 23),
        ("completed", "2024-05-06", 0),
        ("in_progress", "2024-05-06", 12),
    ]


# ---- city rides ----


def test_city_rides_counts_by_window_and_city(spark: SparkSession) -> None:
    rides = [
        ride("08:00:00", fare_amount=fare("10.00"), driver_id="d1"),
        ride("08:04:59.999999", fare_amount=fare("10.01"), driver_id="d2"),
        ride("08:02:00", "cancelled", driver_id="d1", fare_amount=fare("99.00")),  # its fare is not averaged
        ride("08:03:00", "in_progress", driver_id="d3"),
        ride("08:03:00", "requested", driver_id="d9"),  # not counted at all
        ride("08:03:00", "completed", driver_id="d3"),  # without a fare: counted, not averaged
        ride("08:05:00", fare_amount=fare("3.33")),  # the next window begins here
        ride("08:01:00", "in_progress", city="Berlin"),
    ]
    assert sorted_rows(city_rides(frame(spark, rides), "5 minutes")) == [
        ("08:00", "08:05", "Berlin", 1, 0, None, 1, 0.0),
        ("08:00", "08:05", "Paris", 5, 3, fare("10.005000"), 3, 0.6),
        ("08:05", "08:10", "Paris", 1, 1, fare("3.330000"), 1, 1.0),
    ]


def test_a_completion_rate_has_four_decimals(spark: SparkSession) -> None:
    rides = [ride("08:00:00"), ride("08:00:00"), ride("08:00:00", "cancelled")]
    assert [row[-1] for row in sorted_rows(city_rides(frame(spark, rides), "5 minutes"))] == [0.6667]


def test_an_average_is_exact_where_doubles_are_off_by_a_millionth(spark: SparkSession) -> None:
    """159 fares of 34.00 and one of 90.71 are 5496.71; a 160th of that is 34.3544375, rounded half up 34.354438."""
    fares = ["34.00"] * 159 + ["90.71"]
    assert sum(map(Decimal, fares)) == Decimal("5496.71")
    rides = [ride("08:00:00", fare_amount=fare(item)) for item in fares]
    (city,) = sorted_rows(city_rides(frame(spark, rides), "5 minutes"))
    (driver,) = sorted_rows(driver_metrics(frame(spark, rides), "15 minutes"))
    assert city[5] == driver[4] == Decimal("34.354438")


def test_no_rides_return_no_rows(spark: SparkSession) -> None:
    nothing = frame(spark, [])
    assert sorted_rows(city_rides(nothing, "5 minutes")) == []
    assert sorted_rows(surge(frame(spark, [ride("08:00:00", "requested")]), "5 minutes")) == []


# ---- surge ----


@pytest.mark.parametrize(
    ("active", "available", "multiplier"),
    [
        (2, 1, 1.0),  # exactly two per driver
        (3, 1, 1.5),  # exactly three
        (4, 1, 2.0),
        (4, 2, 1.0),
        (5, 2, 1.5),
        (6, 2, 1.5),
        (7, 2, 2.0),
        (1, 0, 2.0),  # nobody free: a division by zero that never happens
        (0, 1, 1.0),
    ],
)
def test_the_multiplier_rises_above_two_and_above_three_active_rides_per_free_driver(
    spark: SparkSession, active: int, available: int, multiplier: float
) -> None:
    rides = [ride("08:00:00", "in_progress", driver_id="busy")] * active
    rides += [ride("08:01:00", "completed", driver_id=f"free{n}") for n in range(available)]
    assert sorted_rows(surge(frame(spark, rides), "5 minutes")) == [
        ("08:00", "08:05", "Paris", active + available, active, available, multiplier)
    ]


def test_a_driver_is_free_once_however_many_rides_end_and_windows_and_cities_stay_apart(spark: SparkSession) -> None:
    rides = [
        ride("08:00:00", "completed", driver_id="a"),
        ride("08:01:00", "cancelled", driver_id="a"),
        ride("08:02:00", "cancelled", driver_id="b"),
        ride("08:03:00", "in_progress", driver_id="b"),
        ride("08:03:00", "requested", driver_id="c"),
        ride("08:06:00", "in_progress", driver_id="a"),
        ride("08:01:00", "completed", driver_id="a", city="Berlin"),
    ]
    assert sorted_rows(surge(frame(spark, rides), "5 minutes")) == [
        ("08:00", "08:05", "Berlin", 1, 0, 1, 1.0),
        ("08:00", "08:05", "Paris", 4, 1, 2, 1.0),
        ("08:05", "08:10", "Paris", 1, 1, 0, 2.0),
    ]


# ---- driver metrics ----


def test_driver_metrics_count_completed_rides_and_each_rider_once(spark: SparkSession) -> None:
    rides = [
        ride("08:00:00", rider_id="u1", fare_amount=fare("5.00")),
        ride("08:14:59", rider_id="u1", fare_amount=fare("6.01")),
        ride("08:02:00", rider_id="u2"),
        ride("08:03:00", "cancelled", rider_id="u3", fare_amount=fare("99.00")),
        ride("08:15:00", rider_id="u3", fare_amount=fare("1.00")),
        ride("08:01:00", driver_id="d2", rider_id="u1"),
    ]
    assert sorted_rows(driver_metrics(frame(spark, rides), "15 minutes")) == [
        ("08:00", "08:15", "d1", 3, fare("5.505000"), 2),
        ("08:00", "08:15", "d2", 1, None, 1),
        ("08:15", "08:30", "d1", 1, fare("1.000000"), 1),
    ]


def test_counts_have_the_types_that_the_sinks_have_promised(spark: SparkSession) -> None:
    nothing = frame(spark, [])
    assert dict(city_rides(nothing, "5 minutes").dtypes) == {
        "window_start": "timestamp",
        "window_end": "timestamp",
        "city": "string",
        "ride_count": "bigint",
        "completed_rides": "bigint",
        "avg_fare": "decimal(14,6)",
        "active_drivers": "bigint",
        "completion_rate": "double",
    }
    assert dict(surge(nothing, "5 minutes").dtypes)["available_drivers"] == "bigint"
    assert dict(driver_metrics(nothing, "15 minutes").dtypes) == {
        "window_start": "timestamp",
        "window_end": "timestamp",
        "driver_id": "string",
        "completed_rides": "bigint",
        "avg_fare": "decimal(14,6)",
        "unique_riders": "bigint",
    }


# ---- properties ----


some_rides = st.lists(
    st.builds(
        ride,
        st.integers(0, 899).map(lambda s: f"08:{s // 60:02}:{s % 60:02}"),
        st.sampled_from(["completed", "cancelled", "in_progress", "requested"]),
        city=st.sampled_from(["Paris", "Berlin"]),
        driver_id=st.sampled_from("abc"),
        fare_amount=st.none() | st.integers(0, 9_999_999_999).map(lambda cents: Decimal(cents) / 100),
    ),
    max_size=25,
)


@given(some_rides, st.lists(st.integers(0, 25), max_size=3), st.randoms(use_true_random=False))
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_rides_split_into_batches_in_any_order_result_in_the_same_cities(
    spark: SparkSession, rides: list[Ride], cuts: list[int], order: object
) -> None:
    shuffled = list(rides)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    bounds = [0, *sorted(min(cut, len(rides)) for cut in cuts), len(rides)]
    parts = [frame(spark, shuffled[first:two]) for first, two in pairwise(bounds)]
    united = reduce(lambda left, right: left.union(right), parts)
    assert sorted_rows(city_rides(united, "5 minutes")) == sorted_rows(city_rides(frame(spark, rides), "5 minutes"))


@given(some_rides)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_counts_of_cities_are_those_of_a_plain_loop(spark: SparkSession, rides: list[Ride]) -> None:
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for ride in rides:
        minute = at("08:00").replace(minute=ride["event_time"].minute // 5 * 5)  # type: ignore[attr-defined]
        if ride["status"] != "requested":
            group = counts[f"{minute:%H:%M}", str(ride["city"])]
            group[0] += 1
            group[1] += ride["status"] == "completed"
    rows = sorted_rows(city_rides(frame(spark, rides), "5 minutes"))
    assert {(row[0], row[2]): [row[3], row[4]] for row in rows} == counts
