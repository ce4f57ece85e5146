"""The chain: one driver after the other, each killed at another point, with every sink read in between.

start a driver -> it makes up the batch that the last kill broke off -> read every sink -> feed a stage
  -> every flow stops at the same point of that stage's batch -> kill the driver and its JVM -> read every sink
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import crash_armed
import psutil
from confluent_kafka import Producer
from crash_cases import CASES, FOLDER, POINTS, TOPIC, WRITTEN, Case, Event, make_dimension, stage
from crash_points import END, Plan
from crash_readers import Follower, half_done, held

from headrace.clients.topics import create_topics
from headrace.flow.secret import revealed
from headrace.flow.target import Database
from headrace.sinks.kafka import KafkaSink
from headrace.sinks.kafka_exactly_once import KafkaExactlyOnce

# A driver with all flows is up in 10 s on a quiet machine; this one may be busy.
_PATIENCE_SECONDS = 480.0

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
    """Where drivers and their workers report. A caller that waits is held until `hang_up`."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._held: list[socket.socket] = []
        self._heard: queue.Queue[dict[str, object]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        # Ends with an OSError when the server is closed.
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._server.accept()
                self._held.append(caller)
                words = caller.makefile().readline()
                # A caller that was killed while it spoke has said nothing.
                if words.endswith("\n"):
                    self._heard.put(json.loads(words))

    def hear(self, seconds: float) -> dict[str, object] | None:
        """Return the next report, or None when there is none in time."""
        try:
            return self._heard.get(timeout=seconds)
        except queue.Empty:
            return None

    def hang_up(self) -> None:
        """Let everyone go who is still there, and forget what was not heard: its sender is dead."""
        while self._held:
            self._held.pop().close()
        while self.hear(0) is not None:
            pass

    def close(self) -> None:
        self.hang_up()
        self._server.close()


class Chain:
    """Runs the whole chain once, and keeps what it finds.

    | field        | meaning                                                                    |
    |--------------|----------------------------------------------------------------------------|
    | outcomes     | per case and point                                                         |
    | final        | what is wrong in the end, per case                                         |
    | errors       | what flows died of, per case; a flow that stays down is left out           |
    | half_done    | the cases that had something in the sink at P2 that no reader may see      |
    | lost_workers | the cases that lost a Python worker in the last stage                      |
    | last_words   | what the last driver ended with, when it did not end well                  |
    | follower     | what a reader of committed records saw meanwhile                           |
    | seconds      | how long each driver took, with all that came before the next              |
    """

    def __init__(self, folder: Path, bootstrap: str, database: Database, seed: int) -> None:
        self.seed = seed
        chance = random.Random(seed)  # noqa: S311 - an example, not a secret
        self.points = list(POINTS)
        # Not first: a driver that died before the first entry of the offset log has left nothing at all.
        while self.points[0] == "P0":
            chance.shuffle(self.points)
        self.stages = [stage(seed, number) for number in range(len(self.points) + 1)]
        self.outcomes: dict[tuple[str, str], Outcome] = {}
        self.final: dict[str, Difference] = {}
        self.errors: dict[str, list[str]] = {name: [] for name in CASES}
        self.half_done: set[str] = set()
        self.lost_workers: set[object] = set()
        self.last_words = ""
        self.seconds: dict[str, float] = {}
        self._down: set[str] = set()
        self._line = Line()
        login = (database.url, database.user, revealed(database.password or ""))
        self.plan = Plan(tuple(CASES), str(folder), bootstrap, login)
        self._inbox = Path(self.plan.target.table(FOLDER))
        self._inbox.mkdir(parents=True)
        make_dimension(self.plan.target)
        outputs = [place.topic for case in CASES.values() for place in case.places if isinstance(place, KafkaSink)]
        create_topics(self.plan.target.kafka, {TOPIC: 1, **dict.fromkeys(outputs, 2)})
        exact = [place.topic for case in CASES.values() for place in case.places if isinstance(place, KafkaExactlyOnce)]
        self.follower = Follower(self.plan.target, exact)
        # In transactions, so that a stage is there as a whole: a flow reads it in one batch.
        self._feed = Producer({"bootstrap.servers": bootstrap, "transactional.id": "crash-feed"})
        self._feed.init_transactions()

    def run(self) -> None:
        """Kill a driver at every point, then let one run to the end."""
        before = killed = dict.fromkeys(CASES, Difference())
        self.follower.start()
        for number, point in enumerate([*self.points, END]):
            began = time.monotonic()
            with self._driver(point, number) as driver:
                if number > 0:
                    self._await(driver, lambda case, last=number - 1: self._has_commit(case, case.last_batch(last)))
                    recovered = self._read(number)
                    self._note(self.points[number - 1], number - 1, before, killed, recovered)
                    before = recovered
                self._give(number)
                self._reach(driver, point, number)
                if point == "P2":
                    self._look_into_the_middle()
                if point == END:
                    self._end(driver)
                _kill(driver)
            self._line.hang_up()
            self._set_back(point, number)
            seen = number + 1 if point in (*WRITTEN, END) else number
            killed = self._read(seen, number + 1 if point == "P2" else seen)
            self.seconds[point] = round(time.monotonic() - began, 1)
        self.final = killed
        self.follower.finish()
        self._line.close()

    def _reach(self, driver: subprocess.Popen[str], point: str, number: int) -> None:
        """Wait until every flow is at the point."""
        arrived: set[object] = set()

        def hear(words: dict[str, object]) -> None:
            if "point" in words:
                arrived.add(words["case"])

        if point in ("P4", "P5", END):
            batches = {case.name: case.batch_to_die_in(point, number) for case in CASES.values()}
            self._await(driver, lambda case: self._has_commit(case, batches[case.name]), hear)
        else:
            self._await(driver, lambda case: case.name in arrived, hear)
        if point == END:
            self.lost_workers = arrived

    def _look_into_the_middle(self) -> None:
        """Look for what is half-done. Records reach the broker a moment after they were handed to the client."""
        waiting = [case for case in CASES.values() if "P2" not in case.repeats]
        deadline = time.monotonic() + 20
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
        for name, case in CASES.items():
            self.outcomes[name, point] = Outcome(
                case.expected(self.stages[: number + 1]) - case.expected(self.stages[:number]),
                killed[name].since(before[name]),
                recovered[name].since(before[name]),
            )

    # ---- drivers ----

    @contextlib.contextmanager
    def _driver(self, point: str, number: int) -> Iterator[subprocess.Popen[str]]:
        """Start a driver, in a group of its own with its JVM; whatever happens, it is dead afterwards."""
        plan = replace(self.plan, cases=tuple(case.name for case in self._up()), point=point, stage=number)
        written = Path(plan.folder) / "plan.json"
        written.write_text(plan.encoded())
        command = [sys.executable, str(Path(__file__).with_name("crash_points.py")), str(written)]
        # Seven short lives: the JVM's second compiler and its parallel collector would cost more than they bring.
        quick = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"}
        armed = Path(plan.folder) / "armed"
        shutil.rmtree(armed, ignore_errors=True)
        armed.mkdir()
        here = {crash_armed.FOLDER: str(armed), crash_armed.PORT: str(self._line.port)}
        path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=quick | os.environ | here | path,
        ) as driver:
            try:
                yield driver
            finally:
                _kill(driver)

    def _await(
        self,
        driver: subprocess.Popen[str],
        done: Callable[[Case], bool],
        hear: Callable[[dict[str, object]], object] = lambda _words: None,
    ) -> None:
        """Wait until every flow that is up is done; errors of flows are kept, and those that stay down left out."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while waiting := [case.name for case in self._up() if not done(case)]:
            words = self._line.hear(0.5)
            if words is not None:
                hear(words)
                if "error" in words:
                    self.errors[str(words["case"])].append(str(words["error"]))
                    if words["down"]:
                        self._down.add(str(words["case"]))
            elif driver.poll() is not None:
                said = driver.stderr.read() if driver.stderr else ""
                raise AssertionError(f"The driver ended by itself, while {waiting} were waited for: {said[-2000:]}")
            elif time.monotonic() > deadline:
                raise AssertionError(
                    f"{waiting} did not come in {_PATIENCE_SECONDS:.0f} s; logs are in {self.plan.folder}"
                )

    def _end(self, driver: subprocess.Popen[str]) -> None:
        """Let a driver drain and end by itself."""
        _, said = driver.communicate(timeout=_PATIENCE_SECONDS)
        self.last_words = said if driver.returncode else ""

    # ---- sources, checkpoints and sinks ----

    def _give(self, number: int) -> None:
        """Hand a stage to the sources, as a whole."""
        events: list[Event] = self.stages[number]
        beside = self._inbox.with_name(f"{number}.json")
        beside.write_text("".join(event.encoded() + "\n" for event in events))
        beside.rename(self._inbox / beside.name)
        self._feed.begin_transaction()
        for event in events:
            self._feed.produce(TOPIC, event.encoded(), event.key)
        self._feed.commit_transaction()

    def _up(self) -> list[Case]:
        return [case for case in CASES.values() if case.name not in self._down]

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

    def _read(self, visible: int, before_middle: int | None = None) -> dict[str, Difference]:
        """Compare every sink with the model of so many stages; the places before a middle may be further."""
        earlier = self.stages[: visible if before_middle is None else before_middle]
        found = {}
        for name, case in CASES.items():
            expected, holds = case.expected(self.stages[:visible], earlier), held(case, self.plan.target)
            found[name] = Difference(holds - expected, expected - holds)
        return found


def _kill(driver: subprocess.Popen[str]) -> None:
    """Kill a driver, its JVM and its Python workers: the workers have a group of their own."""
    if driver.poll() is None:
        below = psutil.Process(driver.pid).children(recursive=True)
        os.killpg(driver.pid, signal.SIGKILL)
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(below, timeout=30)
        driver.wait()
