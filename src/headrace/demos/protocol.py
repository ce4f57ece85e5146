"""What a demo is: the few answers that differ between patterns.

To add one, write a file in `headrace.demos`, named after its pattern, whose `DEMO` gives these answers. Starting the
parts, running the flows, stopping everything in order and telling a person about it are the work of
`headrace.demos.runner`, the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from headrace.clients.positions import Partition
from headrace.demos.feeder import Sent
from headrace.flow.flow import Flow
from headrace.flow.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.operate.run import FlowFigures


@dataclass(frozen=True)
class DemoSettings:
    """How a demo is run.

    | field    | default    | meaning                                                                              |
    |----------|------------|--------------------------------------------------------------------------------------|
    | home     | .headrace  | where the stack and the data live                                                    |
    | run_for  | None       | end after this long; None is until `stop`                                            |
    | rate     | 40         | records or transactions per second: of rides about a thousand per city and window    |
    | backfill | 90 minutes | the past that the first run of records begins with, long enough for windows to close; |
    |          |            | `backfill_of` says which demo wants more                                             |
    | port     | 8080       | of the page, or the next free one                                                    |
    """

    home: Path = Path(".headrace")
    run_for: timedelta | None = None
    rate: float = 40.0
    backfill: timedelta = timedelta(minutes=90)
    seed: int = 7
    port: int = 8080


@dataclass(frozen=True)
class Scene:
    """Where a demo plays. The databases of the target are named as the parts are: `postgres`, `mariadb`.

    `figures` are what the flows did in this run, when they have stopped.
    """

    settings: DemoSettings
    target: Target
    figures: Mapping[str, FlowFigures] = field(default_factory=dict)


class Verdict(Protocol):
    """What a comparison found."""

    @property
    def equal(self) -> bool:
        """Whether what came out is what should have."""

    def as_dict(self) -> Mapping[str, object]:
        """Return what it adds to the one object of `--json`."""

    def lines(self) -> Sequence[str]:
        """Return it in words, for a person."""


class Demo(Protocol):
    """What a file in `demos` provides as `DEMO`. A frozen value; the methods are called in the order they stand in."""

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
        """Settings of the Spark application, besides the usual ones."""

    def prepare(self, scene: Scene) -> None:
        """Make what the flows read: topics, tables, captures. Once per run, with the parts up; a later run finds it."""

    def feed(self, scene: Scene, stop: Event) -> Sent:
        """Fill the source until `stop` is set, and return what was done. Once, on a thread of its own.

        Runs from before the flows start until their time is over. What an earlier run did is gone on from.
        """

    def flows(self) -> Sequence[Flow]:
        """Return the flows to run."""

    def status(self, scene: Scene, spark: SparkSession) -> Sequence[str]:
        """Return how it stands, in a few lines. Every ten seconds while the flows run, unless nobody looks."""

    def awaited(self, scene: Scene) -> Mapping[str, Mapping[Partition, int]]:
        """Return, by flow, the offsets that it has to reach before it is stopped; those left out are not waited for.

        A flow without offsets has to commit one batch with rows: a slow machine may be at its first one still.
        Once, when `feed` has returned and its time is over. Never when the demo is interrupted.
        """

    def compare(self, scene: Scene, spark: SparkSession) -> Verdict:
        """Compare everything that came out with what should have. Once, when the flows have stopped."""


@runtime_checkable
class OfLongPast(Protocol):
    """A demo that needs more of the past than others before there is something to show."""

    @property
    def backfill(self) -> timedelta:
        """The past that its first run begins with, where nobody says another."""


def backfill_of(demo: Demo) -> timedelta:
    """Return the past that the first run of a demo begins with, where nobody says another."""
    return demo.backfill if isinstance(demo, OfLongPast) else DemoSettings.backfill
