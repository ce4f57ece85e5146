"""The other contenders: the same work in PySpark alone, as tutorials write it and as a person tunes it by hand."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from ride_work import WATERMARK, Rides, parsed

from headrace import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_STORES = "org.apache.spark.sql.execution.streaming.state"


@dataclass(frozen=True)
class Style:
    """How a person writes the job: settings of the session and of the reader, and how payloads are read."""

    settings: dict[str, str]
    reader: dict[str, str]
    read: Callable[[DataFrame], DataFrame] = parsed


# Spark's defaults, and the bound that is copied from one example to the next.
TUTORIAL = Style(
    {
        "spark.sql.shuffle.partitions": "200",
        "spark.sql.streaming.stateStore.providerClass": f"{_STORES}.HDFSBackedStateStoreProvider",
    },
    {"maxOffsetsPerTrigger": "100000"},
)


def tuned(cores: int, read: Callable[[DataFrame], DataFrame]) -> Style:
    """Return what weeks with a profiler come to: a partition per core, RocksDB, large batches, large fetches."""
    return Style(
        {
            "spark.sql.shuffle.partitions": str(cores),
            "spark.sql.streaming.stateStore.providerClass": f"{_STORES}.RocksDBStateStoreProvider",
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            "spark.databricks.delta.snapshotPartitions": "2",
        },
        {
            "maxOffsetsPerTrigger": "1000000",
            "kafka.max.poll.records": "20000",
            "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
            "kafka.fetch.max.wait.ms": "50",
        },
        read,
    )


@dataclass(frozen=True)
class Job:
    """One job over one topic, in one style."""

    spark: SparkSession
    target: Target
    rides: Rides
    style: Style

    def window_into_nothing(self, transform: Callable[[DataFrame], DataFrame]) -> None:
        """Aggregate, and let go of the result."""
        result = transform(self._rows().withWatermark("event_time", WATERMARK))
        self._drain(result.writeStream.format("noop").outputMode("update"))

    def into_delta(self, transform: Callable[[DataFrame], DataFrame], path: str) -> None:
        """Append to a new table."""
        self._drain(transform(self._rows()).writeStream.format("delta").option("path", path))

    def into_topic(self, transform: Callable[[DataFrame], DataFrame], topic: str, key: str) -> None:
        """Send every row as JSON."""
        rows = transform(self._rows()).select(F.col(key).alias("key"), F.to_json(F.struct("*")).alias("value"))
        self._drain(
            rows.writeStream.format("kafka")
            .option("kafka.bootstrap.servers", str(self.target.kafka["bootstrap.servers"]))
            .option("topic", topic)
        )

    def _rows(self) -> DataFrame:
        session = self.spark.newSession()
        session.conf.set("spark.sql.session.timeZone", "UTC")
        for name, value in self.style.settings.items():
            session.conf.set(name, value)
        records = (
            session.readStream.format("kafka")
            .option("kafka.bootstrap.servers", str(self.target.kafka["bootstrap.servers"]))
            .option("subscribe", self.rides.topic)
            .option("startingOffsets", "earliest")
            .options(**self.style.reader)
            .load()
        )
        return self.style.read(records)

    def _drain(self, writer: DataStreamWriter) -> None:
        checkpoint = f"{self.target.checkpoints}/plain-{uuid.uuid4().hex}"
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
