"""Run a pattern from end to end on the local stack: parts, a live source, flows, and a comparison at the end.

The steps of a demo, the same for every pattern:

    1. start the parts of the local stack, and create what the flows read
    2. start to feed the source
    3. run the flows; a page or lines show the results
    4. when the time is over: stop the feed, let the flows reach the expected offsets and commit their in-flight
       batches, then stop everything
    5. compare the results with the expected ones

The data stays. The next run continues on the same checkpoints.
"""

import importlib
import json
import os
import pkgutil
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from pyspark.sql import SparkSession

from headrace import demos, patterns
from headrace.clients.positions import Partition
from headrace.demos.feeder import SendResult
from headrace.demos.protocol import Demo, DemoContext, DemoSettings, DemoVerdict
from headrace.errors import ConfigError, HeadraceError, StackError, did_you_mean
from headrace.flow.target import Target
from headrace.operate.checkpoint.offsets import committed_offsets
from headrace.operate.run import Application, FlowMetrics, open_application
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.error_mapping import map_error
from headrace.runtime.events import BatchCommitted, EventBus, FlowEvent
from headrace.stack.jars import JarCache
from headrace.stack.local import LocalStack, RunningParts

# The interval of status lines: short enough to show progress, long enough to cost nothing.
_STATUS_SECONDS = 10.0
# How long flows may go without a commit while the demo waits for them at the end: a busy machine takes minutes for a
# batch. The comparison reports what they lack then.
_MAX_SECONDS_WITHOUT_COMMIT = 600.0
# How soon a wait for offsets notices a stop event.
_POLL_SECONDS = 0.5
# An idle server exits in well under a second; open event streams are closed by then too.
_PAGE_GRACE_SECONDS = 5.0


class OffsetWaiter:
    """Waits for committed offsets. Create it before the flows start; call `wait` from any thread."""

    def __init__(self, bus: EventBus, target: Target, spark: SparkSession | None) -> None:
        self._target, self._spark = target, spark
        self._committed = threading.Event()
        self._read_something: set[str] = set()
        bus.subscribe(self._on_event)

    def wait(
        self, offsets_by_flow: Mapping[str, Mapping[Partition, int]], seconds: float, *stop_events: threading.Event
    ) -> dict[str, dict[Partition, int]]:
        """Return the offsets that are not reached, by flow: none, unless a stop event was set.

        Also returns early if no batch was committed for `seconds`: the wait continues while flows make progress. A
        flow without offsets has to commit one batch with rows.
        """
        while True:
            deadline = time.monotonic() + seconds
            self._committed.clear()
            remaining = {flow: self._pending_offsets(flow, offsets) for flow, offsets in offsets_by_flow.items()}
            remaining = {
                flow: offsets
                for flow, offsets in remaining.items()
                if offsets or self._has_no_rows_yet(flow, offsets_by_flow)
            }
            if not remaining:
                return remaining
            while not self._committed.wait(_POLL_SECONDS):
                if time.monotonic() > deadline or any(stop.is_set() for stop in stop_events):
                    return remaining

    def _pending_offsets(self, flow: str, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        checkpoint = Checkpoint.of(flow, self._target, self._spark)
        reached = committed_offsets(checkpoint)
        return {partition: offset for partition, offset in offsets.items() if reached.get(partition, 0) < offset}

    def _has_no_rows_yet(self, flow: str, offsets_by_flow: Mapping[str, Mapping[Partition, int]]) -> bool:
        return not offsets_by_flow[flow] and flow not in self._read_something

    def _on_event(self, event: FlowEvent) -> None:
        if isinstance(event, BatchCommitted):
            if event.rows_in:
                self._read_something.add(event.flow)
            self._committed.set()


@dataclass
class DemoResult:
    """The result of a demo. There is no verdict if it was interrupted."""

    seconds: float
    sent: SendResult | None
    flows: Mapping[str, FlowMetrics]
    page: str | None
    verdict: DemoVerdict | None

    @property
    def ok(self) -> bool:
        """Whether every flow ran without an error and read rows, and the comparison, if any, found no difference."""
        succeeded = all(figures.error is None and figures.rows_in for figures in self.flows.values())
        return succeeded and (self.verdict is None or self.verdict.equal)

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
            "invalid": {name: figures.invalid for name, figures in self.flows.items()},
            "flows": {name: figures.as_dict() for name, figures in self.flows.items()},
            **(self.verdict.as_dict() if self.verdict else {}),
        }


@dataclass(frozen=True)
class DemoCallbacks:
    """Callbacks while a demo runs, possibly from other threads. Without `status` no status lines are computed."""

    step: Callable[[str], None] = lambda _step: None
    part: Callable[[str, str], None] = lambda _part, _event: None
    jar: Callable[[str, int, int], None] = lambda _jar, _done, _total: None
    running: Callable[[], None] = lambda: None
    page: Callable[[str], None] = lambda _url: None
    event: Callable[[FlowEvent], None] = lambda _event: None
    status: Callable[[Sequence[str]], None] | None = None


def find_demos() -> dict[str, Demo]:
    """Return the demos by name: the modules of `demos` that are named after a pattern."""
    pattern_names = {module.name for module in pkgutil.iter_modules(patterns.__path__) if module.ispkg}
    names = [module.name for module in pkgutil.iter_modules(demos.__path__) if module.name in pattern_names]
    return {name: cast("Demo", importlib.import_module(f"{demos.__name__}.{name}").DEMO) for name in names}


def find_demo(name: str) -> Demo:
    """Return a demo, or raise with the nearest name."""
    demos_ = find_demos()
    if name not in demos_:
        raise ConfigError(
            f"There is no demo '{name}'.{did_you_mean(name, demos_)}",
            why=f"The demos are: {', '.join(sorted(demos_))}.",
            remedy="`headrace demo --list` names them.",
            code="HR-123",
        )
    return demos_[name]


def run_demo(name: str, settings: DemoSettings, callbacks: DemoCallbacks, stop: threading.Event) -> DemoResult:
    """Run a demo until its time is over or `stop` is set. Raises if it cannot start.

    The results are compared only if the demo has a time to run for and was not interrupted.
    """
    demo = find_demo(name)
    home = settings.home.absolute()
    folder = home / "demo" / name
    JarCache().sync(("spark", "kafka"), callbacks.jar)
    with ExitStack() as cleanup:
        stack = LocalStack(home)
        running = stack.up(demo.parts, on_event=callbacks.part, on_progress=callbacks.jar)
        started = [part for part in running.addresses if part not in running.adopted]
        cleanup.callback(stack.down, callbacks.part, parts=started)
        context = DemoContext(settings, _target(folder, running, stack, demo.spark))
        callbacks.step("preparing the source")
        demo.prepare(context)
        feed = _Feed(demo, context, stop)
        cleanup.callback(feed.stop)
        page = None
        if demo.has_page:
            server = _serve_page(name, running.bootstrap, port=settings.port, log=folder / "page.log")
            page = cleanup.enter_context(server)
            callbacks.page(page)
        log = folder / "spark.log"
        application, spark = open_application(demo.flows(), context.target, log=log, on_step=callbacks.step)
        cleanup.callback(spark.stop)
        run = _DemoRun(demo, context, application, spark, feed, callbacks, stop)
        started_at = time.monotonic()
        flows = run.run()
        seconds = time.monotonic() - started_at
        sent = feed.end()
        verdict = None
        if settings.run_for is not None and not stop.is_set():
            callbacks.step("comparing the results with the expected ones")
            verdict = demo.compare(replace(context, figures=flows), spark)
        return DemoResult(seconds, sent, flows, page, verdict)


def delete_demo_data(home: Path) -> None:
    """Delete the data of all demos. Without the broker's topics their checkpoints are useless."""
    shutil.rmtree(home / "demo", ignore_errors=True)


def _target(folder: Path, running: RunningParts, stack: LocalStack, spark: Mapping[str, str]) -> Target:
    url = running.addresses.get("connect")
    return Target(
        name="demo",
        lake=str(folder / "lake"),
        checkpoints=str(folder / "checkpoints"),
        kafka={"bootstrap.servers": running.bootstrap},
        databases={part: database for part in running.addresses if (database := stack.database(part))},
        connect=stack.connect(url) if url else None,
        # A model replays every batch since the first, so Spark must not delete entries of the offset log.
        spark={"spark.sql.streaming.minBatchesToRetain": "1000000", **spark},
    )


@contextmanager
def _serve_page(name: str, bootstrap: str, *, port: int, log: Path) -> Iterator[str]:
    """Serve the live page while the block runs, in a process of its own, and yield its address."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "headrace.serve", "--page", name, "--bootstrap", bootstrap, "--port", str(port)]
    with log.open("ab") as errors:
        # A separate session: Ctrl-C in the terminal stops the flows first and the page last.
        server = subprocess.Popen(  # noqa: S603 - our own module, no external input
            [*command, "--parent-pid", str(os.getpid())],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        assert server.stdout is not None  # noqa: S101 - requested above
        line = server.stdout.readline()
        if not line:
            raise StackError(
                "The live page does not start.",
                why=f"Its server ended with code {server.wait()}; {log} contains its last output.",
                state="The data is not touched.",
                remedy="Run `headrace doctor`. The extra `serve` has to be installed: pip install 'headrace[serve]'.",
                code="HR-420",
            )
        yield str(json.loads(line)["url"])
    finally:
        server.terminate()
        try:
            server.wait(_PAGE_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


class _Feed:
    """Feeds the source on its own thread. A failure ends the demo."""

    def __init__(self, demo: Demo, context: DemoContext, stop_all: threading.Event) -> None:
        self._demo, self._context, self._stop_all = demo, context, stop_all
        self._stop = threading.Event()
        self._sent: SendResult | None = None
        self._error: HeadraceError | None = None
        self._thread = threading.Thread(target=self._run, name="feed")
        self._thread.start()

    def stop(self) -> None:
        """Stop the feed after its current record, and wait for its end."""
        self._stop.set()
        self._thread.join()

    def end(self) -> SendResult | None:
        """Stop the feed and return what it sent. Raises the error that it failed with. May be called again."""
        self.stop()
        if self._error is not None:
            raise self._error
        return self._sent

    def _run(self) -> None:
        try:
            self._sent = self._demo.feed(self._context, self._stop)
        except Exception as error:
            self._error = map_error("feed", error)
            self._stop_all.set()


@dataclass
class _DemoRun:
    """One run of the flows, with the threads that watch them."""

    demo: Demo
    context: DemoContext
    application: Application
    spark: SparkSession
    feed: _Feed
    watch: DemoCallbacks
    stop: threading.Event
    _over: threading.Event = field(default_factory=threading.Event)
    _error: HeadraceError | None = None

    def run(self) -> Mapping[str, FlowMetrics]:
        """Run the flows until the time is over, `stop` is set, or all of them have ended."""
        self.application.bus.subscribe(self.watch.event)
        waiter = OffsetWaiter(self.application.bus, self.context.target, self.spark)
        self.watch.step("running")
        self.watch.running()
        threads = [threading.Thread(target=self._stop_when_due, args=(waiter,), name="demo-end")]
        if self.watch.status is not None:
            threads.append(threading.Thread(target=self._show_status, args=(self.watch.status,), name="demo-status"))
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

    def _stop_when_due(self, waiter: OffsetWaiter) -> None:
        duration = self.context.settings.run_for
        until = None if duration is None else time.monotonic() + duration.total_seconds()
        while not self.stop.wait(0.5) and not self._over.is_set():
            if until is not None and time.monotonic() >= until:
                self._await_offsets(waiter)
                break
        if not self._over.is_set():
            self.watch.step("waiting for in-flight batches to commit")
            self.application.drain()

    def _await_offsets(self, waiter: OffsetWaiter) -> None:
        """Stop the feed, and wait until the flows have read everything that it sent."""
        try:
            self.feed.end()
            offsets = self.demo.awaited_offsets(self.context)
            if offsets:
                self.watch.step("waiting for the flows to read everything that was sent")
            behind = waiter.wait(offsets, _MAX_SECONDS_WITHOUT_COMMIT, self.stop, self._over)
        except Exception as error:
            self._error = map_error("demo", error)
            return
        for flow in behind if not self.stop.is_set() else ():
            self.watch.step(f"{flow} did not read everything that was sent")

    def _show_status(self, on_status: Callable[[Sequence[str]], None]) -> None:
        while not self._over.wait(_STATUS_SECONDS):
            try:
                lines = self.demo.status(self.context, self.spark)
            except Exception as error:  # a failed status, for example of a stopped part, must not end the demo
                lines = [str(map_error("status", error).what)]
            if lines and not self._over.is_set():
                on_status(lines)
