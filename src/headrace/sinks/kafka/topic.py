"""Write each batch to a Kafka topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import functions as F

from headrace.clients.kafka import connector_options, require_topics
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch, NativeWrite
from headrace.flow.target import Target

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# With the timestamps as ISO-8601 in UTC to the millisecond, any reader can compare them as text.
_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "ignoreNullFields": "false"}


@dataclass(frozen=True)
class KafkaTopicSink:
    """What every sink that ends in a Kafka topic has in common: where rows go, and the column that keys them."""

    topic: str
    key: str | None = None
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset(OutputMode)

    @property
    def name(self) -> str:
        """Return `kafka:TOPIC`."""
        return f"kafka:{self.topic}"

    def preflight(self, target: Target) -> None:
        """Ask the broker for the topic."""
        require_topics(target, [self.topic])


@dataclass(frozen=True)
class KafkaSink(KafkaTopicSink):
    """Send each row as a JSON object, keyed by one column.

    At least once: Spark's Kafka writer has no transactions, so a batch that is run again after a crash sends its rows
    again. No row is lost: a batch counts as done only when the brokers have acknowledged all of it. In update mode,
    where a later row for the same key replaces an earlier one, a repeated row changes nothing for such a reader.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Nothing: the topic is there."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Send the rows; returns when the brokers have acknowledged all of them."""
        native = self.native(rows, batch.target)
        native.rows.write.format(native.format).options(**native.options).save()

    def native(self, rows: DataFrame, target: Target) -> NativeWrite:
        """Return the rows as records, and how Spark's own writer sends them."""
        options = {**connector_options(target), "kafka.acks": "all", "topic": self.topic}
        return NativeWrite(as_records(rows, self.key), "kafka", options)


def as_records(rows: DataFrame, key: str | None, *beside: Column) -> DataFrame:
    """Return each row as the two texts of a Kafka record: `key`, null without a key column, and `value`, JSON.

    `beside` are columns that do not go into the record.
    """
    of_key = F.col(key).cast("string") if key else F.lit(None).cast("string")
    value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in rows.columns)), _JSON)
    return rows.select(of_key.alias("key"), value.alias("value"), *beside)
