"""The levers that decide whether a flow is correct, cheap and safe to restart, each a frozen value.

| lever       | values                                                          | decides                          |
|-------------|-----------------------------------------------------------------|----------------------------------|
| Trigger     | Every, AvailableNow, AsFastAsPossible, Continuous, RealTime     | freshness against cost per batch |
| Watermark   | Watermark(column, delay)                                        | when a row is too late           |
| State       | InMemory, RocksDB                                               | where open windows live          |
| OutputMode  | append, update, complete                                        | which rows a batch hands on      |

Times are texts such as `10 minutes`; they are read when the value is made, so a typo fails at the line
that holds it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from enum import StrEnum

from headrace.errors import FlowError
from headrace.flow.duration import Duration
from headrace.flow.size import Size
from headrace.flow.state_budget import StateBudget

# Less would be spent on the write buffers of a handful of stores alone, and every read would go to the disk.
_LEAST_MEMORY = Size.parse("16 MB")


@dataclass(frozen=True)
class Every:
    """Start a batch at this interval. A batch that takes longer delays the next one; none is skipped."""

    interval: str

    def __post_init__(self) -> None:
        Duration.parse(self.interval)

    @property
    def duration(self) -> Duration:
        """The interval as a length of time."""
        return Duration.parse(self.interval)


@dataclass(frozen=True)
class AvailableNow:
    """Read what is there when the flow starts, in bounded batches, then stop."""


@dataclass(frozen=True)
class Once(AvailableNow):
    """The old name of AvailableNow, which it is treated as. Spark's own `once` reads everything in a single batch."""

    def __post_init__(self) -> None:
        # Past the generated __init__, at the line that declares the flow.
        warnings.warn(
            "Once is deprecated: write AvailableNow(), which does the same.", DeprecationWarning, stacklevel=3
        )


@dataclass(frozen=True)
class AsFastAsPossible:
    """Start the next batch when the last one is committed."""


@dataclass(frozen=True)
class Continuous:
    """Spark's continuous processing: columns and filters only, Kafka to Kafka, at-least-once.

    A row passes in milliseconds. How far the flow has come is noted at every interval; after a crash the rows since
    then are sent again. Each partition that is read holds a task slot for as long as the flow runs.

    With `until_done` the flow ends when all that was there at its start is sent.
    """

    checkpoint_interval: str = "1 second"
    until_done: bool = False

    def __post_init__(self) -> None:
        Duration.parse(self.checkpoint_interval)

    @property
    def duration(self) -> Duration:
        """The interval as a length of time."""
        return Duration.parse(self.checkpoint_interval)


@dataclass(frozen=True)
class RealTime:
    """Spark's real-time mode: without state and without Python, Kafka to Kafka, in update mode, at-least-once.

    A row passes in milliseconds. Progress is noted when a batch of this length ends, five seconds at the least; after a
    crash the rows of the batch are sent again. Each partition that is read holds a task slot for as long as the flow
    runs.
    """

    batch: str = "1 minute"

    def __post_init__(self) -> None:
        Duration.parse(self.batch)

    @property
    def duration(self) -> Duration:
        """The length of a batch."""
        return Duration.parse(self.batch)


Trigger = Every | AvailableNow | AsFastAsPossible | Continuous | RealTime


@dataclass(frozen=True)
class Watermark:
    """How late a row may be, measured in event time against the newest row seen.

    `ahead` guards the other side: a row whose event time is later than its broker's clock by more
    than this is quarantined. Without the guard one row from the year 2099 would move the watermark
    there, and every row after it would be dropped as late. A source without a broker's timestamp is
    compared with the clock of the batch that reads it.

    `idle` closes the last windows of an input that goes quiet: when everything was read and nothing
    has come for this long, event time moves on with the clock, this far behind it. A row that comes
    after a pause counts as late when it is older than `idle` and `delay` together. None waits for
    the next row, however long it takes.
    """

    column: str
    delay: str
    ahead: str = "1 hour"
    idle: str | None = None

    def __post_init__(self) -> None:
        Duration.parse(self.delay)
        Duration.parse(self.ahead)
        if self.idle is not None and not Duration.parse(self.idle).ms:
            raise FlowError(
                f"The watermark on '{self.column}' takes an input for quiet at once.",
                why="With an `idle` of zero each pause between two rows would move event time on to the clock.",
                state="Nothing was started.",
                remedy="Set idle to more than the usual pause between two rows, such as '5 minutes'.",
                code="HR-227",
            )

    @property
    def duration(self) -> Duration:
        """The delay as a length of time."""
        return Duration.parse(self.delay)

    @property
    def ahead_duration(self) -> Duration:
        """The guard as a length of time."""
        return Duration.parse(self.ahead)

    @property
    def idle_duration(self) -> Duration | None:
        """How long an input has to be quiet before event time moves on without it."""
        return None if self.idle is None else Duration.parse(self.idle)


@dataclass(frozen=True)
class InMemory:
    """State on the heap of the executors. Right for thousands of keys, wrong for millions."""

    shuffle_partitions: int | None = None
    budget: StateBudget | None = None


@dataclass(frozen=True)
class RocksDB:
    """State in RocksDB beside the executors, its changes uploaded with each batch.

    | field              | meaning                                                                             |
    |--------------------|-------------------------------------------------------------------------------------|
    | shuffle_partitions | frozen into the checkpoint by the first batch. None takes it from the machine: one   |
    |                    | per core that the flow can use, instead of Spark's 200                              |
    | memory             | the most that RocksDB takes on an executor, such as `512 MB`, shared by all stores   |
    |                    | of all flows there. None: a quarter of the machine, on a cluster half of the         |
    |                    | executors' memory overhead                                                          |
    | budget             | the most state that the flow may keep                                               |
    """

    shuffle_partitions: int | None = None
    memory: str | None = None
    budget: StateBudget | None = None

    def __post_init__(self) -> None:
        if self.memory is not None and Size.parse(self.memory) < _LEAST_MEMORY:
            raise FlowError(
                f"RocksDB is given {self.memory}.",
                why=f"It needs {_LEAST_MEMORY} at least; with less every read goes to the disk.",
                state="Nothing was started.",
                remedy="Give it more, such as '512 MB', or leave `memory` out.",
                code="HR-227",
            )


State = InMemory | RocksDB


class OutputMode(StrEnum):
    """Which rows of the result a batch hands to the sink."""

    APPEND = "append"
    """Rows that can no longer change. With windows: after the watermark has passed their end."""
    UPDATE = "update"
    """Rows that changed in this batch, with their new values."""
    COMPLETE = "complete"
    """The whole result, every batch."""
