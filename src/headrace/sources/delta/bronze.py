"""A Delta table of records as they came, read as the topics would be that they came from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.clients.storage import files_for
from headrace.flow.target import Target
from headrace.sources.delta.source import DeltaSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A column of the table, and what a record of Kafka calls it. The time is that at which the table got the record: it
# never goes back from one version to the next, whatever the clocks of producers say.
_RECORD = {
    "key": "key",
    "payload": "value",
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "ingested_at": "timestamp",
}
# What tells a record apart, and what the table of redriven rows calls it.
_IDENTITY = {"topic": "topic", "partition": "partition", "offset": "offset", "timestamp": "kafka_time"}


@dataclass(frozen=True)
class BronzeSource(DeltaSource):
    """Read what is appended to a table of records, as `DeltaSource` does, and give it to the judge as Kafka would.

    The table has the columns `payload`, `key`, `topic`, `partition`, `offset` and `ingested_at`; others are passed
    over. The input has a schema, and bad rows are filed with the topic, partition and offset that they came from: they
    can be sent there again. The `timestamp` of a record is `ingested_at`, the time at which the table got it. It
    only grows along the versions of the table, so that under a watermark on it no row is ever late. The time of Kafka
    does not: producers set it, and partitions lag.

    The whole history of the table is read by its versions, from the first on, so that every batch can be read again.
    That history has to be there when the flow first starts: Delta keeps the log of a table for 30 days unless the table
    says otherwise (`delta.logRetentionDuration`), and VACUUM removes the files of old versions.

    `redriven` is the table in which the rows are filed that were sent again: `_headrace/FLOW/redriven`. A record
    that was sent again is in the table twice. A flow that begins anew leaves the first one out and judges the second,
    as it did when it was first run. It looks for that table when it starts.
    """

    starting_version: int | None = 0
    awaited: bool = True
    redriven: str | None = None

    @property
    def carries_payload(self) -> bool:
        """The payload is bytes that a schema has to be applied to."""
        return True

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the endless frame of the records."""
        return self._as_records(super().stream(spark, target), target)

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Return the records of a range once more."""
        return self._as_records(super().batch(spark, target, start, end), target)

    def _as_records(self, rows: DataFrame, target: Target) -> DataFrame:
        records = rows.select(*(F.col(ours).alias(name) for ours, name in _RECORD.items()))
        place = None if self.redriven is None else target.table(self.redriven)
        if place is None or not files_for(place, rows.sparkSession).names(f"{place}/_delta_log"):
            return records
        sent = rows.sparkSession.read.format("delta").load(place).select(*_IDENTITY.values())
        sent = sent.toDF(*(f"_sent_{name}" for name in _IDENTITY))
        same = reduce(and_, (F.col(name) == F.col(f"_sent_{name}") for name in _IDENTITY))
        return records.join(F.broadcast(sent), same, "left_anti")
