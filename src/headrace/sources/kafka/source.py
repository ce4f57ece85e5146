"""Kafka topics as a source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from headrace.clients.kafka import connector_options, mean_record_bytes
from headrace.clients.topic_watch import ANSWER_WITHIN_SECONDS, TopicWatch
from headrace.errors import HeadraceError
from headrace.flow.source import AutoBatchSize, Bound
from headrace.flow.target import Target
from headrace.sources.bounds import require_bounds, require_ids, require_positive, require_words
from headrace.sources.kafka.start import Start, StartOffsets, StartTime, require_edge, resolved
from headrace.sources.kafka.topics import Selection, TopicNames, TopicPartitions, TopicPattern

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Measured on 2 cores: together these doubled the speed of a drain (larger fetches, fewer round trips), and the
# short wait keeps a topic at low rate fresh.
_CONSUMER = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    "kafka.fetch.max.wait.ms": "50",
}

# What a record is read as, for a range of which the broker has nothing left.
_COLUMNS = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
_HEADERS = "headers array<struct<key: string, value: binary>>"

# What stands in where no machine has been asked: so many records of some hundred bytes fit into a small one.
USUAL_OFFSETS = 500_000

# How long `headrace check` waits for a broker: without one it says the usual bound.
_MEASURE_WITHIN_SECONDS = 2.0


@dataclass(frozen=True)
class KafkaSource:
    """Read topics, and never past a loss in silence.

    Rows carry key, value, topic, partition, offset and the broker's timestamp. Aborted transactions are not read.
    A range of offsets that the broker no longer has stops the flow: rows are never skipped unsaid.

    | field                     | meaning                                                                      |
    |---------------------------|------------------------------------------------------------------------------|
    | topics                    | a name, a list of names, a `TopicPattern` or `TopicPartitions`               |
    | max_offsets_per_trigger   | the most records of one batch; bounds memory and the time of a batch.        |
    |                           | `AutoBatchSize` computes it at the start. The check refuses None (HRC-110)   |
    | starting                  | `earliest`, `latest`, `StartOffsets` or `StartTime`. Only the first start    |
    |                           | reads it, a checkpoint goes before. A topic or a partition that is added     |
    |                           | later is always read from its start                                          |
    | accept_loss               | in words, why the flow may go on without records that are gone; what is lost |
    |                           | is then recorded per batch. None: such a loss stops the flow                 |
    | accept_topics             | ids of topics that were made again and may be read in place of the old ones, |
    |                           | from the old offsets on                                                      |
    | min_partitions            | the least number of tasks that share a batch, where there are more cores     |
    |                           | than partitions                                                              |
    | max_records_per_partition | the most records of one task                                                 |
    | raw                       | rows are the records as they came, headers too, and the input has no schema: |
    |                           | nothing is bad. For a table that keeps everything                            |

    `min_partitions` and `max_records_per_partition` split the range of a partition evenly between tasks. The records of
    a key are then in several tasks, which run at the same time: within a task they are in the order of the partition,
    between tasks in none.
    """

    topics: str | Sequence[str] | TopicPattern | TopicPartitions
    max_offsets_per_trigger: int | AutoBatchSize | None = field(default_factory=AutoBatchSize)
    starting: Start = "earliest"
    accept_loss: str | None = None
    accept_topics: tuple[str, ...] = ()
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    raw: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.topics, str | TopicPattern | TopicPartitions):
            object.__setattr__(self, "topics", tuple(self.topics))
        name = self.name
        if not isinstance(self.starting, StartOffsets | StartTime):
            require_edge(name, self.starting)
        for each in ("min_partitions", "max_records_per_partition"):
            number = getattr(self, each)
            if number is not None:
                require_positive(name, each, number)
        require_bounds(name, self.bounds)
        require_words(name, self.accept_loss)
        require_ids(name, self.accept_topics, self.accept_loss)

    @property
    def selection(self) -> Selection:
        """Return what is read, as a value that can ask the broker for it."""
        if isinstance(self.topics, TopicPattern | TopicPartitions):
            return self.topics
        return TopicNames((self.topics,) if isinstance(self.topics, str) else tuple(self.topics))

    @property
    def name(self) -> str:
        """Return `kafka:TOPIC`, `kafka:TOPIC,TOPIC`, `kafka:/REGEX/` or `kafka:TOPIC[0,1]`."""
        return self.selection.label

    @property
    def carries_payload(self) -> bool:
        """Kafka delivers bytes. Raw, the bytes are a column like the others."""
        return not self.raw

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The bound of a batch."""
        return (Bound("max_offsets_per_trigger", "records", self.max_offsets_per_trigger, USUAL_OFFSETS),)

    @property
    def fit(self) -> AutoBatchSize | None:
        """How the bound is to fit, unless it is a number."""
        return self.max_offsets_per_trigger if isinstance(self.max_offsets_per_trigger, AutoBatchSize) else None

    def bounded(self, records: int) -> KafkaSource:
        """Return the same source with at most so many records in a batch."""
        return replace(self, max_offsets_per_trigger=records)

    def record_bytes(self, target: Target) -> float | None:
        """Return the mean size of the newest records."""
        try:
            return mean_record_bytes(target, self.selection.partitions(target))
        except (HeadraceError, KafkaException):
            return None

    def arrivals(self, target: Target) -> dict[str, float]:
        """Return the records a second of the last minutes, by their timestamps."""
        if not target.kafka.get("bootstrap.servers"):
            return {}
        try:
            return {"records": self.watch(target, _MEASURE_WITHIN_SECONDS).records_per_second()}
        except HeadraceError:
            return {}

    def reads(self, topic: str) -> bool:
        """Whether a topic of that name is read, now or when it appears."""
        return self.selection.reads(topic)

    def preflight(self, target: Target) -> None:
        """Ask the broker for the topics and partitions."""
        self.selection.partitions(target)

    def require_start(self, target: Target) -> None:
        """Ask the broker whether the first start can begin as declared."""
        if isinstance(self.starting, StartOffsets | StartTime):
            self.starting.require(self.selection, target)

    def unbatched(self, start: str | None = None) -> KafkaSource:
        """Return the source without bounds of a batch, which continuous and real-time processing do not know."""
        starting: Start = self.starting if start is None else _at_offsets(start)
        return replace(
            self, max_offsets_per_trigger=None, min_partitions=None, max_records_per_partition=None, starting=starting
        )

    def begins(self, target: Target) -> str:
        """Return where the first start would begin now."""
        return resolved(self.starting, self.selection, target)

    def ends(self, target: Target) -> str:
        """Return where the topics end now."""
        return resolved("latest", self.selection, target)

    def tasks(self, target: Target) -> int:
        """Return how many partitions are read."""
        return sum(len(numbers) for numbers in self.selection.partitions(target).values())

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the endless frame of the topics."""
        name, value = self.selection.option()
        most = USUAL_OFFSETS if self.fit else self.max_offsets_per_trigger
        bounds = {} if most is None else {"maxOffsetsPerTrigger": str(most)}
        return (
            spark.readStream.format("kafka")
            .options(**self._options(target))
            .options(**self._start(target))
            .option(name, value)
            .options(**bounds)
            .load()
        )

    def watch(self, target: Target, patience: float = ANSWER_WITHIN_SECONDS) -> TopicWatch:
        """Return the watch over the topics' ids and their offsets; it waits so many seconds for each answer."""
        return TopicWatch(target, self.selection.watched(), patience)

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Return the records from `start` to before `end`, as the offset log writes them.

        Exactly the partitions in `end` are read, whatever the topics and partitions are now.
        """
        first, last = json.loads(start), json.loads(end)
        # A partition that was added during the batch is not in `start`. Spark reads a new partition from 0.
        first = {
            topic: {number: first.get(topic, {}).get(number, 0) for number in partitions}
            for topic, partitions in last.items()
        }
        if self.accept_loss is not None:
            first, last = self.watch(target).held(first, last)
        if not last:
            return spark.createDataFrame([], f"{_COLUMNS}, {_HEADERS}" if self.raw else _COLUMNS)
        assigned = {topic: [int(number) for number in partitions] for topic, partitions in last.items()}
        return (
            spark.read.format("kafka")
            .options(**self._options(target))
            .option("assign", json.dumps(assigned))
            .option("startingOffsets", json.dumps(first))
            .option("endingOffsets", json.dumps(last))
            .load()
        )

    def _start(self, target: Target) -> dict[str, str]:
        if isinstance(self.starting, StartOffsets | StartTime):
            return self.starting.options(self.selection, target)
        return {"startingOffsets": self.starting}

    def _options(self, target: Target) -> dict[str, str]:
        tasks = {"minPartitions": self.min_partitions, "maxRecordsPerPartition": self.max_records_per_partition}
        return {
            **_CONSUMER,
            **connector_options(target),
            **{name: str(number) for name, number in tasks.items() if number is not None},
            "kafka.isolation.level": "read_committed",
            "failOnDataLoss": "true" if self.accept_loss is None else "false",
            **({"includeHeaders": "true"} if self.raw else {}),
        }


def _at_offsets(start: str) -> StartOffsets:
    """Return the start at offsets as the offset log writes them."""
    return StartOffsets(
        {topic: {int(number): offset for number, offset in of.items()} for topic, of in json.loads(start).items()}
    )
