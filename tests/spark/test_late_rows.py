"""Which rows of a batch were too late, found again on a batch frame."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from headrace import Input, KafkaSource, OutputMode, Watermark
from headrace.audit.late import dropped_rows
from headrace.patterns.rides.flows import RIDE, city_rides
from headrace.spark_plan.late_filters import LateFilters, find_late_filters, mark_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2024-05-06T{clock}").replace(tzinfo=UTC)


def ms(clock: str) -> int:
    return round(at(clock).timestamp() * 1000)


def events(spark: SparkSession, *clocks: str) -> DataFrame:
    return spark.createDataFrame([(clock, at(clock)) for clock in clocks], "name string, at timestamp")


def late_plan(transform: Callable[[DataFrame], DataFrame], rows: DataFrame, mode: str = "update") -> LateFilters:
    declared = Input(KafkaSource("events"), watermark=Watermark("at", "10 minutes"))
    return find_late_filters(transform(mark_input(rows, "events", declared, rows.columns)), OutputMode(mode))


def late_rows(transform: Callable[[DataFrame], DataFrame], rows: DataFrame, watermark: str) -> list[tuple[str, ...]]:
    """Return the name of each late row and the bounds of the window that it missed, where it missed one."""
    (filtered,) = late_plan(transform, rows).filters
    bounds = [F.date_format(name, "HH:mm").alias(name) for name in ("window_start", "window_end")]
    filed = dropped_rows(filtered, ms(watermark)).select("row", *bounds).collect()
    return sorted((json.loads(row["row"])["name"], row["window_start"], row["window_end"]) for row in filed)


def per_five_minutes(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("at", "5 minutes")).count()


def test_a_row_is_late_when_its_window_ended_at_or_before_the_watermark(spark: SparkSession) -> None:
    rows = events(spark, "08:00", "08:04:59.999", "08:05", "08:09", "08:10")
    at_five = late_rows(per_five_minutes, rows, "08:05")
    assert at_five == [("08:00", "08:00", "08:05"), ("08:04:59.999", "08:00", "08:05")]
    assert late_rows(per_five_minutes, rows, "08:09:59.999") == at_five
    names = [name for name, _, _ in late_rows(per_five_minutes, rows, "08:10")]
    assert names == ["08:00", "08:04:59.999", "08:05", "08:09"]


def test_a_late_row_has_its_event_time_and_its_distance_to_the_watermark(spark: SparkSession) -> None:
    (filtered,) = late_plan(per_five_minutes, events(spark, "08:03:30.250")).filters
    (row,) = dropped_rows(filtered, ms("08:05")).collect()
    assert (row["event_time"].astimezone(UTC), row["late_by"]) == (at("08:03:30.250"), 89.75)
    assert (row["input"], row["operator"]) == ("events", "window")


def test_nothing_is_late_before_the_first_watermark(spark: SparkSession) -> None:
    (filtered,) = late_plan(per_five_minutes, events(spark, "08:00")).filters
    assert dropped_rows(filtered, 0).collect() == []


def test_in_complete_mode_nothing_is_late(spark: SparkSession) -> None:
    assert late_plan(per_five_minutes, events(spark, "08:00"), "complete").filters == ()


def test_with_sliding_windows_a_row_is_late_once_for_each_window_that_it_missed(spark: SparkSession) -> None:
    """Windows of ten minutes every five: 08:07 is in [08:00, 08:10) and in [08:05, 08:15)."""

    def sliding(rows: DataFrame) -> DataFrame:
        return rows.groupBy(F.window("at", "10 minutes", "5 minutes")).count()

    rows = events(spark, "08:07")
    assert late_rows(sliding, rows, "08:09") == []
    assert late_rows(sliding, rows, "08:10") == [("08:07", "08:00", "08:10")]
    assert late_rows(sliding, rows, "08:15") == [("08:07", "08:00", "08:10"), ("08:07", "08:05", "08:15")]
    # It is one row all the same.
    (filtered,) = late_plan(sliding, events(spark, "08:06", "08:07")).filters
    filed = dropped_rows(filtered, ms("08:20")).collect()
    assert len(filed) == 4
    assert len({row["row_id"] for row in filed}) == 2


def test_rows_are_counted_before_the_aggregation_and_after_the_filters(spark: SparkSession) -> None:
    def often(rows: DataFrame) -> DataFrame:
        stored = rows.where("name != '08:01'")
        return stored.groupBy(F.window("at", "5 minutes"), "name").count().where("count > 100")

    rows = events(spark, "08:00", "08:00", "08:00", "08:01")
    assert [name for name, _, _ in late_rows(often, rows, "09:00")] == ["08:00"] * 3


def test_a_result_without_event_time_in_its_state_has_no_late_rows(spark: SparkSession) -> None:
    rows = events(spark, "08:00")
    assert late_plan(lambda rows: rows, rows).filters == ()
    assert late_plan(lambda rows: rows.groupBy("name").count(), rows).filters == ()
    # Spark hands the mark of a watermark on with the column, and not into what is computed from it.
    assert late_plan(lambda rows: rows.groupBy(F.to_date("at")).count(), rows).filters == ()


def test_grouped_by_the_event_time_itself_a_row_is_late_by_it(spark: SparkSession) -> None:
    by_time = late_rows(lambda rows: rows.groupBy("at", "name").count(), events(spark, "08:05", "08:06"), "08:05")
    assert by_time == [("08:05", None, None)]


def test_a_window_that_was_renamed_is_found_too(spark: SparkSession) -> None:
    counted = late_rows(
        lambda rows: rows.groupBy(F.window("at", "5 minutes").alias("a slot")).count(), events(spark, "08:00"), "08:05"
    )
    assert counted == [("08:00", "08:00", "08:05")]


def test_rows_that_have_a_column_named_window_already_are_found_too(spark: SparkSession) -> None:
    def by_shop(rows: DataFrame) -> DataFrame:
        rows = rows.withColumn("window", F.lit("of the shop"))
        return rows.groupBy(F.window("at", "5 minutes"), rows["window"].alias("shop")).count()

    assert late_rows(by_shop, events(spark, "08:00"), "08:05") == [("08:00", "08:00", "08:05")]


def test_the_output_of_one_window_is_recognized_and_not_computed_for_the_next(spark: SparkSession) -> None:
    def ten_of_five(rows: DataFrame) -> DataFrame:
        five = rows.groupBy(F.window("at", "5 minutes"), "name").count()
        return five.groupBy(F.window(F.window_time("window"), "10 minutes")).agg(F.sum("count"))

    ten, five = late_plan(ten_of_five, events(spark, "08:00")).filters
    assert ten.rows is None
    assert [row["window_end"].astimezone(UTC) for row in dropped_rows(five, ms("09:00")).collect()] == [at("08:05")]


def test_two_windowed_aggregations_are_both_found(spark: SparkSession) -> None:
    def both(rows: DataFrame) -> DataFrame:
        five, ten = (rows.groupBy(F.window("at", width)).count() for width in ("5 minutes", "10 minutes"))
        return five.union(ten)

    assert [filtered.rows is None for filtered in late_plan(both, events(spark, "08:00")).filters] == [False, False]


def test_a_join_with_a_table_at_rest_drops_nothing(spark: SparkSession) -> None:
    names = spark.createDataFrame([("08:00", 1)], "name string, number int")

    def enriched(rows: DataFrame) -> DataFrame:
        return per_five_minutes(rows.join(names, "name"))

    assert late_plan(lambda rows: rows.join(names, "name"), events(spark, "08:00")).operators == 0
    assert late_rows(enriched, events(spark, "08:00", "08:01"), "08:05") == [("08:00", "08:00", "08:05")]


def test_duplicates_are_late_by_their_event_time_if_anybody_needs_it_further_on(spark: SparkSession) -> None:
    rows = events(spark, "08:05", "08:06")
    assert late_rows(lambda rows: rows.dropDuplicates(["name"]), rows, "08:05") == [("08:05", None, None)]
    # Spark leaves the column out before the operator when only the name is asked for, and so drops nothing.
    assert late_plan(lambda rows: rows.dropDuplicates(["name"]).select("name"), rows).filters == ()


def test_the_late_rows_of_city_rides_are_complete_rides_of_a_counted_status(spark: SparkSession) -> None:
    def ride(name: str, clock: str, status: str) -> tuple[object, ...]:
        return (name, "d", "u", "Paris", 1.0, 2.0, None, None, None, status, at(clock))

    rides = [
        ride("late", "08:01", "completed"),
        ride("late and not counted", "08:01", "requested"),
        ride("in time", "08:06", "completed"),
    ]
    declared = Input(KafkaSource("rides"), RIDE, Watermark("event_time", "10 minutes"))
    frame = mark_input(spark.createDataFrame(rides, RIDE), "rides", declared, RIDE.names)
    (filtered,) = find_late_filters(city_rides(frame, "5 minutes"), OutputMode.UPDATE).filters
    (filed,) = dropped_rows(filtered, ms("08:05")).collect()
    row = json.loads(filed["row"])
    assert (row["ride_id"], row["city"], row["status"]) == ("late", "Paris", "completed")
    assert row["event_time"] == "2024-05-06T08:01:00.000Z"
    assert set(row) <= {*RIDE.names, "event_date", "hour_of_day"}
