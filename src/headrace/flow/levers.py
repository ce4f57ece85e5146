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

from headrace.flow.duration import Duration


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
    there, and every row after it would be dropped as late.
    """

    column: str
    delay: str
    ahead: str = "1 hour"

    def __post_init__(self) -> None:
        Duration.parse(self.delay)
        Duration.parse(self.ahead)

    @property
    def duration(self) -> Duration:
        """The delay as a length of time."""
        return Duration.parse(self.delay)

    @property
    def ahead_duration(self) -> Duration:
        """The guard as a length of time."""
        return Duration.parse(self.ahead)


@dataclass(frozen=True)
class InMemory:
    """State on the heap of the executors. Right for thousands of keys, wrong for millions."""

    shuffle_partitions: int | None = None


@dataclass(frozen=True)
class RocksDB:
    """State in RocksDB beside the executors, its changes uploaded with each batch.

    `shuffle_partitions` is frozen into the checkpoint by the first batch. None takes it from the
    machine: one per core that the flow can use, instead of Spark's 200.
    """

    shuffle_partitions: int | None = None


State = InMemory | RocksDB


class OutputMode(StrEnum):
    """Which rows of the result a batch hands to the sink."""

    APPEND = "append"
    """Rows that can no longer change. With windows: after the watermark has passed their end."""
    UPDATE = "update"
    """Rows that changed in this batch, with their new values."""
    COMPLETE = "complete"
    """The whole result, every batch."""
