"""Records of Debezium as a Kafka input hands them on: the decoded envelope with topic, partition, offset and key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.cdc.decode.envelope import ENVELOPE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDED = Path(__file__).parent / "recorded"
Record = Mapping[str, object]


def record(value: object, key: object = None, offset: int = 0, topic: str = "shop.public.t") -> Record:
    """One record, its JSON written out as Connect does."""
    return {
        "topic": topic,
        "partition": 0,
        "offset": offset,
        "key": None if key is None else json.dumps(key, separators=(",", ":")),
        "value": json.dumps(value, separators=(",", ":"), ensure_ascii=False),
    }


def recorded(name: str) -> list[Record]:
    """The records of a file in tests/recorded, as they were on the topic."""
    return [json.loads(line) for line in (RECORDED / f"{name}.jsonl").read_text().splitlines()]


def rows(spark: SparkSession, records: Iterable[Record]) -> DataFrame:
    raw = spark.createDataFrame(
        [
            (record["topic"], record["partition"], record["offset"], record["key"], record["value"])
            for record in records
        ],
        "topic string, partition int, offset bigint, key string, value string",
    )
    read = raw.withColumn("read", F.from_json("value", ENVELOPE)).withColumn("key", F.col("key").cast("binary"))
    return read.select("read.*", "topic", "partition", "offset", "key")
