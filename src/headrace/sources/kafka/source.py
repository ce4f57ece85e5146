"""Kafka topics as a source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from confluent_kafka import KafkaException
from pyspark.sql import DataFrame, SparkSession

from headrace.clients.kafka import connector_options, mean_record_bytes
from headrace.clients.topic_watch import ANSWER_WITHIN_SECONDS, TopicMonitor
from headrace.errors import HeadraceError
from headrace.flow.source import (
    AutoBatchSize,
    Bound,
    Bounded,
    CanLoseRows,
    HasAutoBatchSize,
    ReadsTopics,
    SupportsContinuous,
    ValidatesStart,
)
from headrace.flow.target import Target
from headrace.sources.kafka.start import Start, StartOffsets, StartTime, require_earliest_or_latest, resolve_start
from headrace.sources.kafka.topics import TopicNames, TopicPartitions, TopicPattern, TopicSelection
from headrace.sources.validation import require_bounds, require_loss_reason, require_positive, require_topic_ids

# Measured on 2 cores: together these doubled the throughput of catching up (larger fetches, fewer round trips), and the
# short wait keeps the latency low for topics with few records.
_CONSUMER = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    "kafka.fetch.max.wait.ms": "50",
}

# The schema of a record, for a range without records on the broker.
_COLUMNS = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
_HEADERS = "headers array<struct<key: string, value: binary>>"

# The default where no machine was measured: this many records of a few hundred bytes fit into a small machine.
DEFAULT_OFFSETS = 500_000

# How long `headrace check` waits for a broker; without one it suggests the default bound.
_MEASURE_WITHIN_SECONDS = 2.0


@dataclass(frozen=True)
class KafkaSource(Bounded, HasAutoBatchSize, CanLoseRows, ValidatesStart, ReadsTopics, SupportsContinuous):
    """Read Kafka topics; lost records stop the flow instead of being skipped silently.

    Rows have key, value, topic, partition, offset and timestamp. Aborted transactions are not read. The flow stops if
    the broker no longer has a range of offsets.

    | field                     | meaning                                                                      |
    |---------------------------|------------------------------------------------------------------------------|
    | topics                    | a name, a list of names, a `TopicPattern` or `TopicPartitions`               |
    | max_offsets_per_trigger   | the maximum number of records per batch; bounds memory and batch duration.   |
    |                           | `AutoBatchSize` computes it at the start. `check` rejects None (HRC-110)     |
    | starting                  | `earliest`, `latest`, `StartOffsets` or `StartTime`. Used only at the first  |
    |                           | start, without a checkpoint. Topics and partitions that are added later are  |
    |                           | always read from their start                                                 |
    | data_loss_reason          | why the flow may continue without lost records; each lost range is recorded  |
    |                           | with its batch. None: a loss stops the flow                                  |
    | accepted_topic_ids        | ids of recreated topics that may be read in place of the old ones, from the  |
    |                           | old offsets on                                                               |
    | min_partitions            | the minimum number of tasks per batch, for more cores than partitions        |
    | max_records_per_partition | the maximum number of records per task                                       |
    | raw                       | rows are unparsed records with headers, and the input has no schema: no row  |
    |                           | is invalid. For a bronze table                                               |

    `min_partitions` and `max_records_per_partition` split the range of a partition evenly between tasks. The records of
    a key are then in several tasks, which run concurrently: they are ordered within a task, but not between tasks.
    """

    topics: str | Sequence[str] | TopicPattern | TopicPartitions
    max_offsets_per_trigger: int | AutoBatchSize | None = field(default_factory=AutoBatchSize)
    starting: Start = "earliest"
    data_loss_reason: str | None = None
    accepted_topic_ids: tuple[str, ...] = ()
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    raw: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.topics, str | TopicPattern | TopicPartitions):
            object.__setattr__(self, "topics", tuple(self.topics))
        name = self.name
        if not isinstance(self.starting, StartOffsets | StartTime):
            require_earliest_or_latest(name, self.starting)
        for field_name in ("min_partitions", "max_records_per_partition"):
            number = getattr(self, field_name)
            if number is not None:
                require_positive(name, field_name, number)
        require_bounds(name, self.bounds)
        require_loss_reason(name, self.data_loss_reason)
        require_topic_ids(name, self.accepted_topic_ids, self.data_loss_reason)

    @property
    def selection(self) -> TopicSelection:
        """The topics and partitions to read."""
        if isinstance(self.topics, TopicPattern | TopicPartitions):
            return self.topics
        return TopicNames((self.topics,) if isinstance(self.topics, str) else tuple(self.topics))

    @property
    def name(self) -> str:
        """Return `kafka:TOPIC`, `kafka:TOPIC,TOPIC`, `kafka:/REGEX/` or `kafka:TOPIC[0,1]`."""
        return self.selection.label

    @property
    def carries_payload(self) -> bool:
        """Whether a schema is applied to the value: not with `raw`."""
        return not self.raw

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The bound of a batch."""
        return (Bound("max_offsets_per_trigger", "records", self.max_offsets_per_trigger, DEFAULT_OFFSETS),)

    @property
    def auto_batch_size(self) -> AutoBatchSize | None:
        """How the batch size is computed, or None if it is a number."""
        return self.max_offsets_per_trigger if isinstance(self.max_offsets_per_trigger, AutoBatchSize) else None

    def with_batch_size(self, records: int) -> KafkaSource:
        """Return the same source with this maximum number of records per batch."""
        return replace(self, max_offsets_per_trigger=records)

    def record_bytes(self, target: Target) -> float | None:
        """Return the mean size of the newest records."""
        try:
            return mean_record_bytes(target, self.selection.partitions(target))
        except (HeadraceError, KafkaException):
            return None

    def arrival_rates(self, target: Target) -> dict[str, float]:
        """Return the records per second of the last minutes, by their timestamps."""
        if not target.kafka.get("bootstrap.servers"):
            return {}
        try:
            return {"records": self.watch(target, _MEASURE_WITHIN_SECONDS).records_per_second()}
        except HeadraceError:
            return {}

    def reads(self, topic: str) -> bool:
        """Whether a topic of this name is read, now or when it is created."""
        return self.selection.reads(topic)

    def preflight(self, target: Target) -> None:
        """Check that the topics and partitions exist on the broker."""
        self.selection.partitions(target)

    def require_start(self, target: Target) -> None:
        """Check with the broker that the first start can start as declared."""
        if isinstance(self.starting, StartOffsets | StartTime):
            self.starting.require(self.selection, target)

    def for_continuous(self, start: str | None = None) -> KafkaSource:
        """Return the source without batch bounds, which continuous and real-time processing do not support."""
        starting: Start = self.starting if start is None else _at_offsets(start)
        return replace(
            self, max_offsets_per_trigger=None, min_partitions=None, max_records_per_partition=None, starting=starting
        )

    def initial_offsets(self, target: Target) -> str:
        """Return the offsets at which a first start would start now."""
        return resolve_start(self.starting, self.selection, target)

    def latest_offsets(self, target: Target) -> str:
        """Return the current end offsets of the topics."""
        return resolve_start("latest", self.selection, target)

    def partition_count(self, target: Target) -> int:
        """Return the number of partitions that are read."""
        return sum(len(numbers) for numbers in self.selection.partitions(target).values())

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the streaming DataFrame of the topics."""
        name, value = self.selection.option()
        max_offsets = DEFAULT_OFFSETS if self.auto_batch_size else self.max_offsets_per_trigger
        bounds = {} if max_offsets is None else {"maxOffsetsPerTrigger": str(max_offsets)}
        return (
            spark.readStream.format("kafka")
            .options(**self._options(target))
            .options(**self._start(target))
            .option(name, value)
            .options(**bounds)
            .load()
        )

    def watch(self, target: Target, timeout_seconds: float = ANSWER_WITHIN_SECONDS) -> TopicMonitor:
        """Return the watch of topic ids and offsets; `timeout_seconds` is its timeout per request in seconds."""
        return TopicMonitor(target, self.selection.watched_topics(), timeout_seconds)

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Return the records from `start` to before `end`, both as in the offset log.

        Reads exactly the partitions in `end`, whatever partitions the topics have now.
        """
        first, last = json.loads(start), json.loads(end)
        # A partition that was added during the batch is missing in `start`. Spark reads a new partition from 0.
        first = {
            topic: {number: first.get(topic, {}).get(number, 0) for number in partitions}
            for topic, partitions in last.items()
        }
        if self.data_loss_reason is not None:
            first, last = self.watch(target).available_range(first, last)
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
            "failOnDataLoss": "true" if self.data_loss_reason is None else "false",
            **({"includeHeaders": "true"} if self.raw else {}),
        }


def _at_offsets(start: str) -> StartOffsets:
    """Return a start at offsets as in the offset log."""
    return StartOffsets(
        {
            topic: {int(number): offset for number, offset in partitions.items()}
            for topic, partitions in json.loads(start).items()
        }
    )
