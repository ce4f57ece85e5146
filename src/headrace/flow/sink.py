"""What a sink has to do for the runtime, and what it is told about a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.errors import HeadraceError
    from headrace.flow.target import Target


@dataclass(frozen=True)
class SetAside:
    """Rows of a batch that a sink could not deliver and has kept: how many, why, and where they are now."""

    sink: str
    rows: int
    why: str
    place: str


def _unheard(_said: SetAside) -> None:
    """Stand in where nobody listens."""


@dataclass(frozen=True)
class Batch:
    """One attempt to write one micro-batch.

    `query_id` comes from the checkpoint's metadata. A new checkpoint is a new query id, so a writer keyed
    by `app_id` never mistakes batch 0 of a new checkpoint for batch 0 of the old one.

    | field   | meaning                                                                                                |
    |---------|--------------------------------------------------------------------------------------------------------|
    | step    | which sink of a fan-out writes                                                                         |
    | offsets | the sha256 of the batch's entry in the offset log: two attempts that differ in it read different rows  |
    | fence   | the token of the lease under which the attempt runs; a later driver has a higher one                   |
    | mode    | the output mode of the flow: in complete mode the rows are the whole result                            |
    | tell    | says to whoever watches the flow that rows were set aside                                              |
    """

    flow: str
    query_id: str
    id: int
    target: Target
    step: str = "0"
    offsets: str = ""
    fence: int = 0
    mode: OutputMode = OutputMode.APPEND
    tell: Callable[[SetAside], None] = field(default=_unheard, compare=False, repr=False)

    @property
    def app_id(self) -> str:
        """The identity under which an exactly-once sink records that this batch is in."""
        return f"{self.query_id}:{self.flow}:{self.step}"

    def __getstate__(self) -> dict[str, object]:
        # A task on an executor gets the batch, and not those who listen on the driver.
        return {**vars(self), "tell": _unheard}


@dataclass(frozen=True)
class Held:
    """What one place holds of one flow: the account that a checkpoint is compared with before the flow runs.

    | field    | meaning                                                                                            |
    |----------|----------------------------------------------------------------------------------------------------|
    | place    | the place as a message names it, such as `the Delta table /lake/gold/drivers`                      |
    | identity | told apart from a place of the same name that was deleted and made again; None when it is not there |
    | last     | the last batch that is in, per query id                                                            |
    """

    place: str
    identity: str | None
    last: Mapping[str, int]


@runtime_checkable
class Accountable(Protocol):
    """A sink that can say which batches it holds. Every exactly-once sink can."""

    def held(self, spark: SparkSession, flow: str, step: str, target: Target) -> Held:
        """Return what the sink holds of a flow. Changes nothing; called before a query starts, and by tools."""
        ...


@runtime_checkable
class IntoTopic(Protocol):
    """A sink whose rows end in a topic of Kafka."""

    @property
    def topic(self) -> str:
        """The name of the topic."""
        ...


@runtime_checkable
class InFolder(Protocol):
    """A sink that commits by renaming files in a folder: on a local disk one process may write it."""

    def folder(self, target: Target) -> str:
        """Return the full location of the folder."""
        ...


@runtime_checkable
class Waiting(Protocol):
    """A sink in which rows wait for something that comes by another way than the flow's inputs."""

    def is_due(self, session: SparkSession, target: Target) -> bool:
        """Whether a batch would do something for them even if it brought no rows.

        Changes nothing. Called between batches while an input whose watermark has an `idle` is quiet, on the thread of
        Spark's listener: a batch may be under way. After a yes the runtime makes a batch without rows.
        """
        ...


class SinkWatch(Protocol):
    """Watches what fills the topics behind a sink, for one run of a flow."""

    def begin(self) -> None:
        """Look once. Called before the query starts; raises where changes are lost."""
        ...

    def start(self, end: Callable[[HeadraceError], None]) -> None:
        """Keep looking, on a thread of its own; `end` is called there, once, when changes are lost."""
        ...

    def close(self) -> None:
        """Stop looking. Returns at once: a look under way has no effect any more."""
        ...


@runtime_checkable
class WatchesCapture(Protocol):
    """A sink for the changes of a captured database, which can fail while its topics just seem quiet."""

    def watch_capture(self, flow: str, target: Target, hear: Callable[[str, HeadraceError], None]) -> SinkWatch:
        """Return the watch of the capture. `hear` gets the capture's name and each trouble that loses nothing."""
        ...


@dataclass(frozen=True)
class NativeWrite:
    """How Spark writes rows by itself: the rows in the form that the format wants, its name and its options."""

    rows: DataFrame
    format: str
    options: Mapping[str, str] = field(repr=False)


@runtime_checkable
class Native(Protocol):
    """A sink that Spark can also write by itself, row by row, for the triggers that have no batches."""

    def native(self, rows: DataFrame, target: Target) -> NativeWrite:
        """Return how the rows are written. Called once per start of a flow; writes nothing."""
        ...


@runtime_checkable
class Sink(Protocol):
    """Where the rows of each batch go.

    `write` is called once per attempt, on the driver, never concurrently for one flow. An attempt may follow
    one that died half-way, with the same batch id and the same rows: the guarantee says what then happens.
    It consumes `rows` exactly once: a second action would run the batch, and its state, again.
    """

    @property
    def guarantee(self) -> Guarantee:
        """The promise; an attribute of the class for every sink but those that wrap others."""
        ...

    @property
    def output_modes(self) -> frozenset[OutputMode]:
        """The modes that the sink can take."""
        ...

    @property
    def name(self) -> str:
        """A short name for messages and figures, such as `delta:gold/driver_metrics`."""
        ...

    def preflight(self, target: Target) -> None:
        """Prove that the sink can be written. Called once, before Spark starts; raises a HeadraceError."""
        ...

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Make what the first write needs. Called once per start of a flow, before the query."""
        ...

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write all rows of the batch. Returns only when they are durable."""
        ...


def leaves(sink: Sink, step: str = "0") -> Iterator[tuple[str, Sink]]:
    """Yield the sinks that rows end in, each with its step: a fan-out's `sinks` in order, a condition's `sink`."""
    within: tuple[Sink, ...] = getattr(sink, "sinks", ())
    behind: Sink | None = getattr(sink, "sink", None)
    for number, each in enumerate(within):
        yield from leaves(each, f"{step}.{number}")
    if behind is not None:
        yield from leaves(behind, step)
    elif not within:
        yield step, sink
