"""Which rows of a batch were too late, found again on a batch frame."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from headrace.observe.lateness import late, rows_before_windows
from headrace.patterns.rides.flows import RIDE, city_rides

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2024-05-06T{clock}").replace(tzinfo=UTC)


def ms(clock: str) -> int:
    return round(at(clock).timestamp() * 1000)


def events(spark: SparkSession, *clocks: str) -> DataFrame:
    return spark.createDataFrame([(clock, at(clock)) for clock in clocks], "name string, at timestamp")


def late_rows(result: DataFrame, watermark: str) -> list[tuple[str, str, str]]:
    """Return the name of each late row and the bounds of the window that it missed."""
    ((rows, window),) = rows_before_windows(result)
    bounds = [F.date_format(each, "HH:mm").alias(each) for each in ("window_start", "window_end")]
    filed = late(rows, window, ms(watermark)).select("row", *bounds).collect()
    return sorted((json.loads(row["row"])["name"], row["window_start"], row["window_end"]) for row in filed)


def test_a_row_is_late_when_its_window_ended_at_or_before_the_watermark(spark: SparkSession) -> None:
    counted = (
        events(spark, "08:00", "08:04:59.999", "08:05", "08:09", "08:10").groupBy(F.window("at", "5 minutes")).count()
    )
    assert late_rows(counted, "08:05") == [("08:00", "08:00", "08:05"), ("08:04:59.999", "08:00", "08:05")]
    assert late_rows(counted, "08:09:59.999") == late_rows(counted, "08:05")
    assert [name for name, _, _ in late_rows(counted, "08:10")] == ["08:00", "08:04:59.999", "08:05", "08:09"]


def test_nothing_is_late_before_the_first_watermark(spark: SparkSession) -> None:
    counted = events(spark, "08:00").groupBy(F.window("at", "5 minutes")).count()
    ((rows, window),) = rows_before_windows(counted)
    assert late(rows, window, 0).collect() == []


def test_with_sliding_windows_a_row_is_late_once_for_each_window_that_it_missed(spark: SparkSession) -> None:
    """Windows of ten minutes every five: 08:07 is in [08:00, 08:10) and in [08:05, 08:15)."""
    counted = events(spark, "08:07").groupBy(F.window("at", "10 minutes", "5 minutes")).count()
    assert late_rows(counted, "08:09") == []
    assert late_rows(counted, "08:10") == [("08:07", "08:00", "08:10")]
    assert late_rows(counted, "08:15") == [("08:07", "08:00", "08:10"), ("08:07", "08:05", "08:15")]


def test_rows_are_counted_before_the_aggregation_and_after_the_filters(spark: SparkSession) -> None:
    kept = events(spark, "08:00", "08:00", "08:00", "08:01").where("name != '08:01'")
    counted = kept.groupBy(F.window("at", "5 minutes"), "name").count().where("count > 100")
    assert [name for name, _, _ in late_rows(counted, "09:00")] == ["08:00"] * 3


def test_a_result_without_windows_has_no_late_rows(spark: SparkSession) -> None:
    rows = events(spark, "08:00")
    assert rows_before_windows(rows) == []
    assert rows_before_windows(rows.groupBy("name").count()) == []


def test_a_window_that_was_renamed_is_found_too(spark: SparkSession) -> None:
    counted = events(spark, "08:00").groupBy(F.window("at", "5 minutes").alias("a slot")).count()
    assert late_rows(counted, "08:05") == [("08:00", "08:00", "08:05")]


def test_rows_that_have_a_column_named_window_already_are_found_too(spark: SparkSession) -> None:
    rows = events(spark, "08:00").withColumn("window", F.lit("of the shop"))
    counted = rows.groupBy(F.window("at", "5 minutes"), rows["window"].alias("shop")).count()
    assert late_rows(counted, "08:05") == [("08:00", "08:00", "08:05")]


def test_windows_over_windows_are_told_apart(spark: SparkSession) -> None:
    five = events(spark, "08:00").groupBy(F.window("at", "5 minutes"), "name").count()
    ten = five.groupBy(F.window(F.window_time("window"), "10 minutes")).agg(F.sum("count"))
    ends = [late(rows, window, ms("09:00")).select("window_end").collect() for rows, window in rows_before_windows(ten)]
    assert [[row["window_end"].astimezone(UTC) for row in rows] for rows in ends] == [[at("08:10")], [at("08:05")]]


def test_two_windowed_aggregations_are_both_found(spark: SparkSession) -> None:
    rows = events(spark, "08:00")
    five, ten = (rows.groupBy(F.window("at", width)).count() for width in ("5 minutes", "10 minutes"))
    assert len(rows_before_windows(five.union(ten))) == 2


def test_the_late_rows_of_city_rides_are_whole_rides_of_a_counted_status(spark: SparkSession) -> None:
    def ride(name: str, clock: str, status: str) -> tuple[object, ...]:
        return (name, "d", "u", "Paris", 1.0, 2.0, None, None, None, status, at(clock))

    rides = [
        ride("late", "08:01", "completed"),
        ride("late and not counted", "08:01", "requested"),
        ride("in time", "08:06", "completed"),
    ]
    result = city_rides(spark.createDataFrame(rides, RIDE), "5 minutes")
    ((rows, window),) = rows_before_windows(result)
    (filed,) = late(rows, window, ms("08:05")).collect()
    row = json.loads(filed["row"])
    assert (row["ride_id"], row["city"], row["status"]) == ("late", "Paris", "completed")
    assert row["event_time"] == "2024-05-06T08:01:00.000Z"
    assert window not in row
