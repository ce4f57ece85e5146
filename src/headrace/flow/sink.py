"""The contract of a sink, what it knows about a batch, and the capabilities that it declares by inheritance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import DataFrame, SparkSession

from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.run_cache import RunCache

if TYPE_CHECKING:
    from headrace.errors import HeadraceError
    from headrace.flow.target import Target


@dataclass(frozen=True)
class DeadLetters:
    """Rows of a batch that a sink could not deliver and has stored elsewhere: how many, why, and where."""

    sink: str
    rows: int
    why: str
    place: str


def _ignore(_dead_letters: DeadLetters) -> None:
    """Do nothing: the default callback."""


@dataclass(frozen=True)
class Batch:
    """One attempt to write one micro-batch.

    `query_id` comes from the checkpoint's metadata. A new checkpoint is a new query id, so a writer keyed
    by `app_id` never mistakes batch 0 of a new checkpoint for batch 0 of the old one.

    | field   | meaning                                                                                                |
    |---------|--------------------------------------------------------------------------------------------------------|
    | step    | which sink of a fan-out writes                                                                         |
    | offsets | the sha256 of the batch's entry in the offset log: two attempts that differ in it read different rows  |
    | fence   | the fencing token of the lease; a later driver has a higher one                                        |
    | mode    | the output mode of the flow: in complete mode the rows are the complete result                         |
    | on_dead_letters | callback for rows that the sink could not deliver and has stored elsewhere                     |
    | cache   | what sinks remember from batch to batch of this run                                                    |
    """

    flow: str
    query_id: str
    id: int
    target: Target
    step: str = "0"
    offsets: str = ""
    fence: int = 0
    mode: OutputMode = OutputMode.APPEND
    on_dead_letters: Callable[[DeadLetters], None] = field(default=_ignore, compare=False, repr=False)
    cache: RunCache = field(default_factory=RunCache, compare=False, repr=False)

    @property
    def app_id(self) -> str:
        """The key under which an exactly-once sink records that it has committed this batch."""
        return f"{self.query_id}:{self.flow}:{self.step}"

    def __getstate__(self) -> dict[str, object]:
        # A task on an executor gets the batch without the driver's callback and cache.
        return {**vars(self), "on_dead_letters": _ignore, "cache": RunCache()}


@dataclass(frozen=True)
class CommittedBatches:
    """The batches of one flow that a sink has committed. They are compared with the checkpoint before the flow starts.

    | field    | meaning                                                                                            |
    |----------|----------------------------------------------------------------------------------------------------|
    | place    | the table, topic or folder as a message names it, such as `the Delta table /lake/gold/drivers`     |
    | identity | changes when the table, topic or folder is deleted and created again; None if it does not exist     |
    | last     | the last committed batch, per query id                                                             |
    """

    place: str
    identity: str | None
    last: Mapping[str, int]


class TracksBatches(ABC):
    """A sink that records which batches it has committed. Every exactly-once sink does."""

    @abstractmethod
    def committed_batches(self, spark: SparkSession, flow: str, step: str, target: Target) -> CommittedBatches:
        """Return the committed batches of a flow. Read-only; called before a query starts, and by tools."""


class WritesTopic(ABC):
    """A sink that writes to a Kafka topic."""

    @abstractmethod
    def written_topic(self) -> str:
        """Return the name of the topic."""


class WritesFolder(ABC):
    """A sink that commits by renaming files in a folder. On a local disk only one process may write to it."""

    @abstractmethod
    def folder(self, target: Target) -> str:
        """Return the full location of the folder."""


class HasPendingRows(ABC):
    """A sink that stores pending rows until data arrives that is not an input of the flow."""

    @abstractmethod
    def is_due(self, session: SparkSession, target: Target, cache: RunCache) -> bool:
        """Whether a batch without new rows would release pending rows.

        Read-only. Called between batches while an input with an `idle_timeout` is idle, on the thread of Spark's
        listener: a batch may be in flight. If it returns True, the runtime starts a batch without rows.
        """


class CaptureWatch(Protocol):
    """Watches the capture that fills the topics of a sink, for one run of a flow."""

    def check(self) -> None:
        """Check once. Called before the query starts; raises if changes are lost."""

    def start(self, on_gap: Callable[[HeadraceError], None]) -> None:
        """Check regularly on a separate thread, which calls `on_gap` once if changes are lost."""

    def stop(self) -> None:
        """Stop checking. Returns immediately; a check in progress has no effect."""


class WatchesCapture(ABC):
    """A sink for changes of a captured database. The capture can fail while its topics only seem idle."""

    @abstractmethod
    def watch_capture(
        self, flow: str, target: Target, on_problem: Callable[[str, HeadraceError], None]
    ) -> CaptureWatch:
        """Return the watch. It calls `on_problem` with the capture's name and each problem that loses no changes."""


@dataclass(frozen=True)
class NativeWrite:
    """The arguments of Spark's own writer: rows in the layout of the format, the format and its options."""

    rows: DataFrame
    format: str
    options: Mapping[str, str] = field(repr=False)


class SupportsNativeWrite(ABC):
    """A sink that Spark's own writer can also write to, row by row, for triggers without micro-batches."""

    @abstractmethod
    def native_write(self, rows: DataFrame, target: Target) -> NativeWrite:
        """Return the arguments for Spark's writer. Called once per start of a flow; writes nothing."""


class Sink(Protocol):
    """The destination of the rows of each batch.

    `write` is called once per attempt, on the driver, never concurrently for one flow. An attempt may follow
    one that failed half-way, with the same batch id and the same rows: the guarantee states the result.
    It consumes `rows` exactly once: a second action would compute the batch, and its state, again.
    """

    @property
    def guarantee(self) -> Guarantee:
        """The delivery guarantee; a class attribute except for sinks that wrap other sinks."""

    @property
    def output_modes(self) -> frozenset[OutputMode]:
        """The output modes that the sink supports."""

    @property
    def name(self) -> str:
        """A short name for messages and metrics, such as `delta:gold/driver_metrics`."""

    def preflight(self, target: Target) -> None:
        """Verify that the sink can be written. Called once, before Spark starts; raises a HeadraceError."""

    def prepare(self, spark: SparkSession, target: Target, cache: RunCache) -> None:
        """Create what the first write needs, or load it. Called once per start of a flow, before the query."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write all rows of the batch. Returns only when they are durable."""


class BaseSink:
    """The base of a sink that has nothing to check, or nothing to create, before a start."""

    def preflight(self, target: Target) -> None:
        """Do nothing: there is nothing to check."""

    def prepare(self, spark: SparkSession, target: Target, cache: RunCache) -> None:
        """Do nothing: the first batch creates what it needs."""


class ForwardingSink:
    """The base of a sink that differs from another one in how it writes only."""

    sink: Sink

    @property
    def name(self) -> str:
        """The name of the other sink."""
        return self.sink.name

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the other sink."""
        return self.sink.guarantee

    @property
    def output_modes(self) -> frozenset[OutputMode]:
        """The output modes of the other sink."""
        return self.sink.output_modes

    def preflight(self, target: Target) -> None:
        """Check the other sink."""
        self.sink.preflight(target)

    def prepare(self, spark: SparkSession, target: Target, cache: RunCache) -> None:
        """Prepare the other sink."""
        self.sink.prepare(spark, target, cache)


class WrapsSinks(ABC):
    """A sink that passes its rows to other sinks, and stores none."""

    @abstractmethod
    def wrapped_sinks(self, step: str) -> Iterable[tuple[str, Sink]]:
        """Return the inner sinks in the order in which they are written, each with its step below `step`."""


def leaf_sinks(sink: Sink, step: str = "0") -> Iterator[tuple[str, Sink]]:
    """Yield the sinks that store rows, with their steps: a sink that wraps others is replaced by them."""
    if not isinstance(sink, WrapsSinks):
        yield step, sink
        return
    for inner_step, inner in sink.wrapped_sinks(step):
        yield from leaf_sinks(inner, inner_step)
