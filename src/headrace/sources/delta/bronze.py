"""A bronze Delta table of raw Kafka records, read like the topics that the records are from."""

from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import DataFrame, SparkSession, functions as F

from headrace.clients.spark.delta_log import is_table
from headrace.flow.target import Target
from headrace.sources.delta.source import DeltaSource

# A column of the table, and its name in a Kafka record. The timestamp is the ingestion time: it never decreases from
# one version to the next, unlike the clocks of producers.
_RECORD = {
    "key": "key",
    "payload": "value",
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "ingested_at": "timestamp",
}
# The columns that identify a record, and their names in the table of redriven rows.
_IDENTITY = {"topic": "topic", "partition": "partition", "offset": "offset", "timestamp": "kafka_time"}


@dataclass(frozen=True)
class BronzeSource(DeltaSource):
    """Read the records that are appended to a bronze table, and validate them like records from Kafka.

    The table has the columns `payload`, `key`, `topic`, `partition`, `offset` and `ingested_at`; others are ignored.
    The input has a schema, and invalid rows are quarantined with their original topic, partition and offset, so that
    they can be redriven there. The `timestamp` of a record is `ingested_at`, the time at which the table received it.
    It never decreases along the versions of the table, so no row is late under a watermark on it. Kafka's timestamp
    can decrease: producers set it, and partitions lag.

    The history of the table is read version by version from the first one, so that every batch can be replayed. The
    history has to be complete when the flow first starts: Delta keeps the log of a table for 30 days by default
    (`delta.logRetentionDuration`), and VACUUM removes the files of old versions.

    `redriven` is the table of redriven rows: `_headrace/FLOW/redriven`. A redriven record is in the bronze table twice.
    A flow with a new checkpoint skips the first one and validates the second, as in its first run. The source looks
    for this table when it starts.
    """

    starting_version: int | None = 0
    wait_for_table: bool = True
    redriven: str | None = None

    @property
    def carries_payload(self) -> bool:
        """True: the payload is bytes that a schema is applied to."""
        return True

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the streaming DataFrame of the records."""
        return self._as_records(super().stream(spark, target), target)

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Return the records of a range of offsets."""
        return self._as_records(super().batch(spark, target, start, end), target)

    def _as_records(self, rows: DataFrame, target: Target) -> DataFrame:
        records = rows.select(*(F.col(ours).alias(name) for ours, name in _RECORD.items()))
        location = None if self.redriven is None else target.table(self.redriven)
        if location is None or not is_table(location, rows.sparkSession):
            return records
        redriven = rows.sparkSession.read.format("delta").load(location).select(*_IDENTITY.values())
        redriven = redriven.toDF(*(f"_sent_{name}" for name in _IDENTITY))
        is_redriven = reduce(and_, (F.col(name) == F.col(f"_sent_{name}") for name in _IDENTITY))
        return records.join(F.broadcast(redriven), is_redriven, "left_anti")
