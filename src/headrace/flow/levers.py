"""The settings that decide how a flow runs: trigger, watermark, state store and output mode, as frozen values.

| lever       | values                                                          | decides                          |
|-------------|-----------------------------------------------------------------|----------------------------------|
| Trigger     | Every, AvailableNow, AsFastAsPossible, Continuous, RealTime     | freshness against cost per batch |
| Watermark   | Watermark(column, delay)                                        | when a row is too late           |
| State       | InMemory, RocksDB                                               | where state is stored            |
| OutputMode  | append, update, complete                                        | which rows a batch writes        |

Durations are strings such as `10 minutes`. They are parsed when the value is created, so a typo fails at its own line.
"""

import warnings
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from headrace.errors import FlowError
from headrace.flow.duration import Duration, HasDuration
from headrace.flow.size import Size

# With less, the write buffers of a few stores use all of it and every read goes to the disk.
_MIN_MEMORY = Size.parse("16 MB")


@dataclass(frozen=True)
class Every(HasDuration):
    """Start a batch at this interval. A batch that takes longer delays the next one; none is skipped."""

    interval: str
    duration_field: ClassVar[str] = "interval"


@dataclass(frozen=True)
class AvailableNow:
    """Read everything that is available at the start, in bounded batches, then stop."""


@dataclass(frozen=True)
class Once(AvailableNow):
    """The old name of AvailableNow, which it is treated as. Spark's own `once` reads everything in a single batch."""

    def __post_init__(self) -> None:
        # Points past the generated __init__, to the line that declares the flow.
        warnings.warn(
            "Once is deprecated: write AvailableNow(), which does the same.", DeprecationWarning, stacklevel=3
        )


@dataclass(frozen=True)
class AsFastAsPossible:
    """Start the next batch when the last one is committed."""


@dataclass(frozen=True)
class Continuous(HasDuration):
    """Spark's continuous processing: columns and filters only, Kafka to Kafka, at-least-once.

    Latency is milliseconds. Progress is committed at every interval; after a crash the rows since then are sent again.
    Each source partition occupies a task slot while the flow runs.

    With `until_done` the flow ends after sending everything that was available at its start.
    """

    checkpoint_interval: str = "1 second"
    until_done: bool = False
    duration_field: ClassVar[str] = "checkpoint_interval"


@dataclass(frozen=True)
class RealTime(HasDuration):
    """Spark's real-time mode: without state and without Python, Kafka to Kafka, in update mode, at-least-once.

    Latency is milliseconds. Progress is committed when a batch of this length ends (at least five seconds); after a
    crash the rows of the batch are sent again. Each source partition occupies a task slot while the flow runs.
    """

    batch: str = "1 minute"
    duration_field: ClassVar[str] = "batch"


Trigger = Every | AvailableNow | AsFastAsPossible | Continuous | RealTime


@dataclass(frozen=True)
class Watermark:
    """How late a row may be, in event time behind the newest row.

    `max_future` limits event times in the future: a row whose event time is later than the broker's
    timestamp by more than this is quarantined. Without the limit one row from the year 2099 would move
    the watermark there, and every row after it would be dropped as late. For a source without broker
    timestamps the limit is relative to the time of the batch.

    `idle_timeout` closes the last windows of an idle input: when everything was read and no row has
    arrived for this long, event time follows the clock, this far behind it. A row after a pause is late
    when it is older than `idle_timeout` and `delay` together. None waits for the next row.
    """

    column: str
    delay: str
    max_future: str = "1 hour"
    idle_timeout: str | None = None

    def __post_init__(self) -> None:
        Duration.parse(self.delay)
        Duration.parse(self.max_future)
        if self.idle_timeout is not None and not Duration.parse(self.idle_timeout).ms:
            raise FlowError(
                f"Watermark on '{self.column}' has an idle_timeout of zero.",
                why="Every gap between two rows would count as idle and move event time to the clock.",
                remedy="Set idle_timeout to more than the usual gap between two rows, such as '5 minutes'.",
                code="HR-225",
            )

    @property
    def duration(self) -> Duration:
        """The delay as a `Duration`."""
        return Duration.parse(self.delay)

    @property
    def max_future_duration(self) -> Duration:
        """`max_future` as a `Duration`."""
        return Duration.parse(self.max_future)

    @property
    def idle_timeout_duration(self) -> Duration | None:
        """`idle_timeout` as a `Duration`, or None."""
        return None if self.idle_timeout is None else Duration.parse(self.idle_timeout)


@dataclass(frozen=True)
class StateBudget:
    """The limit on the state of a flow, over all of its stateful operators. Set at least one of the two fields.

    | field | example     | counts                                                                                 |
    |-------|-------------|----------------------------------------------------------------------------------------|
    | rows  | 5_000_000   | rows in the state stores: open windows and groups, keys of deduplication, buffered rows |
    |       |             | of joins                                                                                |
    | bytes | "2 GB"      | InMemory: the heap that the stores use. RocksDB: their SST files on the executors'      |
    |       |             | disks; RocksDB memory has its own limit                                                 |

    The runtime warns at four fifths of the limit, or when the current growth reaches it within an hour. A batch that
    exceeds the budget is committed, then the flow stops. It does not start again until the budget is raised.
    """

    rows: int | None = None
    bytes: str | None = None

    def __post_init__(self) -> None:
        if self.bytes is not None:
            Size.parse(self.bytes)
        if (self.rows is None and self.bytes is None) or (self.rows is not None and self.rows < 1):
            raise FlowError(
                "A state budget has no limit.",
                why="It needs a number of rows above zero, a size, or both.",
                remedy="Write it like StateBudget(rows=5_000_000) or StateBudget(bytes='2 GB').",
                code="HR-224",
            )

    @property
    def limits(self) -> dict[str, int]:
        """The limits that are set, by measure: `rows`, `bytes`."""
        limits = {} if self.rows is None else {"rows": self.rows}
        return limits if self.bytes is None else limits | {"bytes": Size.parse(self.bytes).bytes}


@dataclass(frozen=True)
class InMemory:
    """State on the heap of the executors. Right for thousands of keys, wrong for millions."""

    shuffle_partitions: int | None = None
    budget: StateBudget | None = None


@dataclass(frozen=True)
class RocksDB:
    """State in RocksDB on the disks of the executors, its changes uploaded with each batch.

    | field              | meaning                                                                             |
    |--------------------|-------------------------------------------------------------------------------------|
    | shuffle_partitions | pinned in the checkpoint by the first batch. None: one per core that the flow can    |
    |                    | use, instead of Spark's 200                                                         |
    | memory             | the most memory of RocksDB on an executor, such as `512 MB`, shared by all stores   |
    |                    | of all flows there. None: a quarter of the machine, on a cluster half of the         |
    |                    | executors' memory overhead                                                          |
    | budget             | limit on the size of the state                                                      |
    """

    shuffle_partitions: int | None = None
    memory: str | None = None
    budget: StateBudget | None = None

    def __post_init__(self) -> None:
        if self.memory is not None and Size.parse(self.memory) < _MIN_MEMORY:
            raise FlowError(
                f"RocksDB memory is set to {self.memory}.",
                why=f"It needs {_MIN_MEMORY} at least; with less every read goes to the disk.",
                remedy="Set memory to more, such as '512 MB', or leave it out.",
                code="HR-226",
            )


State = InMemory | RocksDB


class OutputMode(StrEnum):
    """Which rows of the result a batch writes to the sink."""

    APPEND = "append"
    """Rows that can no longer change. With windows: after the watermark has passed their end."""
    UPDATE = "update"
    """Rows that changed in this batch, with their new values."""
    COMPLETE = "complete"
    """The complete result, every batch."""
