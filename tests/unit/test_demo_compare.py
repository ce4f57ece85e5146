"""Rows of a sink compared with the expected ones: what counts as a difference."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given, strategies as st
from pyspark.sql.types import TimestampType

from headrace.demos.compare import Comparison, Row, Tolerance

A: Row = {"city": "Paris", "rides": 3}
B: Row = {"city": "Berlin", "rides": 5}
C: Row = {"city": "Rome", "rides": 7}
DRIVERS = Tolerance("drivers", share=0.1, least=2)


def compared(expected: list[Row], actual: list[Row], **settings: object) -> Comparison:
    result = Comparison()
    result.add("delta:gold", expected, actual, **settings)  # type: ignore[arg-type]
    return result


def drivers(count: int, city: str = "Paris") -> Row:
    return {"city": city, "drivers": count}


def test_the_same_rows_in_any_order_are_equal() -> None:
    actual = compared([A, B, B], [B, A, B])
    assert actual.equal
    assert actual.rows == {"delta:gold": 3}
    assert actual.repeated == {}


def test_a_missing_row_is_a_difference() -> None:
    assert compared([A, B], [A]).differences == ["delta:gold lacks 1 of city=Berlin, rides=5"]


def test_a_row_with_too_few_copies_is_a_difference() -> None:
    assert compared([A, A, A], [A]).differences == ["delta:gold lacks 2 of city=Paris, rides=3"]


def test_a_row_that_is_not_expected_is_a_difference_even_where_repeats_are_allowed() -> None:
    for repeats_allowed in (False, True):
        actual = compared([A], [A, C, C], repeats_allowed=repeats_allowed)
        assert actual.differences == ["delta:gold has 2 too many of city=Rome, rides=7"]


def test_a_repeated_row_is_a_difference_for_an_exactly_once_sink() -> None:
    assert compared([A], [A, A]).differences == ["delta:gold has 1 too many of city=Paris, rides=3"]


def test_a_repeated_row_is_counted_apart_for_an_at_least_once_sink() -> None:
    actual = compared([A, B], [A, A, A, B, B], repeats_allowed=True)
    assert actual.equal
    assert actual.repeated == {"delta:gold": 3}


def test_a_changed_value_is_a_missing_row_and_a_surplus_one() -> None:
    actual = compared([A], [{"city": "Paris", "rides": 4}])
    assert actual.differences == [
        "delta:gold lacks 1 of city=Paris, rides=3",
        "delta:gold has 1 too many of city=Paris, rides=4",
    ]


def test_a_column_more_is_a_difference() -> None:
    assert not compared([A], [{**A, "more": None}]).equal


def test_no_rows_equal_no_rows_and_differ_from_some() -> None:
    assert compared([], []).equal
    assert not compared([A], []).equal
    assert not compared([], [A]).equal


@pytest.mark.parametrize(
    ("exact", "actual", "allowed"),
    [(3, 5, True), (3, 6, False), (100, 110, True), (100, 111, False), (100, 89, False), (0, 2, True), (0, 3, False)],
)
def test_an_approximate_column_may_be_off_by_a_share_or_by_the_least(exact: int, actual: int, allowed: bool) -> None:
    result = compared([drivers(exact)], [drivers(actual)], tolerance=DRIVERS)
    assert result.equal is allowed
    if not allowed:
        assert result.differences == [f"delta:gold has drivers {actual}, expected about {exact}, in city=Paris"]


def test_columns_are_compared_exactly_except_the_approximate_one() -> None:
    actual = compared([drivers(3)], [drivers(3, city="Rome")], tolerance=DRIVERS)
    assert len(actual.differences) == 2


def test_each_row_is_compared_with_its_own_approximate_value() -> None:
    """An update sink holds a row again with a higher count: both are right, and both orders are."""
    early, late = drivers(10), drivers(50)
    for actual in ([early, late], [late, early]):
        assert compared([early, late], actual, tolerance=DRIVERS).equal
    assert compared([early, late], [early, drivers(30)], tolerance=DRIVERS).differences == [
        "delta:gold has drivers 30, expected about 10 or 50, in city=Paris"
    ]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (Decimal("1.50"), 1.5),
        (Decimal("2.000000"), 2),
        (Decimal("100"), 1e2),
        ("2024-05-06T12:00:00.250Z", datetime(2024, 5, 6, 12, 0, 0, 250_000, tzinfo=UTC)),
        (datetime(2024, 5, 6, 14, tzinfo=timezone(timedelta(hours=2))), datetime(2024, 5, 6, 12, tzinfo=UTC)),
        (None, None),
        (True, True),
    ],
)
def test_equal_values_of_spark_json_and_python_are_equal(left: object, right: object) -> None:
    assert compared([{"value": left}], [{"value": right}]).equal


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata"])
def machine_in_another_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as machine:
        machine.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("machine_in_another_zone")
def test_a_time_that_pyspark_collected_is_the_same_instant_in_any_zone_of_the_machine() -> None:
    # 2024-11-03T05:30:00Z and an hour later are both 01:30 in New York.
    times = [1_730_611_800_000, 1_730_615_400_000]
    collected = [{"at": TimestampType().fromInternal(ms * 1000)} for ms in times]
    assert compared([{"at": ms} for ms in times], collected).equal


@pytest.mark.parametrize(("left", "right"), [(0, None), ("1", 1), (1.5, Decimal("1.500001")), ("", None)])
def test_values_that_differ_are_different(left: object, right: object) -> None:
    assert not compared([{"value": left}], [{"value": right}]).equal


def test_a_report_shows_the_first_differences_and_counts_all() -> None:
    actual = compared([{"n": n} for n in range(30)], [])
    actual.add("late rows", [], [])
    report = actual.as_dict(most=2)
    assert report["differences"] == ["delta:gold lacks 1 of n=0", "delta:gold lacks 1 of n=1"]
    assert (report["equal"], report["differences_in_all"]) == (False, 30)
    assert actual.rows_of_sinks() == {"delta:gold": 0}


rows = st.lists(st.fixed_dictionaries({"k": st.integers(0, 3), "v": st.integers(0, 2)}), max_size=8)


@given(rows, rows)
def test_two_lists_are_equal_exactly_when_they_are_equal_sorted(left: list[Row], right: list[Row]) -> None:
    def by_value(row: Row) -> tuple[int, int]:
        return int(str(row["k"])), int(str(row["v"]))

    assert compared(left, right).equal is (sorted(left, key=by_value) == sorted(right, key=by_value))
