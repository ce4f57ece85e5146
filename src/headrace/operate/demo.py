"""A pattern from end to end on the local stack: broker, generator, flows, page, and the comparison with its model.

The course of a demo, the same for every pattern:

    1. the local stack is up, and the topics are there
    2. the generator sends the recent past at once, then goes on at its rate
    3. the flows run; the page shows what comes out
    4. at the end the generator stops, each flow commits the batch that it is in, everything stops
    5. every row of every sink is compared with the model

The data stays. The next run goes on where this one stopped, on the same checkpoints.
"""

from __future__ import annotations

import importlib
import pkgutil
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from headrace.clients.kafka import newest_timestamp
from headrace.clients.topics import create_topics
from headrace.errors import ConfigError, HeadraceError, nearest
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.operate import demos
from headrace.operate.compare import Comparison
from headrace.operate.generate import Generator, Sent, generate
from headrace.operate.page import live_page
from headrace.operate.run import Application, FlowFigures, open_application
from headrace.runtime.events import Event
from headrace.runtime.failures import mapped
from headrace.stack.jars import JarCache
from headrace.stack.local import LocalStack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Demo(Protocol):
    """What a file in `demos` provides as `DEMO`."""

    @property
    def title(self) -> str:
        """One line for `headrace demo --list`."""

    @property
    def has_page(self) -> bool:
        """Whether the live page shows it."""

    def topics(self) -> Mapping[str, int]:
        """Return every topic, with its number of partitions."""

    def flows(self) -> Sequence[Flow]:
        """Return the flows to run."""

    def source_topic(self) -> str:
        """Return the topic that the generator fills."""

    def generator(self, *, rate: float, seed: int) -> Generator:
        """Return the generator of its records."""

    def compare(self, spark: SparkSession, target: Target) -> Comparison:
        """Compare everything that came out with the model. Called when the flows have stopped."""


@dataclass(frozen=True)
class DemoSettings:
    """How a demo is run.

    | field    | default    | meaning                                                                     |
    |----------|------------|-----------------------------------------------------------------------------|
    | home     | .headrace  | where the stack and the data live                                           |
    | run_for  | None       | end after this long; None is until `stop`                                   |
    | rate     | 40         | records per second: about a thousand per city and window                    |
    | backfill | 90 minutes | the past that the first run begins with, long enough for windows to close   |
    | port     | 8080       | of the page, or the next free one                                           |
    """

    home: Path = Path(".headrace")
    run_for: timedelta | None = None
    rate: float = 40.0
    backfill: timedelta = timedelta(minutes=90)
    seed: int = 7
    port: int = 8080


@dataclass
class DemoResult:
    """What a demo did."""

    seconds: float
    sent: Sent | None
    flows: Mapping[str, FlowFigures]
    page: str | None
    comparison: Comparison | None

    @property
    def ok(self) -> bool:
        """Whether every flow lived and read something, and the comparison, if there was one, found nothing."""
        lived = all(figures.error is None and figures.rows_in for figures in self.flows.values())
        return lived and (self.comparison is None or self.comparison.equal)

    def as_dict(self) -> dict[str, object]:
        """The result as `--json` prints it."""
        return {
            "ok": self.ok,
            "seconds": round(self.seconds, 1),
            "page": self.page,
            "rows_sent": self.sent.records if self.sent else 0,
            "rows_in": {name: figures.rows_in for name, figures in self.flows.items()},
            "rows_out": self.comparison.rows_of_sinks() if self.comparison else None,
            "late": {name: figures.late for name, figures in self.flows.items()},
            "bad": {name: figures.bad for name, figures in self.flows.items()},
            "flows": {name: figures.as_dict() for name, figures in self.flows.items()},
            "model": self.comparison.as_dict() if self.comparison else None,
        }


@dataclass(frozen=True)
class Watch:
    """Who is told what while a demo runs. Every call may come from another thread."""

    step: Callable[[str], None] = lambda _step: None
    part: Callable[[str, str], None] = lambda _part, _event: None
    jar: Callable[[str, int, int], None] = lambda _jar, _done, _total: None
    running: Callable[[], None] = lambda: None
    page: Callable[[str], None] = lambda _url: None
    event: Callable[[Event], None] = lambda _event: None


@dataclass
class _Generation:
    """The generator on a thread of its own. A generator that fails ends the demo."""

    stop: threading.Event = field(default_factory=threading.Event)
    sent: Sent | None = None
    error: HeadraceError | None = None


def find_demos() -> dict[str, Demo]:
    """Return the demos by name: one file each in the folder `demos`."""
    found = {}
    for module in pkgutil.iter_modules(demos.__path__, f"{demos.__name__}."):
        found[module.name.rpartition(".")[2]] = cast("Demo", importlib.import_module(module.name).DEMO)
    return found


def find_demo(name: str) -> Demo:
    """Return one demo, or say which one may have been meant."""
    known = find_demos()
    if name not in known:
        raise ConfigError(
            f"There is no demo '{name}'.{nearest(name, known)}",
            why=f"The demos are: {', '.join(sorted(known))}.",
            state="Nothing was started.",
            remedy="`headrace demo --list` names them.",
            code="HR-123",
        )
    return known[name]


def run_demo(name: str, settings: DemoSettings, watch: Watch, stop: threading.Event) -> DemoResult:
    """Run a demo until its time is over or `stop` is set. Raises what kept it from starting.

    The comparison is made when the demo had a time to run for: who ends it by hand wants it to end.
    """
    demo = find_demo(name)
    home = settings.home.absolute()
    folder = home / "demo" / name
    JarCache().sync(("spark", "kafka"), watch.jar)
    with ExitStack() as cleanup:
        stack = LocalStack(home)
        running = stack.up(on_event=watch.part, on_progress=watch.jar)
        if not running.adopted:
            cleanup.callback(stack.down, watch.part)
        target = _target(folder, running.bootstrap)
        create_topics(target.kafka, demo.topics())
        generation = _Generation()
        sender = threading.Thread(target=_send, args=(demo, settings, target, generation, stop), name="generator")
        sender.start()
        cleanup.callback(sender.join)
        cleanup.callback(generation.stop.set)
        page = None
        if demo.has_page:
            page = cleanup.enter_context(live_page(running.bootstrap, port=settings.port, log=folder / "page.log"))
            watch.page(page)
        application, spark = open_application(demo.flows(), target, log=folder / "spark.log", on_step=watch.step)
        cleanup.callback(spark.stop)
        started = time.monotonic()
        flows = _run(application, settings, watch, stop)
        seconds = time.monotonic() - started
        generation.stop.set()
        sender.join()
        if generation.error is not None:
            raise generation.error
        comparison = None
        if settings.run_for is not None and not stop.is_set():
            watch.step("comparing every row with the model")
            comparison = demo.compare(spark, target)
        return DemoResult(seconds, generation.sent, flows, page, comparison)


def forget_demos(home: Path) -> None:
    """Delete what demos have stored. Without the broker's topics their checkpoints point at nothing."""
    shutil.rmtree(home / "demo", ignore_errors=True)


def _target(folder: Path, bootstrap: str) -> Target:
    return Target(
        name="demo",
        lake=str(folder / "lake"),
        checkpoints=str(folder / "checkpoints"),
        kafka={"bootstrap.servers": bootstrap},
        # The model replays every batch since the first, so that no entry of the offset log may be forgotten.
        spark={"spark.sql.streaming.minBatchesToRetain": "1000000"},
    )


def _send(
    demo: Demo, settings: DemoSettings, target: Target, generation: _Generation, stop_all: threading.Event
) -> None:
    try:
        newest = newest_timestamp(target, demo.source_topic())
        # Go on after what an earlier run has sent: the same hour sent twice would only be late.
        gap = datetime.now(UTC) - newest if newest else settings.backfill
        generation.sent = generate(
            demo.generator(rate=settings.rate, seed=settings.seed),
            target,
            backfill=max(timedelta(0), min(gap, settings.backfill)),
            stop=generation.stop,
        )
    except Exception as error:
        generation.error = mapped("generator", error)
        stop_all.set()


def _run(
    application: Application, settings: DemoSettings, watch: Watch, stop: threading.Event
) -> Mapping[str, FlowFigures]:
    """Run the flows until the time is over, `stop` is set, or all of them have ended by themselves."""
    application.bus.subscribe(watch.event)
    watch.step("running")
    watch.running()
    over = threading.Event()

    def end() -> None:
        stop.wait(settings.run_for.total_seconds() if settings.run_for else None)
        if not over.is_set():
            watch.step("letting the batches under way commit")
            application.drain()

    threading.Thread(target=end, name="demo-end", daemon=True).start()
    try:
        return application.run()
    finally:
        over.set()
