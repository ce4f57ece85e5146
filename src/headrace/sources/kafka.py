"""Kafka topics as a source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.clients.kafka import connector_options, require_topics
from headrace.clients.topic_watch import TopicWatch
from headrace.flow.target import Target
from headrace.sources.bounds import require_ids, require_words

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Measured on 2 cores: together these doubled the speed of a drain (larger fetches, fewer round trips), and the
# short wait keeps a topic at low rate fresh.
_CONSUMER = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    "kafka.fetch.max.wait.ms": "50",
}


@dataclass(frozen=True)
class Kafka:
    """Read one topic from its start, and never past a loss in silence.

    Rows carry key, value, topic, partition, offset and the broker's timestamp. Aborted transactions are not read.
    A range of offsets that the broker no longer has stops the flow: rows are never skipped unsaid.

    | field                   | meaning                                                                        |
    |-------------------------|--------------------------------------------------------------------------------|
    | topic                   | the topic                                                                      |
    | max_offsets_per_trigger | the most records of one batch; bounds memory and the time of a batch           |
    | starting                | `earliest` or `latest`; only the first start reads it, a checkpoint goes before |
    | accept_loss             | in words, why the flow may go on without records that are gone; what is lost   |
    |                         | is then recorded per batch. None: such a loss stops the flow                   |
    | accept_topics           | ids of topics that were made again and may be read in place of the old ones,   |
    |                         | from the old offsets on                                                        |
    """

    topic: str
    max_offsets_per_trigger: int = 500_000
    starting: str = "earliest"
    accept_loss: str | None = None
    accept_topics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_words(self.name, self.accept_loss)
        require_ids(self.name, self.accept_topics, self.accept_loss)

    @property
    def name(self) -> str:
        """Return `kafka:TOPIC`."""
        return f"kafka:{self.topic}"

    @property
    def carries_payload(self) -> bool:
        """Kafka delivers bytes."""
        return True

    def preflight(self, target: Target) -> None:
        """Ask the broker for the topic."""
        require_topics(target, [self.topic])

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the endless frame of the topic."""
        return (
            spark.readStream.format("kafka")
            .options(**self._options(target))
            .option("startingOffsets", self.starting)
            .option("maxOffsetsPerTrigger", str(self.max_offsets_per_trigger))
            .load()
        )

    def watch(self, target: Target) -> TopicWatch:
        """Return the watch over the topic's id and its offsets."""
        return TopicWatch(target, lambda: [self.topic])

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Return the records from `start` to before `end`, as the offset log writes them."""
        first, last = json.loads(start), json.loads(end)
        # A partition that was added during the batch is not in `start`. Spark reads a new partition from 0.
        for topic, partitions in last.items():
            first[topic] = {part: first.get(topic, {}).get(part, 0) for part in partitions}
        if self.accept_loss is not None:
            first, last = self.watch(target).held(first, last)
        return (
            spark.read.format("kafka")
            .options(**self._options(target))
            .option("startingOffsets", json.dumps(first))
            .option("endingOffsets", json.dumps(last))
            .load()
        )

    def _options(self, target: Target) -> dict[str, str]:
        return {
            **_CONSUMER,
            **connector_options(target),
            "subscribe": self.topic,
            "kafka.isolation.level": "read_committed",
            "failOnDataLoss": "true" if self.accept_loss is None else "false",
        }
