"""A pattern from end to end on the local stack: parts, a source that lives, flows, and the comparison at the end.

The course of a demo, the same for every pattern:

    1. the parts of the local stack are up, and what the flows read is there
    2. the source is fed, from now on
    3. the flows run; a page or lines show what comes out
    4. its time is over: the feed stops, the flows go on until they have what is waited for, each commits the batch that
       it is in, everything stops
    5. what came out is compared with what should have

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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from headrace import demos, patterns
from headrace.demos.feeder import Sent
from headrace.demos.page import live_page
from headrace.demos.protocol import Demo, DemoSettings, Scene, Verdict
from headrace.demos.wait import Arrivals
from headrace.errors import ConfigError, HeadraceError, did_you_mean
from headrace.flow.target import KafkaConnect, Target
from headrace.operate.run import Application, FlowFigures, open_application
from headrace.runtime.error_mapping import map_error
from headrace.runtime.events import Event
from headrace.stack import mariadb, postgres
from headrace.stack.connect import secrets
from headrace.stack.jars import JarCache
from headrace.stack.local import LocalStack, Running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Between two looks at how a demo stands: often enough to see it move, seldom enough to cost nothing.
_STATUS_SECONDS = 10.0
# How long flows may go without a batch while they are waited for at the end: a busy machine takes minutes for one. What
# they lack then the comparison tells.
_ARRIVAL_SECONDS = 600.0


@dataclass
class DemoResult:
    """What a demo did. There is no verdict when it was ended by hand."""

    seconds: float
    sent: Sent | None
    flows: Mapping[str, FlowFigures]
    page: str | None
    verdict: Verdict | None

    @property
    def ok(self) -> bool:
        """Whether every flow lived and read something, and the comparison, if there was one, found nothing."""
        lived = all(figures.error is None and figures.rows_in for figures in self.flows.values())
        return lived and (self.verdict is None or self.verdict.equal)

    def as_dict(self) -> dict[str, object]:
        """The result as `--json` prints it."""
        return {
            "ok": self.ok,
            "equal": self.verdict.equal if self.verdict else None,
            "seconds": round(self.seconds, 1),
            "page": self.page,
            "rows_sent": self.sent.records if self.sent else 0,
            "sent": dict(self.sent.by_kind) if self.sent else {},
            "rows_in": {name: figures.rows_in for name, figures in self.flows.items()},
            "late": {name: figures.late for name, figures in self.flows.items()},
            "bad": {name: figures.bad for name, figures in self.flows.items()},
            "flows": {name: figures.as_dict() for name, figures in self.flows.items()},
            **(self.verdict.as_dict() if self.verdict else {}),
        }


@dataclass(frozen=True)
class Watch:
    """Who is told what while a demo runs. Every call may come from another thread. Without `status` nobody looks."""

    step: Callable[[str], None] = lambda _step: None
    part: Callable[[str, str], None] = lambda _part, _event: None
    jar: Callable[[str, int, int], None] = lambda _jar, _done, _total: None
    running: Callable[[], None] = lambda: None
    page: Callable[[str], None] = lambda _url: None
    event: Callable[[Event], None] = lambda _event: None
    status: Callable[[Sequence[str]], None] | None = None


def find_demos() -> dict[str, Demo]:
    """Return the demos by name: the modules of `demos` that are named after a pattern."""
    names = {each.name for each in pkgutil.iter_modules(patterns.__path__) if each.ispkg}
    there = [each.name for each in pkgutil.iter_modules(demos.__path__) if each.name in names]
    return {name: cast("Demo", importlib.import_module(f"{demos.__name__}.{name}").DEMO) for name in there}


def find_demo(name: str) -> Demo:
    """Return one demo, or say which one may have been meant."""
    known = find_demos()
    if name not in known:
        raise ConfigError(
            f"There is no demo '{name}'.{did_you_mean(name, known)}",
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
        running = stack.up(demo.parts, on_event=watch.part, on_progress=watch.jar)
        started = [part for part in running.addresses if part not in running.adopted]
        cleanup.callback(stack.down, watch.part, parts=started)
        scene = Scene(settings, _target(folder, running, stack, demo.spark))
        watch.step("preparing the source")
        demo.prepare(scene)
        feed = _Feed(demo, scene, stop)
        cleanup.callback(feed.stop)
        page = None
        if demo.has_page:
            page = cleanup.enter_context(live_page(running.bootstrap, port=settings.port, log=folder / "page.log"))
            watch.page(page)
        log = folder / "spark.log"
        application, spark = open_application(demo.flows(), scene.target, log=log, on_step=watch.step)
        cleanup.callback(spark.stop)
        course = _Course(demo, scene, application, spark, feed, watch, stop)
        began = time.monotonic()
        flows = course.run()
        seconds = time.monotonic() - began
        sent = feed.end()
        verdict = None
        if settings.run_for is not None and not stop.is_set():
            watch.step("comparing what came out with what should have")
            verdict = demo.compare(replace(scene, figures=flows), spark)
        return DemoResult(seconds, sent, flows, page, verdict)


def forget_demos(home: Path) -> None:
    """Delete what demos have stored. Without the broker's topics their checkpoints point at nothing."""
    shutil.rmtree(home / "demo", ignore_errors=True)


def _target(folder: Path, running: Running, stack: LocalStack, spark: Mapping[str, str]) -> Target:
    known = {"postgres": postgres.database, "mariadb": mariadb.database}
    url = running.addresses.get("connect")
    return Target(
        name="demo",
        lake=str(folder / "lake"),
        checkpoints=str(folder / "checkpoints"),
        kafka={"bootstrap.servers": running.bootstrap},
        databases={part: known[part](stack.place(part)) for part in running.addresses if part in known},
        connect=KafkaConnect(url, secrets=secrets(stack.place("connect"))) if url else None,
        # A model may replay every batch since the first, so that no entry of the offset log may be forgotten.
        spark={"spark.sql.streaming.minBatchesToRetain": "1000000", **spark},
    )


class _Feed:
    """What feeds the source, on a thread of its own. One that fails ends the demo."""

    def __init__(self, demo: Demo, scene: Scene, stop_all: threading.Event) -> None:
        self._demo, self._scene, self._stop_all = demo, scene, stop_all
        self._stop = threading.Event()
        self._sent: Sent | None = None
        self._error: HeadraceError | None = None
        self._thread = threading.Thread(target=self._run, name="feed")
        self._thread.start()

    def stop(self) -> None:
        """Let it do what it is at, and no more. Returns when it has ended."""
        self._stop.set()
        self._thread.join()

    def end(self) -> Sent | None:
        """Stop it, and return what it did. Raises what it failed with. May be called again."""
        self.stop()
        if self._error is not None:
            raise self._error
        return self._sent

    def _run(self) -> None:
        try:
            self._sent = self._demo.feed(self._scene, self._stop)
        except Exception as error:
            self._error = map_error("feed", error)
            self._stop_all.set()


@dataclass
class _Course:
    """The flows from their start to their end, with the threads that watch them meanwhile."""

    demo: Demo
    scene: Scene
    application: Application
    spark: SparkSession
    feed: _Feed
    watch: Watch
    stop: threading.Event
    _over: threading.Event = field(default_factory=threading.Event)
    _error: HeadraceError | None = None

    def run(self) -> Mapping[str, FlowFigures]:
        """Run the flows until the time is over, `stop` is set, or all of them have ended by themselves."""
        self.application.bus.subscribe(self.watch.event)
        arrivals = Arrivals(self.application.bus, self.scene.target, self.spark)
        self.watch.step("running")
        self.watch.running()
        threads = [threading.Thread(target=self._end, args=(arrivals,), name="demo-end")]
        if self.watch.status is not None:
            threads.append(threading.Thread(target=self._look, args=(self.watch.status,), name="demo-status"))
        for thread in threads:
            thread.start()
        try:
            figures = self.application.run()
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error
        return figures

    def _end(self, arrivals: Arrivals) -> None:
        length = self.scene.settings.run_for
        until = None if length is None else time.monotonic() + length.total_seconds()
        while not self.stop.wait(0.5) and not self._over.is_set():
            if until is not None and time.monotonic() >= until:
                self._arrive(arrivals)
                break
        if not self._over.is_set():
            self.watch.step("letting the batches under way commit")
            self.application.drain()

    def _arrive(self, arrivals: Arrivals) -> None:
        """Stop the feed, and let the flows come to where it ended."""
        try:
            self.feed.end()
            awaited = self.demo.awaited(self.scene)
            if awaited:
                self.watch.step("letting the flows come to the end of what was fed")
            left = arrivals.wait(awaited, _ARRIVAL_SECONDS, self.stop, self._over)
        except Exception as error:
            self._error = map_error("demo", error)
            return
        for flow in left if not self.stop.is_set() else ():
            self.watch.step(f"{flow} did not come to the end of what was fed")

    def _look(self, show: Callable[[Sequence[str]], None]) -> None:
        while not self._over.wait(_STATUS_SECONDS):
            try:
                lines = self.demo.status(self.scene, self.spark)
            except Exception as error:  # a look that fails, at a part that is stopped say, ends nothing
                lines = [str(map_error("status", error).what)]
            if lines and not self._over.is_set():
                show(lines)
