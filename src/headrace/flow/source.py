"""What a source has to do for the runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from headrace.flow.duration import Duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.flow.target import Target


@runtime_checkable
class Source(Protocol):
    """Rows from outside, as a stream and, for audits and replays, as an exact range of it.

    A source is a frozen value. It opens nothing before one of its methods is called.
    """

    @property
    def name(self) -> str:
        """A short name for messages, such as `kafka:ride-events`."""
        ...

    @property
    def carries_payload(self) -> bool:
        """Whether rows arrive as bytes in a `value` column that a schema has to be applied to."""
        ...

    def preflight(self, target: Target) -> None:
        """Prove that the source can be read. Called once, before Spark starts; raises a HeadraceError."""
        ...

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the endless frame. Called once per start of a flow."""
        ...

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Return exactly the rows between two offsets of the checkpoint's log, `end` excluded.

        Called by the auditor and by replays, never on the path of a batch. `start` and `end` are the
        JSON that Spark wrote into the offset log for this source.
        """
        ...


@dataclass(frozen=True)
class Gone:
    """Offsets of one partition that a flow can no longer read: from `first` to before `end`.

    Without an end nobody can say how far they went: the partition itself is gone, or was set back.
    """

    topic: str
    partition: int
    first: int
    end: int | None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.first}, {'end unknown' if self.end is None else self.end})"


class Watch(Protocol):
    """One source under watch while a flow reads it, over a connection that is kept. Used by one thread at a time.

    Every method asks anew and changes nothing. A part that does not answer is a PartUnavailable.
    """

    def identities(self) -> Mapping[str, str]:
        """Return the id of every topic that the source reads now, without those that are not there."""
        ...

    def gone(self, start: str, end: str) -> tuple[Gone, ...]:
        """Return what is not there any more of a range between two offsets of the checkpoint's log."""
        ...

    def rest(self, topic: str, start: str) -> tuple[Gone, ...]:
        """Return everything of a topic from an offset of the checkpoint's log on."""
        ...

    def passed_over(self, topic: str, start: str, end: str) -> tuple[Gone, ...]:
        """Return what is never read of a topic that was made again, when a flow goes on in it at its old offsets."""
        ...


@runtime_checkable
class Watched(Protocol):
    """A source whose rows can be gone before they are read, or be replaced by others under the same name.

    The runtime watches it: before the query starts, before each batch is written, and where loss is accepted after it.
    """

    @property
    def name(self) -> str:
        """The name of the source, as messages say it."""
        ...

    @property
    def data_loss_reason(self) -> str | None:
        """Why the flow may go on without rows that are gone, in words; None stops it."""
        ...

    @property
    def accepted_topic_ids(self) -> tuple[str, ...]:
        """The ids of topics that were made again and may be read in place of those that the checkpoint is about."""
        ...

    def watch(self, target: Target) -> Watch:
        """Return the watch. Called once per start of a flow, on the thread that starts it."""
        ...


@runtime_checkable
class Positioned(Protocol):
    """A source whose declaration says where a flow begins that has no checkpoint yet."""

    def require_start(self, target: Target) -> None:
        """Prove that the flow can begin there. Called before a flow without a checkpoint; raises a HeadraceError."""
        ...


@runtime_checkable
class Begun(Protocol):
    """A source whose declaration says where a flow began, when its checkpoint does not."""

    def beginning(self, end: str) -> str | None:
        """Return the offset that a flow began at, given any later one of the offset log, or None when nobody knows."""
        ...


@runtime_checkable
class ReadOnce(Protocol):
    """A source that can never give rows of an old batch again."""

    @property
    def read_once(self) -> str:
        """Why it cannot, as one sentence."""
        ...


@runtime_checkable
class OfTopics(Protocol):
    """A source of topics."""

    def reads(self, topic: str) -> bool:
        """Whether rows of the topic arrive, or would if it were there. Asks nobody."""
        ...


@runtime_checkable
class OfFiles(Protocol):
    """A source whose offsets only count: which files it read is in a log of its own in the checkpoint."""

    def rows_of(self, spark: SparkSession, target: Target, paths: Sequence[str]) -> DataFrame:
        """Return the rows of files that a flow has read. Called by the auditor; raises when one of them is gone."""
        ...


@runtime_checkable
class Unbatched(Protocol):
    """A source that can also be read row by row, for the triggers that have no batches."""

    def unbatched(self, start: str | None = None) -> Source:
        """Return the same source without bounds of a batch; with `start` it begins at these offsets.

        `start` is JSON as Spark writes it into the offset log. Called once per start of a flow.
        """
        ...

    def begins(self, target: Target) -> str:
        """Return where a flow without a checkpoint would begin now, as offsets of the offset log. Asks the broker."""
        ...

    def ends(self, target: Target) -> str:
        """Return where the rows that are there now end, as offsets of the offset log. Asks the broker."""
        ...

    def tasks(self, target: Target) -> int:
        """Return how many partitions are read, each of which holds a task slot. Asks the broker."""
        ...


@dataclass(frozen=True)
class AutoBatchSize:
    """Let a bound fit the machine: as many records as memory holds and as are done within the freshness target.

    `freshness` is how old results may become while the flow catches up: no batch should take longer.
    """

    freshness: str = "1 minute"

    def __post_init__(self) -> None:
        Duration.parse(self.freshness)

    @property
    def duration(self) -> Duration:
        """The freshness target as a length of time."""
        return Duration.parse(self.freshness)


@dataclass(frozen=True)
class Bound:
    """A field of a source that bounds a batch.

    | field | meaning                                              |
    |-------|------------------------------------------------------|
    | name  | the field, such as `max_offsets_per_trigger`         |
    | unit  | what it counts: records, files or bytes              |
    | value | what it is set to, `AutoBatchSize` by the machine, or None     |
    | usual | what to set it to where nothing is known             |
    """

    name: str
    unit: str
    value: int | AutoBatchSize | None
    usual: int


@runtime_checkable
class Bounded(Protocol):
    """A source that could read everything that is there in one batch, and so needs one of its bounds to be set."""

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The fields that bound a batch; the first one is suggested where nothing is known."""
        ...

    def arrivals(self, target: Target) -> Mapping[str, float]:
        """Return what arrived lately in numbers per second, by unit; empty where it cannot be said within seconds.

        Called by `headrace check`, from a thread of its own. Never raises and changes nothing.
        """
        ...


@runtime_checkable
class Fitting(Protocol):
    """A source whose bound can be left to the machine. It is fitted once per run of an application."""

    @property
    def fit(self) -> AutoBatchSize | None:
        """How the bound is to fit, or None when it is a number."""
        ...

    def record_bytes(self, target: Target) -> float | None:
        """Return the mean size of the newest records, or None when it cannot be said within seconds. Never raises."""
        ...

    def bounded(self, records: int) -> Source:
        """Return the same source with a number for its bound."""
        ...
