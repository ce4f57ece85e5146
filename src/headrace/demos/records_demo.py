"""What the demos share whose source is generated records in Kafka.

The inputs of a model, and the results to compare it with: records, batch offsets, invalid and late rows.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any, Protocol

from pyspark.sql import SparkSession

from headrace.audit.flow_audit import late_table, quarantine_table
from headrace.clients.kafka import newest_timestamp, read_topic
from headrace.clients.positions import Partition
from headrace.clients.topics import create_topics
from headrace.demos.compare import Comparison, Row, Tolerance, table_rows, topic_rows
from headrace.demos.feeder import Generator, SendResult, generate
from headrace.demos.protocol import DemoContext, DemoSettings
from headrace.flow.flow import SINGLE_INPUT, Flow
from headrace.flow.target import Target
from headrace.patterns.records import ConsumedRecord, InvalidRecord
from headrace.patterns.window_model import BatchOffsets
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.source_order import source_index

# The maximum number of differences to print.
_MAX_DIFFERENCES_SHOWN = 20


def read_records(target: Target, topic: str) -> list[ConsumedRecord]:
    """Return every committed record of a topic."""
    return [
        ConsumedRecord(
            message.partition() or 0, message.offset() or 0, message.timestamp()[1], message.key(), message.value()
        )
        for message in read_topic(target, topic)
    ]


def batch_ranges(spark: SparkSession | None, target: Target, flow: Flow) -> list[dict[str, BatchOffsets]]:
    """Return the committed batches of a flow: for each batch and input the range of offsets."""
    checkpoint = Checkpoint.of(flow.name, target, spark)
    indexes = {name: source_index(checkpoint, flow, name) for name in flow.named_inputs}
    return [
        {
            name: {} if index is None else _partition_ranges(checkpoint.offset_range(batch_id, index))
            for name, index in indexes.items()
        }
        for batch_id in checkpoint.committed_batches()
    ]


def _partition_ranges(offsets: tuple[str, str] | None) -> BatchOffsets:
    if offsets is None:
        return {}
    (start,), (end,) = (json.loads(text).values() for text in offsets)
    return {int(partition): (start.get(partition, 0), last) for partition, last in end.items()}


@dataclass
class TargetComparison(Comparison):
    """A comparison of the sinks and the ledgers of flows in a target with what a model expects."""

    spark: SparkSession = field(kw_only=True)
    target: Target = field(kw_only=True)

    def batches(self, flow: Flow) -> list[BatchOffsets]:
        """Return the committed batches of a flow with one input: for each the range of offsets."""
        return [batch[SINGLE_INPUT] for batch in batch_ranges(self.spark, self.target, flow)]

    def add_table(self, path: str, expected: Iterable[Row], format_: str = "delta") -> None:
        """Compare a table of the lake."""
        self.add(f"{format_}:{path}", expected, table_rows(self.spark, format_, self.target.table(path)))

    def add_topic(
        self, topic: str, expected: Iterable[Row], *, repeats_allowed: bool = True, tolerance: Tolerance | None = None
    ) -> None:
        """Compare a topic."""
        rows = topic_rows(self.target, topic)
        self.add(f"kafka:{topic}", expected, rows, repeats_allowed=repeats_allowed, tolerance=tolerance)

    def add_ledgers(self, flow: str, invalid: Sequence[InvalidRecord], late: Sequence[int]) -> None:
        """Compare the quarantine and the late ledger of a flow with invalid records, and late rows per batch."""
        late_rows = [{"batch_id": batch_id} for batch_id, count in enumerate(late) for _ in range(count)]
        self._add_ledgers(flow, [asdict(record) for record in invalid], late_rows, "batch_id")

    def add_ledgers_by_input(
        self, flow: str, invalid: Mapping[str, Sequence[InvalidRecord]], late: Sequence[Row]
    ) -> None:
        """Compare the quarantine and the late ledger of a flow with several inputs.

        `late` has `batch_id`, `input`, `partition` and `offset` of every row that was dropped.
        """
        rows = [{"input": name, **asdict(record)} for name, records in invalid.items() for record in records]
        self._add_ledgers(flow, rows, late, "batch_id", "input", "partition", "offset")

    def _add_ledgers(self, flow: str, invalid: Sequence[Row], late: Sequence[Row], *late_columns: str) -> None:
        by_input = ("input",) if "input" in late_columns else ()
        quarantined = table_rows(self.spark, "delta", quarantine_table(self.target, flow))
        reasons = select_columns(quarantined, *by_input, "partition", "offset", "reason")
        self.add(f"quarantine of {flow}", invalid, reasons)
        dropped = table_rows(self.spark, "delta", late_table(self.target, flow))
        self.add(f"late rows of {flow}", late, select_columns(dropped, *late_columns))


def select_columns(rows: Iterable[Row], *names: str) -> list[Row]:
    """Return the rows with only these columns."""
    return [{name: row[name] for name in names} for row in rows]


def backfill_duration(target: Target, topic: str, settings: DemoSettings) -> timedelta:
    """Return how much history a feed starts with: the gap since an earlier run, or all that the settings ask for.

    An hour that is sent twice would only be late.
    """
    newest = newest_timestamp(target, topic)
    gap = datetime.now(UTC) - newest if newest else settings.backfill
    return max(timedelta(0), min(gap, settings.backfill))


@dataclass(frozen=True)
class ModelVerdict:
    """The comparison of every sink with the model, with a demo's own figures and notes."""

    comparison: Comparison
    figures: Mapping[str, object] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def equal(self) -> bool:
        """Whether no row differs."""
        return self.comparison.equal

    def as_dict(self) -> Mapping[str, object]:
        """Return `rows_out`, `model`, and the demo's own figures."""
        return {"rows_out": self.comparison.rows_of_sinks(), "model": self.comparison.as_dict(), **self.figures}

    def lines(self) -> Sequence[str]:
        """Return the demo's notes, then the number of compared rows, or the first differences."""
        if self.equal:
            rows = sum(self.comparison.rows.values())
            return [*self.notes, f"Equal to the model: {rows:,} rows of every sink, late and invalid rows included."]
        first = [f"  {difference}" for difference in self.comparison.differences[:_MAX_DIFFERENCES_SHOWN]]
        return [*self.notes, f"{len(self.comparison.differences)} differences from the model:", *first]


# One per core of a small machine.
PARTITIONS = 2


class PatternSettings(Protocol):
    """The settings of a pattern's flows."""

    @property
    def topics(self) -> Sequence[str]:
        """Every topic of the pattern; the first one is for generated records that name no topic."""


class PatternGenerator(Protocol):
    """The generator of a pattern's records."""

    def with_traffic(self, *, rate: float, late: float, duplicates: float, malformed: float, seed: int) -> Generator:
        """Return it with this traffic."""


@dataclass(frozen=True)
class RecordsDemo(ABC):
    """A demo of generated records. A demo adds its title, its pattern and `compare`.

    | field         | meaning                                                                                     |
    |---------------|---------------------------------------------------------------------------------------------|
    | settings      | the settings of the flows                                                                   |
    | pattern_flows | returns the flows for these settings                                                        |
    | generator     | returns the generator for these settings, with the topics of the flows                      |
    | late_share    | the share of late records                                                                   |
    """

    settings: PatternSettings
    pattern_flows: Callable[[Any], list[Flow]]
    generator: Callable[[Any], PatternGenerator]
    late_share: float = 0.02
    title: str = ""
    parts: tuple[str, ...] = ("kafka",)
    has_page: bool = False
    spark: Mapping[str, str] = field(default_factory=dict)

    def flows(self) -> Sequence[Flow]:
        """Return the flows of the pattern."""
        return self.pattern_flows(self.settings)

    def traffic(self, settings: DemoSettings) -> Generator:
        """Return the generator of live records."""
        shares = {"late": self.late_share, "duplicates": 0.01, "malformed": 0.005}
        return self.generator(self.settings).with_traffic(rate=settings.rate, seed=settings.seed, **shares)

    @abstractmethod
    def compare(self, context: DemoContext, spark: SparkSession) -> ModelVerdict:
        """Compare every row of every sink with the model."""

    def prepare(self, context: DemoContext) -> None:
        """Create the topics."""
        create_topics(context.target.kafka, dict.fromkeys(self.settings.topics, PARTITIONS))

    def feed(self, context: DemoContext, stop: Event) -> SendResult:
        """Send the recent past immediately, then live records, some of them late, repeated or malformed."""
        topic = self.settings.topics[0]
        backfill = backfill_duration(context.target, topic, context.settings)
        return generate(self.traffic(context.settings), context.target, topic=topic, backfill=backfill, stop=stop)

    def status(self, context: DemoContext, spark: SparkSession) -> Sequence[str]:
        """Return nothing."""
        return ()

    def awaited_offsets(self, context: DemoContext) -> Mapping[str, Mapping[Partition, int]]:
        """Return each flow without offsets: once it has read something, the model can replay it."""
        return {flow.name: {} for flow in self.flows()}
