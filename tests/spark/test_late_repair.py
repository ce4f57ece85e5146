"""Closed windows recomputed with the rows that came too late, compared with a model in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, StringType, StructField, StructType, TimestampType

from headrace import (
    AvailableNow,
    DeltaAppend,
    DeltaSource,
    DeltaUpsert,
    Flow,
    HeadraceError,
    InMemory,
    Input,
    KafkaSink,
    KafkaSource,
    Target,
    Watermark,
)
from headrace.operate.late.repair import Repair, RepairPlan
from headrace.operate.late.summary import LateSummary, summarise_late
from headrace.operate.run import Application
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.lease import acquire_lease
from headrace.testing import Arrive, Rehearsal, rehearse
from headrace.testing.source import ScriptedSource, scripted_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
ORDER = StructType(
    [
        StructField("shop", StringType(), nullable=False),
        StructField("price", DecimalType(10, 2)),
        StructField("at", TimestampType(), nullable=False),
    ]
)
# (shop, minute, price) by batch. The watermark is 10 minutes behind: that of batch 3 is 12:30, so 12:30 is the first
# window that takes rows in batch 4.
BATCHES: list[list[tuple[str, float, str]]] = [
    [("north", 1, "1.00"), ("south", 2, "2.00"), ("north", 12, "4.00")],
    [("north", 40, "8.00")],
    [("south", 41, "16.00")],
    [("north", 3, "32.00"), ("east", 2, "64.00"), ("south", 29, "128.00"), ("north", 31, "256.00")],
    [("north", 13, "512.00"), ("north", 42, "1024.00")],
]
CLOSED = 30


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


def script(batches: Sequence[Sequence[tuple[str, float, str]]]) -> list[Arrive]:
    return [
        Arrive(*({"shop": shop, "price": Decimal(price), "at": at(minute)} for shop, minute, price in batch))
        for batch in batches
    ]


def totals(orders: DataFrame) -> DataFrame:
    grouped = orders.groupBy(F.window("at", "5 minutes"), "shop")
    summed = grouped.agg(F.count("*").alias("orders"), F.sum("price").alias("total"))
    return summed.select(F.col("window.start").alias("since"), "shop", "orders", "total")


def rolling(orders: DataFrame) -> DataFrame:
    grouped = orders.groupBy("shop", F.window("at", "10 minutes", "5 minutes"))
    return grouped.agg(F.count("*").alias("orders"), F.sum("price").alias("total")).select(
        "shop", F.col("window.end").alias("until"), "orders", "total"
    )


def modelled(
    rows: Iterable[tuple[str, float, str]], width: int, until: float
) -> dict[tuple[str, int], tuple[int, Decimal]]:
    """Return orders and total per shop and end of window, for windows of a width, every five minutes, up to a time."""
    result: dict[tuple[str, int], tuple[int, Decimal]] = {}
    for shop, minute, price in rows:
        for start in range(int(minute // 5) * 5, int(minute // 5) * 5 - width, -5):
            if start + width <= until:
                orders, total = result.get((shop, start + width), (0, Decimal(0)))
                result[shop, start + width] = (orders + 1, total + Decimal(price))
    return result


def flow(transform: object, sink: DeltaAppend | DeltaUpsert | KafkaSink, mode: str) -> Flow:
    orders = Input(KafkaSource("orders"), schema=ORDER, watermark=Watermark("at", "10 minutes"))
    return Flow("totals", orders, transform, sink, output_mode=mode, state=InMemory(shuffle_partitions=1))  # type: ignore[arg-type]


def standing(result: Rehearsal, folder: Path) -> Flow:
    """Return the rehearsed flow with the script as its source, as the runtime ran it."""
    (input_,) = result.flow.named_inputs.values()
    created = scripted_source("rows", input_, folder / "unused", None)
    source = ScriptedSource("rows", folder / "script" / "rows", carries_payload=True, columns=created.columns)
    return replace(result.flow, inputs=replace(input_, source=source))


def repaired(spark: SparkSession, target: Target, flow: Flow) -> RepairPlan:
    with Repair.open(spark, target, flow) as work:
        plan = work.plan()
        if plan.windows:
            work.apply(plan)
    return plan


def summary(spark: SparkSession, result: Rehearsal) -> LateSummary:
    checkpoint = Checkpoint.of("totals", result.target)
    return summarise_late("totals", result.target, result.flow, checkpoint.query_id(), lambda: spark)


def minute(moment: datetime) -> int:
    return round((moment.astimezone(UTC) - NOON).total_seconds() / 60)


def test_windows_that_were_appended_get_their_late_rows_and_the_open_ones_stay_open(
    spark: SparkSession, tmp_path: Path
):
    sink = DeltaAppend("gold")
    invalid = Arrive({"price": Decimal("2048.00"), "at": at(2)})
    played = script(BATCHES)
    result = rehearse(
        flow(totals, sink, "append"), [*played[:1], invalid, *played[1:]], spark=spark, folder=tmp_path, sink=sink
    )
    declared = standing(result, tmp_path)

    def table() -> dict[tuple[str, int], tuple[int, Decimal]]:
        return {(row.shop, minute(row.since) + 5): (row.orders, row.total) for row in result.table("gold")}

    everything = [row for batch in BATCHES for row in batch]
    late = [("north", 3, "32.00"), ("east", 2, "64.00"), ("south", 29, "128.00"), ("north", 13, "512.00")]
    in_time = [row for row in everything if row not in late]
    assert table() == modelled(in_time, 5, CLOSED)
    before = summary(spark, result)
    assert (before.rows, before.entries, before.repaired) == (4, 4, 0)
    assert before.by_batch == {4: 3, 5: 1}
    # 27, 28 and 1 minutes behind 12:30, and 18 behind 12:31.
    assert before.late_by == {"p50": 18 * 60, "p90": 28 * 60, "p99": 28 * 60, "max": 28 * 60}
    # [12:00, 12:05) was closed for 25 minutes: with so much more, and a moment, it would have been open.
    assert before.delays == {
        "rows": {"90 %": "35 minutes 1 second", "99 %": "35 minutes 1 second", "100 %": "35 minutes 1 second"}
    }

    # By now the shop may be missing. The row that was invalid for it stays out.
    relaxed = StructType([replace_nullable(field) for field in ORDER])
    (input_,) = declared.named_inputs.values()
    plan = repaired(spark, result.target, replace(declared, inputs=replace(input_, schema=relaxed)))

    assert {minute(start): rows for (start, _), rows in plan.windows.items()} == {0: 2, 10: 1, 25: 1}
    assert (plan.changed, plan.added, plan.removed) == (2, 2, 0)
    assert table() == modelled(everything, 5, CLOSED)
    assert len(result.table("gold")) == len(table())
    after = summary(spark, result)
    assert after.repaired == 4
    assert all(window.repaired for window in after.windows)

    version = len(list((tmp_path / "lake" / "gold" / "_delta_log").glob("*.json")))
    again = repaired(spark, result.target, declared)
    assert (again.windows, again.changes) == ({}, 0)
    assert len(list((tmp_path / "lake" / "gold" / "_delta_log").glob("*.json"))) == version


def replace_nullable(field: StructField) -> StructField:
    return StructField(field.name, field.dataType, nullable=True)


def test_sliding_windows_are_merged_by_key_only_those_that_were_closed_and_only_if_it_can_be(
    spark: SparkSession, tmp_path: Path
):
    sink = DeltaUpsert("gold", key=("until", "shop"))
    result = rehearse(flow(rolling, sink, "update"), script(BATCHES), spark=spark, folder=tmp_path, sink=sink)
    declared = standing(result, tmp_path)

    def table() -> dict[tuple[str, int], tuple[int, Decimal]]:
        return {(row.shop, minute(row.until)): (row.orders, row.total) for row in result.table("gold")}

    everything = [row for batch in BATCHES for row in batch]
    assert table() != modelled(everything, 10, 100)
    # South at 12:29 came in time for the window to 12:35, and too late for the one to 12:30.
    assert table()["south", 35] == (1, Decimal("128.00"))

    def refused(changed: Flow) -> str:
        with pytest.raises(HeadraceError) as error, Repair.open(spark, result.target, changed) as work:
            work.plan()
        return error.value.code

    assert refused(replace(declared, sink=DeltaUpsert("gold", key=("shop",)))) == "HR-352"
    assert refused(replace(declared, sink=KafkaSink("gold"))) == "HR-350"
    assert (
        refused(replace(declared, sink=DeltaAppend("gold"), transform=lambda o: rolling(o).drop("until"))) == "HR-353"
    )
    sessions = replace(declared, transform=lambda o: o.groupBy(F.session_window("at", "5 minutes"), "shop").count())
    assert refused(sessions) == "HR-351"
    with acquire_lease(Checkpoint.of("totals", result.target), result.target.lease):
        assert refused(declared) == "HR-302"

    plan = repaired(spark, result.target, declared)

    assert {minute(end) for _, end in plan.windows} == {5, 10, 15, 20, 30}
    assert table() == modelled(everything, 10, 100)
    assert summary(spark, result).rows == 4
    assert repaired(spark, result.target, declared).windows == {}


def test_windows_of_a_delta_table_get_their_late_rows_from_the_version_that_the_flow_began_at(
    spark: SparkSession, tmp_path: Path
):
    target = Target("t", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    # North at 12:03 comes behind 12:30. A row of the year 2102 is set aside, and stays so.
    late = [("north", 3, "32.00"), ("east", 40_000_000, "2.00")]
    for batch in ([("north", 1, "1.00")], [("north", 40, "8.00")], [("north", 41, "16.00")], late):
        rows = [(shop, Decimal(price), at(minute)) for shop, minute, price in batch]
        created = spark.createDataFrame(rows, ORDER).coalesce(1)
        created.write.format("delta").mode("append").save(target.table("silver"))
    source = DeltaSource("silver", max_files_per_trigger=1, starting_version=0)
    orders = Input(source, watermark=Watermark("at", "10 minutes"))
    state = InMemory(shuffle_partitions=1)
    declared = Flow("totals", orders, totals, DeltaAppend("gold"), trigger=AvailableNow(), state=state)
    figures = Application(spark, target, [declared]).run()["totals"]
    assert (figures.error, figures.late, figures.invalid) == (None, 1, {"event_time_in_future": 1})

    repaired(spark, target, declared)

    gold = spark.read.format("delta").load(target.table("gold")).collect()
    assert [(row.shop, minute(row.since), row.orders, row.total) for row in gold] == [("north", 0, 2, Decimal("33.00"))]
    assert not repaired(spark, target, declared).windows
