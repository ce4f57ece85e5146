"""A Delta table of records as they came, read as the topics would be that they came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.flow.target import Target
from headrace.sources.delta import DeltaSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A column of the table, and what a record of Kafka calls it.
_RECORD = {
    "key": "key",
    "payload": "value",
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "kafka_ts": "timestamp",
}


@dataclass(frozen=True)
class BronzeTable(DeltaSource):
    """Read what is appended to a table of records, as `DeltaSource` does, and give it to the judge as Kafka would.

    The table has the columns `payload`, `key`, `topic`, `partition`, `offset` and `kafka_ts`; others are passed over.
    The input has a schema, and bad rows are filed with the topic, partition and offset that they came from: they can be
    sent there again.

    The whole history of the table is read by its versions, from the first on, so that every batch can be read again.
    That history has to be there when the flow first starts: Delta keeps the log of a table for 30 days unless the table
    says otherwise (`delta.logRetentionDuration`).
    """

    starting_version: int | None = 0
    awaited: bool = True

    @property
    def carries_payload(self) -> bool:
        """The payload is bytes that a schema has to be applied to."""
        return True

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the endless frame of the records."""
        return _as_records(super().stream(spark, target))

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Return the records of a range once more."""
        return _as_records(super().batch(spark, target, start, end))


def _as_records(rows: DataFrame) -> DataFrame:
    return rows.select(*(F.col(ours).alias(name) for ours, name in _RECORD.items()))
