"""The protocol of a demo: the parts that differ between patterns.

To add a demo, write a file in `headrace.demos`, named after its pattern, with a `DEMO` that implements this protocol.
`headrace.demos.runner` does the rest for all demos: it starts the stack, runs the flows, stops everything in order and
reports progress.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import SparkSession

from headrace.clients.positions import Partition
from headrace.demos.feeder import SendResult
from headrace.flow.flow import Flow
from headrace.flow.target import Target

if TYPE_CHECKING:
    from headrace.operate.run import FlowMetrics


@dataclass(frozen=True)
class DemoSettings:
    """How a demo is run.

    | field    | default    | meaning                                                                              |
    |----------|------------|--------------------------------------------------------------------------------------|
    | home     | .headrace  | the folder of the stack and the data                                                 |
    | run_for  | None       | how long to run; None is until `stop`                                                |
    | rate     | 40         | records or transactions per second: of rides about a thousand per city and window    |
    | backfill | 90 minutes | the history that the first run sends, long enough for windows to close;              |
    |          |            | `default_backfill` returns the default of a demo                                     |
    | port     | 8080       | of the page, or the next free one                                                    |
    """

    home: Path = Path(".headrace")
    run_for: timedelta | None = None
    rate: float = 40.0
    backfill: timedelta = timedelta(minutes=90)
    seed: int = 7
    port: int = 8080


@dataclass(frozen=True)
class DemoContext:
    """The settings and the target of a demo. Its databases are named like the parts: `postgres`, `mariadb`.

    `figures` describe what the flows did in this run; they are set once the flows have stopped.
    """

    settings: DemoSettings
    target: Target
    figures: Mapping[str, FlowMetrics] = field(default_factory=dict)


class DemoVerdict(Protocol):
    """The result of a demo's comparison."""

    @property
    def equal(self) -> bool:
        """Whether the actual rows equal the expected ones."""

    def as_dict(self) -> Mapping[str, object]:
        """Return the fields to add to the object of `--json`."""

    def lines(self) -> Sequence[str]:
        """Return the result as text, for people."""


class Demo(Protocol):
    """A demo, as a file in `demos` provides it as `DEMO`. A frozen value; the methods are called in this order."""

    @property
    def title(self) -> str:
        """One line for `headrace demo --list`."""

    @property
    def parts(self) -> Sequence[str]:
        """The parts of the local stack that it needs, by name."""

    @property
    def has_page(self) -> bool:
        """Whether the live page shows it."""

    @property
    def spark(self) -> Mapping[str, str]:
        """Additional settings of the Spark application."""

    def prepare(self, context: DemoContext) -> None:
        """Create what the flows read: topics, tables, captures. Called once per run, after the stack has started."""

    def feed(self, context: DemoContext, stop: Event) -> SendResult:
        """Fill the source until `stop` is set, and return what was sent. Called once, on its own thread.

        Runs from before the flows start until their time is over, and continues what an earlier run began.
        """

    def flows(self) -> Sequence[Flow]:
        """Return the flows to run."""

    def status(self, context: DemoContext, spark: SparkSession) -> Sequence[str]:
        """Return the progress in a few lines. Called every ten seconds while the flows run, if anybody displays it."""

    def awaited_offsets(self, context: DemoContext) -> Mapping[str, Mapping[Partition, int]]:
        """Return, by flow, the offsets to reach before it is stopped; the demo does not wait for other flows.

        A flow without offsets has to commit one batch with rows: a slow machine may still be at its first one.
        Called once, when `feed` has returned and the time is over. Not called if the demo is interrupted.
        """

    def compare(self, context: DemoContext, spark: SparkSession) -> DemoVerdict:
        """Compare all results with the expected ones. Called once, when the flows have stopped."""


class HasBackfill(ABC):
    """A demo with its own default for `backfill`, because it needs more history."""

    @property
    @abstractmethod
    def backfill(self) -> timedelta:
        """The history that its first run sends by default."""


def default_backfill(demo: Demo) -> timedelta:
    """Return the history that the first run of a demo sends by default."""
    return demo.backfill if isinstance(demo, HasBackfill) else DemoSettings.backfill
