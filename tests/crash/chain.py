"""The chain: one driver after the other, each ended at another point, with every sink read in between.

start a driver -> it completes the batch that the last kill interrupted -> read every sink -> feed a stage
  -> every flow stops at the same point of that stage's batch -> end the driver -> read every sink

A driver is a process that is killed, or an application in the process of the test whose flows end by an exception.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import psutil
from confluent_kafka import Producer

from crash import armed
from crash.cases import FOLDER, TOPIC, WRITTEN, Case, Event, make_dimension, stage
from crash.driver import LOST_WORKER, REACHED, Plan, end_the_flow, report_of
from crash.readers import Follower, half_done, stored_rows_of
from headrace.clients.topics import create_topics
from headrace.flow.secret import reveal_secret
from headrace.flow.target import Database
from headrace.operate.run import Application
from headrace.runtime import events
from headrace.sinks.kafka.exactly_once import KafkaExactlyOnceSink
from headrace.sinks.kafka.topic import KafkaTopicSink

# A driver with all flows is up in 10 s on an idle machine; this one may be busy.
_PATIENCE_SECONDS = 480.0

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Counter[tuple[int, str]]


@dataclass(frozen=True)
class Difference:
    """Between what a case holds and what its model says: rows too many and rows too few, with their numbers."""

    extra: Rows = field(default_factory=Counter)
    missing: Rows = field(default_factory=Counter)

    def since(self, before: Difference) -> Difference:
        """Return what is new in it."""
        return Difference(self.extra - before.extra, self.missing - before.missing)


@dataclass(frozen=True)
class Outcome:
    """What one kill did to one case.

    | field     | meaning                                                                         |
    |-----------|---------------------------------------------------------------------------------|
    | stage     | the rows of the stage that was under way, as the model has them                 |
    | killed    | what is wrong after the kill that was not before the stage                      |
    | recovered | what is wrong after the next driver has made up the batch that was not before it |
    """

    stage: Rows
    killed: Difference
    recovered: Difference


class Line:
    """Where drivers and their workers report. A caller that waits is blocked until `hang_up`."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._delayed: list[socket.socket] = []
        self._received: queue.Queue[dict[str, object]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                caller, _ = self._server.accept()
            except OSError:
                return  # the server is closed
            self._delayed.append(caller)
            # A caller that was killed while it sent, or disconnected, has sent nothing. The next one is read.
            with contextlib.suppress(OSError):
                words = caller.makefile().readline()
                if words.endswith("\n"):
                    self._received.put(json.loads(words))

    def put(self, report: dict[str, object]) -> None:
        """Take a report from this process."""
        self._received.put(report)

    def receive(self, seconds: float) -> dict[str, object] | None:
        """Return the next report, or None when there is none in time."""
        try:
            return self._received.get(timeout=seconds)
        except queue.Empty:
            return None

    def hang_up(self) -> None:
        """Release every caller, and drop what was not received: its sender is dead."""
        while self._delayed:
            self._delayed.pop().close()
        while self.receive(0) is not None:
            pass

    def close(self) -> None:
        self.hang_up()
        self._server.close()


@dataclass(frozen=True)
class Step:
    """One driver of the chain.

    | field      | meaning                                                                          |
    |------------|----------------------------------------------------------------------------------|
    | stops      | points with the stages in whose batches they are reached; the driver ends at the  |
    |            | last one. Without any, it completes the interrupted batch and ends                |
    | in_process | whether it is an application in the process of the test, ended by exceptions     |
    """

    stops: tuple[tuple[str, int], ...]
    in_process: bool = False


def killed_at_every_point(points: Sequence[str]) -> list[Step]:
    """Return a chain in which a process is killed at every point; the last driver loses workers and ends normally."""
    kills = [Step(((point, number),)) for number, point in enumerate(points)]
    return [*kills, Step(((LOST_WORKER, len(points)),))]


def killed_once() -> list[Step]:
    """Return a chain in which one process loses workers and is killed, and the other points are reached in this one.

    The process is killed at P2, where it leaves most behind: an exception would clean up. P5 is reached with P0 of the
    next stage: both leave the commit of the stage before and nothing after it.
    """
    first = Step(((LOST_WORKER, 0), ("P2", 1)))
    rest = [Step(((point, number),), in_process=True) for number, point in enumerate(("P0", "P1", "P3", "P4"), start=2)]
    return [first, *rest, Step((), in_process=True)]


class Driver(Protocol):
    """What runs the flows of one step."""

    def died_of(self) -> str | None:
        """Return why it ended without a kill, or None while it runs."""

    def drain(self) -> str:
        """Let it drain and end; return what it complained about."""

    def kill(self) -> None:
        """End it, whatever it is doing."""


class ProcessDriver:
    """A driver in a process group of its own with its JVM: a module of these tests, run as a program."""

    def __init__(self, module: str, arguments: Sequence[str], line: Line, environment: Mapping[str, str] | None = None):
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        own = {"PYTHONPATH": path, armed.PORT: str(line.port)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **own, **(environment or {})},
        )

    @classmethod
    def of(cls, plan: Plan, line: Line) -> ProcessDriver:
        """Return a driver that follows a plan."""
        folder = Path(plan.folder)
        name = "-".join(f"{stage}-{point}" for point, stage in plan.stops)
        written, log = folder / "plan.json", folder / f"spark-{name}.log"
        written.write_text(plan.encoded())
        armed_flows = folder / "armed"
        shutil.rmtree(armed_flows, ignore_errors=True)
        armed_flows.mkdir()
        return cls("crash.driver", [str(written), str(log)], line, {armed.FOLDER: str(armed_flows)})

    def died_of(self) -> str | None:
        if self._process.poll() is None:
            return None
        return self._process.stderr.read()[-2000:] if self._process.stderr else ""

    def drain(self) -> str:
        _, output = self._process.communicate(timeout=_PATIENCE_SECONDS)
        return output if self._process.returncode else ""

    def kill(self) -> None:
        """Kill the driver, its JVM and its Python workers: the workers have a group of their own."""
        if self._process.poll() is None:
            below = psutil.Process(self._process.pid).children(recursive=True)
            os.killpg(self._process.pid, signal.SIGKILL)
            for process in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(below, timeout=30)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class ThreadDriver:
    """A driver in this process, on the session of the test run. Its flows end where they stop."""

    def __init__(self, plan: Plan, line: Line, spark: SparkSession) -> None:
        self._line, self._failure = line, ""
        self._application = Application(spark, plan.target, plan.flows(end_the_flow))
        self._application.bus.subscribe(self._say)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def died_of(self) -> str | None:
        return None if self._thread.is_alive() else self._failure or "every flow has ended"

    def drain(self) -> str:
        self.kill()
        return self._failure

    def kill(self) -> None:
        self._application.drain()
        self._thread.join(_PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the flows did not end"

    def _run(self) -> None:
        try:
            self._application.run()
        except Exception as error:
            self._failure = repr(error)

    def _say(self, event: events.Event) -> None:
        report = report_of(event)
        if report is not None:
            self._line.put(report)


class Chain:
    """Runs the steps once, and keeps what it finds.

    | field        | meaning                                                                    |
    |--------------|----------------------------------------------------------------------------|
    | outcomes     | per case and point                                                         |
    | final        | what is wrong in the end, per case                                         |
    | errors       | what flows died of, per case; a flow that stays down is left out           |
    | half_done    | the cases that had something in the sink at P2 that no reader may see      |
    | lost_workers | the cases that lost a Python worker                                        |
    | last_words   | what the last driver ended with, when it did not end well                  |
    | follower     | what a reader of committed records saw during the run                      |
    | seconds      | how long each driver took, with all that came before the next              |
    """

    def __init__(
        self,
        cases: Mapping[str, Case],
        steps: Sequence[Step],
        folder: Path,
        bootstrap: str,
        database: Database,
        *,
        seed: int,
        spark: SparkSession | None = None,
    ) -> None:
        self.cases, self.steps, self.seed = cases, steps, seed
        last = max(number for step in steps for _, number in step.stops)
        self.stages = [stage(seed, number) for number in range(last + 1)]
        self.outcomes: dict[tuple[str, str], Outcome] = {}
        self.final: dict[str, Difference] = {}
        self.errors: dict[str, list[str]] = {name: [] for name in cases}
        self.half_done: set[str] = set()
        self.lost_workers: set[object] = set()
        self.last_words = ""
        self.seconds: dict[str, float] = {}
        self._spark = spark
        self._down: set[str] = set()
        self.line = Line()
        login = (database.url, database.user, reveal_secret(database.password or ""))
        self.plan = Plan(tuple(cases), str(folder), bootstrap, login)
        self._inbox = Path(self.plan.target.table(FOLDER))
        self._inbox.mkdir(parents=True)
        make_dimension(self.plan.target)
        places = [place for case in cases.values() for place in case.places]
        outputs = [place.topic for place in places if isinstance(place, KafkaTopicSink)]
        create_topics(self.plan.target.kafka, {TOPIC: 1, **dict.fromkeys(outputs, 2)})
        exact = [place.topic for place in places if isinstance(place, KafkaExactlyOnceSink)]
        self.follower = Follower(self.plan.target, exact)
        # In transactions, so that a stage appears completely: a flow reads it in one batch.
        self._feed = Producer({"bootstrap.servers": bootstrap, "transactional.id": "crash-feed"})
        self._feed.init_transactions()

    def run(self) -> None:
        """Run every step; the last driver is not killed."""
        before = killed = dict.fromkeys(self.cases, Difference())
        interrupted: tuple[str, int] | None = None
        self.follower.start()
        for step in self.steps:
            began = time.monotonic()
            is_last = step is self.steps[-1]
            with self._driver(step) as driver:
                if interrupted is not None:
                    point, number = interrupted
                    self._await(driver, lambda case, last=number: self._has_commit(case, case.last_batch(last)))
                    recovered = self.read(number + 1)
                    self._note(point, number, before, killed, recovered)
                    before = recovered
                for point, number in step.stops:
                    self.give(number)
                    self._reach(driver, point, number)
                    if point == "P2":
                        self._look_into_the_middle()
                if is_last:
                    self.last_words = driver.drain()
            self.line.hang_up()
            if is_last:
                self.final = self.read(len(self.stages))
            else:
                point, number = interrupted = step.stops[-1]
                self._set_back(point, number)
                observed = number + 1 if point in WRITTEN else number
                killed = self.read(observed, number + 1 if point == "P2" else observed, settled=point != "P2")
            self.seconds["-".join(point for point, _ in step.stops)] = round(time.monotonic() - began, 1)
        self.follower.finish()
        self.line.close()

    def _reach(self, driver: Driver, point: str, number: int) -> None:
        """Wait until every flow is at the point."""
        arrived: set[object] = set()

        def on_event(words: dict[str, object]) -> None:
            # Of this point: a report that a driver sent before it died may be received by the next step.
            if words.get("point") in (point, REACHED):
                arrived.add(words["case"])

        if point in ("P0", "P1", "P2", "P3"):
            self._await(driver, lambda case: case.name in arrived, on_event)
        else:
            batches = {case.name: case.batch_to_die_in(point, number) for case in self.cases.values()}
            self._await(driver, lambda case: self._has_commit(case, batches[case.name]), on_event)
        if point == LOST_WORKER:
            self.lost_workers = arrived

    def _look_into_the_middle(self) -> None:
        """Look for what is half-done. Records reach the broker a moment after they were handed to the client."""
        waiting = [case for case in self.cases.values() if "P2" not in case.repeats]
        deadline = time.monotonic() + _PATIENCE_SECONDS / 4
        while waiting and time.monotonic() < deadline:
            done = [case for case in waiting if half_done(case.places[case.middle], self.plan.target)]
            self.half_done |= {case.name for case in done}
            waiting = [case for case in waiting if case not in done]

    def _note(
        self,
        point: str,
        number: int,
        before: dict[str, Difference],
        killed: dict[str, Difference],
        recovered: dict[str, Difference],
    ) -> None:
        reached = {point: number, **({"P5": number - 1} if point == "P0" else {})}
        for name, case in self.cases.items():
            for row, stage_number in reached.items():
                rows = case.expected(self.stages[: stage_number + 1]) - case.expected(self.stages[:stage_number])
                result = Outcome(rows, killed[name].since(before[name]), recovered[name].since(before[name]))
                # A point with a step of its own keeps what that step found.
                self.outcomes.setdefault((name, row), result)

    # ---- drivers ----

    @contextlib.contextmanager
    def _driver(self, step: Step) -> Iterator[Driver]:
        """Start a driver; whatever happens, it has ended afterwards."""
        plan = replace(self.plan, cases=tuple(case.name for case in self._up()), stops=step.stops)
        driver: Driver
        if step.in_process:
            assert self._spark is not None
            driver = ThreadDriver(plan, self.line, self._spark)
        else:
            driver = ProcessDriver.of(plan, self.line)
        try:
            yield driver
        finally:
            driver.kill()

    def _await(
        self,
        driver: Driver,
        done: Callable[[Case], bool],
        on_event: Callable[[dict[str, object]], object] = lambda _words: None,
    ) -> None:
        """Wait until every flow that is up is done; errors of flows are recorded, and those that stay down left out."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while waiting := [case.name for case in self._up() if not done(case)]:
            words = self.line.receive(0.5)
            if words is not None:
                on_event(words)
                if "error" in words:
                    self.errors[str(words["case"])].append(str(words["error"]))
                    if words["down"]:
                        self._down.add(str(words["case"]))
            elif (output := driver.died_of()) is not None:
                raise AssertionError(f"The driver ended by itself, while {waiting} were waited for: {output}")
            elif time.monotonic() > deadline:
                raise AssertionError(
                    f"{waiting} did not come in {_PATIENCE_SECONDS:.0f} s; logs are in {self.plan.folder}"
                )

    # ---- sources, checkpoints and sinks ----

    def give(self, number: int) -> None:
        """Send a stage to the sources, completely."""
        events: list[Event] = self.stages[number]
        beside = self._inbox.with_name(f"{number}.json")
        beside.write_text("".join(event.encoded() + "\n" for event in events))
        beside.rename(self._inbox / beside.name)
        self._feed.begin_transaction()
        for event in events:
            self._feed.produce(TOPIC, event.encoded(), event.key)
        self._feed.commit_transaction()

    def _up(self) -> list[Case]:
        return [case for case in self.cases.values() if case.name not in self._down]

    def _log(self, case: Case, log: str) -> Path:
        return Path(self.plan.target.flow_folder(case.name)) / "spark" / log

    def _has_commit(self, case: Case, batch: int) -> bool:
        return (self._log(case, "commits") / str(batch)).exists()

    def _set_back(self, point: str, number: int) -> None:
        """Take the last entry from a log that the driver died a moment too late for: nothing else lies between."""
        if point not in ("P0", "P4"):
            return
        for case in self._up():
            batch = case.batch_to_die_in(point, number)
            log = self._log(case, "offsets" if point == "P0" else "commits")
            (log / str(batch)).unlink()
            # Written after the entry, so the kill may have come before it.
            (log / f".{batch}.crc").unlink(missing_ok=True)

    def read(self, visible: int, before_middle: int | None = None, *, settled: bool = True) -> dict[str, Difference]:
        """Compare every sink with the model of so many stages; the places before a middle may be further.

        Only a driver that was killed in the middle leaves transactions open: otherwise they are waited for (`settled`).
        """
        earlier = self.stages[: visible if before_middle is None else before_middle]
        result = {}
        for name, case in self.cases.items():
            expected = case.expected(self.stages[:visible], earlier)
            holds = stored_rows_of(case, self.plan.target, settled=settled)
            result[name] = Difference(holds - expected, expected - holds)
        return result
