"""The public test kit, with flows whose results are worked out by hand."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType, TimestampType

from headrace import (
    DeltaAppend,
    FileSource,
    Flow,
    FlowError,
    HeadraceError,
    Input,
    KafkaSink,
    KafkaSource,
    OutputMode,
    Watermark,
)
from headrace.testing import Arrive, Clock, Crash, EndOfInput, Keyed, Point, rehearse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ORDER = StructType(
    [
        StructField("id", LongType(), nullable=False),
        StructField("shop", StringType(), nullable=False),
        StructField("price", DecimalType(10, 2)),
        StructField("at", TimestampType(), nullable=False),
    ]
)
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def order(number: int, minute: float, price: str = "1.00", shop: str = "north") -> dict[str, object]:
    at = NOON + timedelta(minutes=minute)
    return {"id": number, "shop": shop, "price": Decimal(price), "at": at}


def per_five_minutes(rows: DataFrame) -> DataFrame:
    counted = rows.groupBy(F.window("at", "5 minutes"), "shop").agg(F.count("*").alias("orders"), F.sum("price"))
    return counted.select(F.minute("window.start").alias("minute"), "shop", "orders")


def windows(mode: OutputMode = OutputMode.APPEND) -> Flow:
    orders = Input(KafkaSource("orders"), schema=ORDER, watermark=Watermark("at", "10 minutes"), key_required=False)
    return Flow("windows", orders, per_five_minutes, KafkaSink("counts"), output_mode=mode)


def test_windows_close_with_the_watermark_and_the_rest_with_the_end(spark: SparkSession, tmp_path: Path):
    # The watermark is 10 minutes behind the latest order of the batches before.
    result = rehearse(
        windows(),
        [
            Arrive(order(1, 0), order(2, 4), order(3, 6, shop="south")),
            # After this batch the watermark is 12:11. The next one closes 12:00 and 12:05, and the one after it takes
            # nothing more for them: Spark recognizes late rows by the watermark of the batch before.
            Arrive(order(4, 21)),
            Arrive(order(5, 22)),
            Arrive(order(6, 9)),
            EndOfInput(),
        ],
        spark=spark,
        folder=tmp_path,
    )
    assert sorted(tuple(row) for row in result.rows) == [(0, "north", 2), (5, "south", 1), (20, "north", 2)]
    assert [json.loads(row.row)["id"] for row in result.late] == [6]
    assert result.quarantine == []
    assert result.restarts == 0
    assert result.state() == []


def test_without_an_end_windows_stay_open_in_the_state(spark: SparkSession, tmp_path: Path):
    result = rehearse(windows(), [Arrive(order(1, 0), order(2, 6))], spark=spark, folder=tmp_path)
    assert result.rows == []
    assert sorted(row.value["count"] for row in result.state()) == [1, 1]


@pytest.mark.parametrize("point", list(Point))
def test_a_crash_changes_nothing(spark: SparkSession, tmp_path: Path, point: Point):
    result = rehearse(
        windows(),
        [
            Arrive(order(1, 0), order(2, 4)),
            Crash(point),
            Arrive(order(3, 21)),
            Crash(point),
            EndOfInput(),
            Crash(point),
        ],
        spark=spark,
        folder=tmp_path,
    )
    assert sorted(tuple(row) for row in result.rows) == [(0, "north", 2), (20, "north", 1)]
    assert result.restarts == (2 if point is Point.AFTER_COMMIT else 3)


def test_a_crash_does_not_duplicate_rows_in_the_sink_of_the_flow(spark: SparkSession, tmp_path: Path):
    orders = Input(KafkaSource("orders"), schema=ORDER)
    flow = Flow("bronze", orders, lambda rows: rows.select("id"), DeltaAppend("bronze/orders"))
    result = rehearse(
        flow,
        [Arrive(order(1, 0)), Crash(Point.AFTER_SINK), Crash(Point.IN_SINK), Arrive(order(2, 1))],
        spark=spark,
        folder=tmp_path,
        sink=flow.sink,
    )
    assert sorted(row.id for row in result.table("bronze/orders")) == [1, 2]
    with pytest.raises(FlowError, match="table"):
        _ = result.rows


def test_updates_are_available_per_batch(spark: SparkSession, tmp_path: Path):
    result = rehearse(
        windows(OutputMode.UPDATE),
        [Arrive(order(1, 0)), Arrive(order(2, 1)), EndOfInput()],
        spark=spark,
        folder=tmp_path,
    )
    assert [[tuple(row) for row in batch] for batch in result.batches if batch] == [
        [(0, "north", 1)],
        [(0, "north", 2)],
    ]
    assert [tuple(row) for row in result.newest("minute", "shop")] == [(0, "north", 2)]


def test_invalid_and_future_records_are_quarantined(spark: SparkSession, tmp_path: Path):
    result = rehearse(
        windows(),
        [
            Arrive("{", None, b"\xff", {"id": 1, "shop": "north"}, Keyed("k", order(2, 0))),
            Clock(NOON),
            Arrive(order(3, 5), order(4, 24 * 60)),
            EndOfInput(),
        ],
        spark=spark,
        folder=tmp_path,
    )
    reasons = sorted(row.reason for row in result.quarantine)
    assert reasons == ["event_time_in_future", "malformed_json", "malformed_json", "missing:at", "null_value"]
    assert sorted(tuple(row) for row in result.rows) == [(0, "north", 1), (5, "north", 1)]


def test_several_inputs_get_their_records_by_name(spark: SparkSession, tmp_path: Path):
    side = StructType([StructField("shop", StringType()), StructField("opened", TimestampType())])
    flow = Flow(
        "joined",
        {
            "orders": Input(KafkaSource("orders"), schema=ORDER, watermark=Watermark("at", "10 minutes")),
            "shops": Input(
                FileSource("shops", "json", side, max_files_per_trigger=1), watermark=Watermark("opened", "10 minutes")
            ),
        },
        lambda orders, shops: orders.join(
            shops.withColumnRenamed("shop", "name"), F.expr("shop = name AND at >= opened - INTERVAL 1 HOUR")
        ).select("id", "name"),
        KafkaSink("joined"),
    )
    script = [
        Arrive(orders=[order(1, 0), order(2, 1, shop="south")]),
        Arrive(shops=[{"shop": "north", "opened": NOON}]),
        Arrive(orders=[order(3, 2)], shops=[{"shop": "south", "opened": NOON}]),
    ]
    result = rehearse(flow, script, spark=spark, folder=tmp_path / "a", columns={"shops": side})
    assert sorted(tuple(row) for row in result.rows) == [(1, "north"), (2, "south"), (3, "north")]
    with pytest.raises(FlowError, match="columns") as unknown:
        rehearse(flow, script, spark=spark, folder=tmp_path / "b")
    assert unknown.value.code == "HR-221"


def test_an_error_in_the_flow_fails_the_test(spark: SparkSession, tmp_path: Path):
    flow = Flow(
        "broken",
        Input(KafkaSource("orders"), schema=ORDER),
        lambda rows: rows.where(F.raise_error(F.lit("a bug")).isNull()),
        KafkaSink("x"),
    )
    with pytest.raises(HeadraceError, match="a bug"):
        rehearse(flow, [Arrive(order(1, 0))], spark=spark, folder=tmp_path)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ([Crash(Point.IN_SINK), Arrive({})], "before it"),
        ([EndOfInput(), Arrive({})], "after the end"),
        ([Clock(datetime(2026, 1, 1)), Arrive({})], "zone"),  # noqa: DTZ001 - this is the fault
        ([Arrive(others=[{}])], "inputs rows"),
    ],
)
def test_an_invalid_script_is_rejected(spark: SparkSession, tmp_path: Path, script: list, why: str):
    with pytest.raises(FlowError, match=why) as refused:
        rehearse(windows(), script, spark=spark, folder=tmp_path)
    assert refused.value.code == "HR-220"
