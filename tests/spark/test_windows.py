"""Windows and dedup: one function, the same rows over a batch, over a stream and by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from headrace import Flow, FlowError, InMemory, Input, KafkaSource, Memory, Watermark
from headrace.testing import Arrive, EndOfInput, rehearse
from headrace.transforms.dedup import deduplicate
from headrace.transforms.windows import exact_distinct, sessions, sliding, tumbling, window_bounds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

pytestmark = pytest.mark.spark

SALE = StructType(
    [
        StructField("id", LongType(), nullable=False),
        StructField("who", StringType()),
        StructField("at", TimestampType(), nullable=False),
        # Spark refuses sessions over all rows of a stream: they need a key.
        StructField("shop", StringType(), nullable=False),
    ]
)
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
TEN_MINUTES = Watermark("at", "10 minutes")


def sale(number: int, minute: float, who: str | None = "ann") -> dict[str, object]:
    return {"id": number, "who": who, "at": NOON + timedelta(minutes=minute), "shop": "north"}


def batch(spark: SparkSession, *rows: dict[str, object]) -> DataFrame:
    return spark.createDataFrame([tuple(row.values()) for row in rows], SALE)


def stream(transform, watermark: Watermark = TEN_MINUTES) -> Flow:
    sales = Input(KafkaSource("sales"), schema=SALE, watermark=watermark)
    return Flow("sales", sales, transform, Memory(), state=InMemory(shuffle_partitions=1))


def counted(rows: DataFrame, kind: str, window: Column) -> DataFrame:
    actual = rows.groupBy(window, "shop").agg(F.count("*").alias("sales"), exact_distinct("who").alias("people"))
    minutes = [(F.unix_millis(bound) - round(NOON.timestamp() * 1000)) / 60_000 for bound in window_bounds()]
    return actual.select(F.lit(kind).alias("kind"), *minutes, "sales", "people").toDF(
        *["kind", "start", "end", "sales", "people"]
    )


def all_windows(rows: DataFrame) -> DataFrame:
    kinds = {
        "tumbling": tumbling("at", "5 minutes"),
        "moved": tumbling(F.col("at"), "5 minutes", offset="2m"),
        "sliding": sliding("at", "10 minutes", every="5 minutes"),
        "session": sessions("at", gap="6 minutes"),
    }
    first, *others = (counted(rows, kind, window) for kind, window in kinds.items())
    for other in others:
        first = first.unionByName(other)
    return first


SALES = [sale(1, 0), sale(2, 4.999, "bob"), sale(3, 5), sale(4, 11, None), sale(5, 17.5), sale(6, 30)]
BY_HAND = [
    # Minutes after noon, sales, people.
    ("tumbling", 0, 5, 2, 2),
    ("tumbling", 5, 10, 1, 1),
    ("tumbling", 10, 15, 1, 0),
    ("tumbling", 15, 20, 1, 1),
    ("tumbling", 30, 35, 1, 1),
    # From 2, 7, 12 ... minutes: 12:00 is in the one that began at 11:57.
    ("moved", -3, 2, 1, 1),
    ("moved", 2, 7, 2, 2),
    ("moved", 7, 12, 1, 0),
    ("moved", 17, 22, 1, 1),
    ("moved", 27, 32, 1, 1),
    ("sliding", -5, 5, 2, 2),
    ("sliding", 0, 10, 3, 2),
    ("sliding", 5, 15, 2, 1),
    ("sliding", 10, 20, 2, 1),
    ("sliding", 15, 25, 1, 1),
    ("sliding", 25, 35, 1, 1),
    ("sliding", 30, 40, 1, 1),
    # 5 and 11 are exactly the gap apart, and together; 11 and 17.5 are further apart than that.
    ("session", 0, 17, 4, 2),
    ("session", 17.5, 23.5, 1, 1),
    ("session", 30, 36, 1, 1),
]


def test_windows_are_the_same_over_a_batch_and_over_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    assert sorted(tuple(row) for row in all_windows(batch(spark, *SALES)).collect()) == sorted(BY_HAND)
    script = [Arrive(*SALES[1:3]), Arrive(SALES[0], *SALES[3:]), EndOfInput()]
    actual = rehearse(stream(all_windows), script, spark=spark, folder=tmp_path)
    assert sorted(tuple(row) for row in actual.rows) == sorted(BY_HAND)
    assert actual.late == []


DELIVERED = [
    [sale(1, 0), sale(2, 1), sale(1, 0)],
    # Again within ten minutes of the first, one of them exactly.
    [sale(1, 3), sale(2, 11), sale(3, 12)],
    # The second of these batches forgets by the watermark that the first one has moved.
    [sale(4, 60)],
    [sale(5, 61)],
    # An hour later the number of the first sale is used again. Its state has expired by then.
    [sale(1, 59), sale(4, 60.5)],
]
RETAINED = [(1, 0), (2, 1), (3, 12), (4, 60), (5, 61), (1, 59)]


def once(rows: DataFrame) -> DataFrame:
    return deduplicate(rows, "id", within=TEN_MINUTES)


def in_minutes(rows) -> list[tuple[int, float]]:
    noon = NOON.astimezone().replace(tzinfo=None)
    return sorted((row.id, (row["at"] - noon) / timedelta(minutes=1)) for row in rows)


def test_a_row_that_is_delivered_again_is_returned_once_in_a_batch_and_in_a_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    everything = [row for rows in DELIVERED for row in rows]
    actual = once(batch(spark, *everything))
    assert actual.columns == ["id", "who", "at", "shop"]
    assert in_minutes(actual.collect()) == sorted(RETAINED)
    script = [Arrive(*rows) for rows in DELIVERED]
    assert in_minutes(rehearse(stream(once), script, spark=spark, folder=tmp_path).rows) == sorted(RETAINED)


def test_dedup_refuses_a_stream_under_another_watermark_or_none(spark: SparkSession) -> None:
    bare = spark.readStream.format("rate").load()
    rows = bare.select(F.col("value").alias("id"), F.lit("ann").alias("who"), F.col("timestamp").alias("at"))
    for declared, phrase in ((rows, "no watermark on 'at'"), (rows.withWatermark("at", "5 minutes"), "300 seconds")):
        with pytest.raises(FlowError, match=phrase) as caught:
            deduplicate(declared, "id", within=TEN_MINUTES)
        assert caught.value.code == "HR-231"
    with pytest.raises(FlowError, match="key"):
        deduplicate(rows, within=TEN_MINUTES)
