"""Write each batch to a Kafka topic."""

from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import Column, DataFrame, functions as F

from headrace.clients.kafka import connector_options, require_topics
from headrace.clients.sql import column_named
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import BaseSink, Batch, NativeWrite, SupportsNativeWrite, WritesTopic
from headrace.flow.target import Target

# Timestamps as ISO-8601 in UTC with milliseconds, so that readers can compare them as strings.
_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "ignoreNullFields": "false"}


@dataclass(frozen=True)
class KafkaTopicSink(BaseSink, WritesTopic):
    """Base of the Kafka sinks: the topic, and the column whose values become the record keys."""

    topic: str
    key: str | None = None
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset(OutputMode)

    @property
    def name(self) -> str:
        """Return `kafka:TOPIC`."""
        return f"kafka:{self.topic}"

    def written_topic(self) -> str:
        """Return the topic."""
        return self.topic

    def preflight(self, target: Target) -> None:
        """Check that the topic exists on the broker."""
        require_topics(target, [self.topic])


@dataclass(frozen=True)
class KafkaSink(KafkaTopicSink, SupportsNativeWrite):
    """Send each row as a JSON object, keyed by one column.

    At least once: Spark's Kafka writer has no transactions, so a batch that is retried after a crash sends its rows
    again. No row is lost: a batch is complete only when the brokers have acknowledged all of its records. In update
    mode a later row replaces the earlier row of its key, so a repeated row changes nothing for readers.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Send the rows; returns when the brokers have acknowledged all records."""
        native = self.native_write(rows, batch.target)
        native.rows.write.format(native.format).options(**native.options).save()

    def native_write(self, rows: DataFrame, target: Target) -> NativeWrite:
        """Return the records with the format and options of Spark's Kafka writer."""
        options = {**connector_options(target), "kafka.acks": "all", "topic": self.topic}
        return NativeWrite(as_records(rows, self.key), "kafka", options)


def as_records(rows: DataFrame, key: str | None, *extra: Column) -> DataFrame:
    """Return each row as a Kafka record: `key` as a string, null without a key column, and `value` as JSON.

    `extra` columns are returned too, but are not part of the record.
    """
    record_key = F.col(key).cast("string") if key else F.lit(None).cast("string")
    value = F.to_json(F.struct(*(column_named(name) for name in rows.columns)), _JSON)
    return rows.select(record_key.alias("key"), value.alias("value"), *extra)
