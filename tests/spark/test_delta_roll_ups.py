"""Windows and their roll-ups in one table: each version of it adds up, whatever is written again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from headrace.demos.sales import sum_mismatches
from headrace.errors import FlowError
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.patterns.sales.flows import SalesSettings, flows
from headrace.sinks.delta.policy import TablePolicy
from headrace.sinks.delta.roll_ups import DeltaRollUps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.group import GroupedData

pytestmark = pytest.mark.spark

GRAINS = ("5 minutes", "1 hour", "1 day")
MIDNIGHT = datetime(2026, 3, 2, tzinfo=UTC)
# Where, when (the hour and the minute of its window), revenue, orders.
Row = tuple[str | None, str, str, int]


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))


def summed(windows: GroupedData) -> DataFrame:
    return windows.agg(F.sum("revenue").cast("decimal(20,2)").alias("revenue"), F.sum("orders").alias("orders"))


SINK = DeltaRollUps(
    "gold/sales",
    key=("grain", "window_start", "shop"),
    cluster_by=("shop", "window_start"),
    grains=GRAINS,
    combine=summed,
)


def at(clock: str) -> datetime:
    day, _, time = clock.rpartition(" ")
    hours, minutes = map(int, time.split(":"))
    return MIDNIGHT + timedelta(days=int(day or 0), hours=hours, minutes=minutes)


def windows(spark: SparkSession, *rows: Row) -> DataFrame:
    sums = [
        ("5 minutes", at(clock), at(clock) + timedelta(minutes=5), shop, Decimal(revenue), orders)
        for shop, clock, revenue, orders in rows
    ]
    columns = "grain string, window_start timestamp, window_end timestamp, shop string, revenue decimal(20,2), "
    return spark.createDataFrame(sums, f"{columns} orders long").coalesce(1)


def stored_rows(spark: SparkSession, target: Target, grain: str) -> list[tuple[object, ...]]:
    table = spark.read.format("delta").load(target.table("gold/sales")).where(f"grain = '{grain}'")
    result = [
        (row.shop, row.window_start.astimezone(UTC), row.window_end - row.window_start, str(row.revenue), row.orders)
        for row in table.collect()
    ]
    return sorted(result, key=str)


def versions(spark: SparkSession, target: Target) -> list[list[dict[str, Any]]]:
    """Return the rows of every version of the table, with the shop as the category."""
    location = target.table("gold/sales")
    newest = spark.sql(f"DESCRIBE HISTORY delta.`{location}`").agg({"version": "max"}).collect()[0][0]
    return [
        [
            {**row.asDict(), "category": row.shop}
            for row in spark.read.format("delta").option("versionAsOf", str(number)).load(location).collect()
        ]
        for number in range(newest + 1)
    ]


def test_every_version_adds_up_while_windows_come_change_and_come_again(spark: SparkSession, target: Target):
    hour, day = timedelta(hours=1), timedelta(days=1)
    SINK.write(
        windows(spark, ("a", "10:00", "1.00", 1), ("a", "10:55", "2.00", 1), ("b", "10:00", "4.00", 2)),
        Batch("sales", "q", 0, target),
    )
    # One window changes, one is new in the same hour, one in another hour, one on the next day, one has no shop.
    SINK.write(
        windows(
            spark,
            ("a", "10:00", "1.50", 2),
            ("a", "10:05", "8.00", 1),
            ("a", "11:00", "16.00", 1),
            ("b", "1 00:00", "32.00", 1),
            (None, "10:00", "64.00", 1),
        ),
        Batch("sales", "q", 1, target),
    )
    # The same batch again, as after a crash, and one that holds nothing.
    SINK.write(windows(spark, ("a", "10:00", "99.00", 9)), Batch("sales", "q", 1, target))
    SINK.write(windows(spark), Batch("sales", "q", 2, target))
    SINK.write(windows(spark, (None, "10:30", "0.25", 1)), Batch("sales", "q", 3, target))

    assert stored_rows(spark, target, "1 hour") == [
        ("a", at("10:00"), hour, "11.50", 4),
        ("a", at("11:00"), hour, "16.00", 1),
        ("b", at("10:00"), hour, "4.00", 2),
        ("b", at("1 00:00"), hour, "32.00", 1),
        (None, at("10:00"), hour, "64.25", 2),
    ]
    assert stored_rows(spark, target, "1 day") == [
        ("a", at("0:00"), day, "27.50", 5),
        ("b", at("0:00"), day, "4.00", 2),
        ("b", at("1 00:00"), day, "32.00", 1),
        (None, at("0:00"), day, "64.25", 2),
    ]
    assert [wrong for rows in versions(spark, target) if (wrong := sum_mismatches(rows, GRAINS))] == []
    assert SINK.committed_batches(spark, "sales", "0", target).last == {"q": 3}


def test_a_sum_that_is_not_that_of_its_parts_is_noticed():
    rows = [
        {"grain": grain, "window_start": at(start), "category": "a", "revenue": Decimal("1.00"), "orders": 1}
        for grain, start in zip(GRAINS, ("10:00", "10:00", "0:00"), strict=True)
    ]
    assert sum_mismatches(rows, GRAINS) == []

    wrong = [{**row, "orders": 2} if row["grain"] == "1 hour" else row for row in rows]
    assert len(sum_mismatches(wrong, GRAINS)) == 2
    assert len(sum_mismatches([row for row in rows if row["grain"] != "5 minutes"], GRAINS)) == 1


def test_the_table_is_clustered_and_its_small_files_are_joined(spark: SparkSession, target: Target):
    for number in range(2):
        replace(SINK, policy=TablePolicy(small_files=1)).write(
            windows(spark, ("a", f"1{number}:00", "1.00", 1)), Batch("sales", "q", number, target)
        )

    location = target.table("gold/sales")
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{location}`").collect()[0]
    assert detail.clusteringColumns == ["shop", "window_start"]
    operations = [row.operation for row in spark.sql(f"DESCRIBE HISTORY delta.`{location}`").collect()]
    assert "OPTIMIZE" in operations


def test_users_of_an_hour_are_estimated_from_merged_sketches_within_the_stated_error(spark: SparkSession):
    # Four windows of 12,000 users in each of five categories. 1,000 of them are new in each window: 15,000 in the hour.
    settings = SalesSettings()
    gold = flows(settings)[0]
    assert isinstance(gold.sink, DeltaRollUps)
    window, number = F.expr("id div 60000"), F.expr("id % 60000 div 5")
    category = F.concat(F.lit("c"), F.col("id") % 5)
    sales = spark.range(240_000, numPartitions=4).select(
        category.alias("category"),
        F.lit("1.00").cast("decimal(10,2)").alias("amount"),
        F.concat(F.lit("u"), number + 1_000 * window, category).alias("user_id"),
        F.timestamp_seconds(F.lit(at("10:00").timestamp()) + window * 300).alias("ts"),
    )
    rows = gold.apply({"rows": sales})

    hours = gold.sink.combine(rows.groupBy("category")).collect()

    assert [row.orders for row in hours] == [48_000] * 5
    off = [abs(row.unique_users - 15_000) / 15_000 for row in hours]
    # Five estimates of a standard error of 1.6 %: exact ones would be a coincidence, and no sketches.
    assert 0 < max(off) < 4 * settings.standard_error


@pytest.mark.parametrize(
    "wrong",
    [
        {"grains": ()},
        {"grains": ("5 minutes", "7 minutes")},
        {"grains": ("1 hour", "5 minutes")},
        {"grains": ("1 hour", "1 hour")},
        {"key": ("window_start", "shop")},
        {"sequence": "orders"},
    ],
)
def test_roll_ups_that_could_not_add_up_are_refused(wrong: dict[str, Any]):
    with pytest.raises(FlowError) as refused:
        DeltaRollUps(
            **{"path": "gold/sales", "key": ("grain", "window_start"), "grains": GRAINS, "combine": summed, **wrong}
        )
    assert refused.value.code == "HR-560"
