"""The contract of a source, and the capabilities that a source declares by inheriting from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from pyspark.sql import DataFrame, SparkSession

from headrace.flow.duration import HasDuration

if TYPE_CHECKING:
    from headrace.flow.target import Target


class Source(Protocol):
    """A source of rows: as a stream and, for audits and replays, as an exact offset range.

    A source is a frozen value. It opens no connection before a method is called.
    """

    @property
    def name(self) -> str:
        """A short name for messages, such as `kafka:ride-events`."""

    @property
    def carries_payload(self) -> bool:
        """Whether rows arrive as bytes in a `value` column that needs a schema."""

    def preflight(self, target: Target) -> None:
        """Verify that the source can be read. Called once, before Spark starts; raises a HeadraceError."""

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the streaming DataFrame. Called once per start of a flow."""

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Return exactly the rows between two offsets of the offset log, `end` excluded.

        Called by the auditor and by replays, never while a batch is written. `start` and `end` are the
        JSON that Spark wrote into the offset log for this source.
        """


@dataclass(frozen=True)
class MissingOffsets:
    """Offsets of one partition that a flow can no longer read: from `first` to before `end`.

    `end` is None if the end is unknown: the partition was deleted, or its end offset went backwards.
    """

    topic: str
    partition: int
    first: int
    end: int | None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.first}, {'end unknown' if self.end is None else self.end})"


class SourceMonitor(Protocol):
    """Watches one source for lost rows while a flow reads it, over one connection. Used by one thread at a time.

    Every method queries the broker and changes nothing. Raises ServiceUnavailable if the broker does not answer.
    """

    def topic_ids(self) -> Mapping[str, str]:
        """Return the topic id of every existing topic that the source reads now."""

    def missing_offsets(self, start: str, end: str) -> tuple[MissingOffsets, ...]:
        """Return the offsets of a range of the offset log that no longer exist."""

    def remaining_offsets(self, topic: str, start: str) -> tuple[MissingOffsets, ...]:
        """Return all offsets of a topic from an offset of the offset log on."""

    def skipped_offsets(self, topic: str, start: str, end: str) -> tuple[MissingOffsets, ...]:
        """Return the offsets of a recreated topic that a flow skips if it continues at the old offsets."""


class CanLoseRows(ABC):
    """A source whose rows can be deleted before they are read, or whose topics can be recreated.

    The runtime checks it before the query starts, before each batch is written and, if loss is accepted, after it.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the source in messages."""

    @property
    @abstractmethod
    def data_loss_reason(self) -> str | None:
        """Why the flow may continue without lost rows; None stops it."""

    @property
    @abstractmethod
    def accepted_topic_ids(self) -> tuple[str, ...]:
        """The ids of recreated topics that may be read in place of the topics of the checkpoint."""

    @abstractmethod
    def watch(self, target: Target) -> SourceMonitor:
        """Return the watch. Called once per start of a flow, on the thread that starts it."""


class ValidatesStart(ABC):
    """A source that declares a start position for flows without a checkpoint, and can verify it."""

    @abstractmethod
    def require_start(self, target: Target) -> None:
        """Verify that the flow can start there. Called for a flow without a checkpoint; raises a HeadraceError."""


class HasStartOffset(ABC):
    """A source that knows the start offset of a flow if the checkpoint does not."""

    @abstractmethod
    def start_offset(self, end: str) -> str | None:
        """Return the offset at which a flow started, from any later entry of the offset log; None if unknown."""


class NotReplayable(ABC):
    """A source that cannot read the rows of an earlier batch again."""

    @property
    @abstractmethod
    def not_replayable_reason(self) -> str:
        """The reason, as one sentence."""


class ReadsTopics(ABC):
    """A source that reads Kafka topics."""

    @abstractmethod
    def reads(self, topic: str) -> bool:
        """Whether the source reads the topic, or would if it existed. Makes no request."""


class ReadsFiles(ABC):
    """A source of files. Its offsets are counters; the files are in the source's own log in the checkpoint."""

    @abstractmethod
    def read_files(self, spark: SparkSession, target: Target, paths: Sequence[str]) -> DataFrame:
        """Return the rows of files that a flow has read. Called by the auditor; raises if a file is missing."""


class ReadsFolder(ABC):
    """A source that reads a Delta table or a folder of files."""

    @abstractmethod
    def location(self, target: Target) -> str:
        """Return the full location of the table or folder. Called by `headrace erase`; reads nothing."""


class SupportsContinuous(ABC):
    """A source that can also be read row by row, for triggers without micro-batches."""

    @abstractmethod
    def for_continuous(self, start: str | None = None) -> Source:
        """Return the source without batch bounds; with `start` it starts at these offsets.

        `start` is JSON as Spark writes it into the offset log. Called once per start of a flow.
        """

    @abstractmethod
    def initial_offsets(self, target: Target) -> str:
        """Return the offsets at which a flow without a checkpoint would start now. Asks the broker."""

    @abstractmethod
    def latest_offsets(self, target: Target) -> str:
        """Return the current end offsets, as in the offset log. Asks the broker."""

    @abstractmethod
    def partition_count(self, target: Target) -> int:
        """Return how many partitions are read. Each occupies a task slot. Asks the broker."""


@dataclass(frozen=True)
class AutoBatchSize(HasDuration):
    """A batch size that Headrace chooses when the flow starts, from memory and a freshness target.

    `freshness` is the longest that a batch should take while the flow catches up.
    """

    freshness: str = "1 minute"
    duration_field: ClassVar[str] = "freshness"


@dataclass(frozen=True)
class Bound:
    """A field of a source that limits the size of a batch.

    | field | meaning                                              |
    |-------|------------------------------------------------------|
    | name  | the field, such as `max_offsets_per_trigger`         |
    | unit  | what it counts: records, files or bytes              |
    | value | its value, `AutoBatchSize`, or None                  |
    | usual | the value to suggest without measurements            |
    """

    name: str
    unit: str
    value: int | AutoBatchSize | None
    usual: int


class Bounded(ABC):
    """A source that would read everything in one batch unless one of its bounds is set."""

    @property
    @abstractmethod
    def bounds(self) -> tuple[Bound, ...]:
        """The fields that limit a batch; the first one is suggested by default."""

    @abstractmethod
    def arrival_rates(self, target: Target) -> Mapping[str, float]:
        """Return the recent arrival rate per second, by unit; empty if it cannot be measured within seconds.

        Called by `headrace check`, on a separate thread. Never raises and changes nothing.
        """


class HasAutoBatchSize(ABC):
    """A source that supports `AutoBatchSize`. The size is chosen once per run of an application."""

    @property
    @abstractmethod
    def auto_batch_size(self) -> AutoBatchSize | None:
        """The declared `AutoBatchSize`, or None if the bound is a number."""

    @abstractmethod
    def record_bytes(self, target: Target) -> float | None:
        """Return the mean size of the newest records; None if it cannot be measured within seconds. Never raises."""

    @abstractmethod
    def with_batch_size(self, records: int) -> Source:
        """Return the source with this number of records as its bound."""
