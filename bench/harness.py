"""How contenders are compared: in turn, in one run, warmed up, by ratios.

    round 1   A B C        The machine may be busy with other things. So each round gives ratios of its own, and the
    round 2   B C A        medians of these are what counts. The turn moves on, so that nobody always follows the
    round 3   C A B        same one.

A contender is a function that does the whole work once and returns when it is done. The rounds before the first are for
warming up: code that the JVM has not compiled yet is two to three times slower.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from headrace import Target
from headrace.runtime.session import open_session
from headrace.stack.jars import JarCache
from headrace.stack.local import LocalStack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Contender = Callable[[], None]


@dataclass(frozen=True)
class Run:
    """One run of one contender: its rows, seconds by the clock, and of the processor for this process and all below."""

    rows: int
    wall: float
    cpu: float

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.wall


@dataclass(frozen=True)
class Floor:
    """A ratio that has to be reached: so many times the speed of another contender, median over the rounds."""

    contender: str
    against: str
    ratio: float


@dataclass(frozen=True)
class Workload:
    """The same work for every contender. `contenders` is called with the rows that are there.

    `slow` names contenders that would take most of the time and get only a fifth of the rows; rates are compared.
    """

    name: str
    describes: str
    contenders: Callable[[int], Mapping[str, Contender]]
    floors: tuple[Floor, ...] = ()
    slow: frozenset[str] = frozenset()

    def part(self, name: str, rows: int) -> int:
        """Return how many of the rows a contender gets."""
        return rows // 5 if name in self.slow else rows


@dataclass
class Comparison:
    """What came of one workload."""

    workload: Workload
    rows: int
    runs: dict[str, list[Run]] = field(default_factory=dict)

    def ratios(self, contender: str, against: str) -> list[float]:
        """How many times as fast as another one, round by round."""
        pairs = zip(self.runs[against], self.runs[contender], strict=True)
        return [own.rate / other.rate for other, own in pairs]

    def as_dict(self) -> dict[str, object]:
        """The figures as `--json` writes them."""
        return {
            "workload": self.workload.name,
            "describes": self.workload.describes,
            "rows": self.rows,
            "contenders": {
                name: {
                    "rows_per_second": _spread([run.rate for run in runs], 0),
                    "cpu_seconds_per_million_rows": _spread([run.cpu / run.rows * 1e6 for run in runs], 1),
                    "times_as_fast_as": {
                        other: _spread(self.ratios(name, other), 3) for other in self.runs if other != name
                    },
                }
                for name, runs in self.runs.items()
            },
            "floors": [
                {
                    "contender": floor.contender,
                    "against": floor.against,
                    "floor": floor.ratio,
                    "measured": round(statistics.median(self.ratios(floor.contender, floor.against)), 3),
                    "reached": self.reached(floor),
                }
                for floor in self.workload.floors
            ],
        }

    def reached(self, floor: Floor) -> bool:
        """Whether the median of the rounds is at or above a floor."""
        return statistics.median(self.ratios(floor.contender, floor.against)) >= floor.ratio

    def lines(self) -> Iterator[str]:
        """The figures as a table for a person."""
        yield f"{self.workload.name}: {self.workload.describes}"
        others = list(self.runs)
        heads = "".join(f"  x {name}"[:24].rjust(24) for name in others)
        yield f"  {'contender':26}{'rows/s (range)':>30}{'cpu s/M':>9}{heads}"
        for name, runs in self.runs.items():
            rates = sorted(run.rate for run in runs)
            speed = f"{statistics.median(rates):,.0f} ({rates[0]:,.0f}-{rates[-1]:,.0f})"
            cpu = f"{statistics.median(run.cpu / run.rows for run in runs) * 1e6:.1f}"
            cells = "".join(self._cell(name, other).rjust(24) for other in others)
            yield f"  {name:26}{speed:>30}{cpu:>9}{cells}"
        for floor in self.workload.floors:
            ratio = statistics.median(self.ratios(floor.contender, floor.against))
            verdict = "reached" if self.reached(floor) else "MISSED"
            yield f"  floor: {floor.contender} {floor.ratio} x {floor.against}: {verdict} ({ratio:.2f})"

    def _cell(self, name: str, other: str) -> str:
        if name == other:
            return "-"
        ordered = sorted(self.ratios(name, other))
        return f"{statistics.median(ordered):.2f} ({ordered[0]:.2f}-{ordered[-1]:.2f})"


def compared(workload: Workload, *, rows: int, warm_up_rows: int, rounds: int) -> Comparison:
    """Warm every contender up, then run all of them in turn, so many rounds."""
    for _name, run in workload.contenders(warm_up_rows).items():
        run()
    names = list(workload.contenders(rows))
    contenders = [(name, workload.contenders(workload.part(name, rows))[name]) for name in names]
    comparison = Comparison(workload, rows, {name: [] for name, _ in contenders})
    for number in range(rounds):
        first = number % len(contenders)
        for name, run in contenders[first:] + contenders[:first]:
            comparison.runs[name].append(measured(run, workload.part(name, rows)))
    return comparison


def measured(run: Contender, rows: int) -> Run:
    """Run once over so many rows."""
    cpu, began = cpu_seconds(), time.monotonic()
    run()
    return Run(rows, time.monotonic() - began, cpu_seconds() - cpu)


def cpu_seconds() -> float:
    """Return what this process and all below it have used: the driver, the JVM, Python workers. Not the broker."""
    used = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += times.user + times.system + times.children_user + times.children_system
    return used


def machine() -> dict[str, object]:
    """Return what figures are to be read with."""
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "python": platform.python_version(),
    }


@contextmanager
def environment(bootstrap: str | None) -> Iterator[tuple[SparkSession, Target]]:
    """Give a folder, a broker and a session; a broker that was made here is removed with everything in it."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        _broker(bootstrap, Path(folder)) as at,
        session(Path(folder), {"bootstrap.servers": at}) as session_and_target,
    ):
        yield session_and_target


@contextmanager
def session(folder: Path, kafka: Mapping[str, str] | None = None) -> Iterator[tuple[SparkSession, Target]]:
    """Give a session whose data lies in a folder."""
    target = Target("bench", lake=f"{folder}/lake", checkpoints=f"{folder}/checkpoints", kafka=kafka or {})
    cache = JarCache()
    cache.sync(("spark",))
    spark = open_session(target, cache.verify("spark"), app_name="headrace-bench", log=folder / "jvm.log")
    try:
        yield spark, target
    finally:
        spark.stop()


@contextmanager
def _broker(bootstrap: str | None, home: Path) -> Iterator[str]:
    if bootstrap:
        yield bootstrap
        return
    stack = LocalStack(home)
    try:
        yield stack.up().bootstrap
    finally:
        stack.wipe()


def write_json(path: Path, content: object) -> None:
    """Keep figures for later comparisons."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def _spread(values: list[float], digits: int) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), digits),
        "least": round(min(values), digits),
        "most": round(max(values), digits),
    }
