"""The local stack: its parts started, adopted, stopped and wiped, all below one folder.

    <home>/stack/lock              held by one `up`, `down` or `wipe` at a time
    <home>/stack/<part>/           everything of one part: see `headrace.stack.part.Place`
    <home>/stack/wiping-*/         data on its way out; removed by the next command if a wipe was killed

A part outlives the process that started it. So every `up` begins by looking for what is there already: a
healthy process of this folder is adopted, an unhealthy or dead one is cleared away, data is kept.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from headrace.stack import errors, process
from headrace.stack.connect import Connect
from headrace.stack.file_lock import hold
from headrace.stack.jars import JarCache, OnProgress
from headrace.stack.java import find_java
from headrace.stack.kafka import Kafka
from headrace.stack.mariadb import MariaDb
from headrace.stack.part import Means, Part, Place
from headrace.stack.postgres import Postgres

# In the order they start; they stop in the opposite one.
PARTS: tuple[Part, ...] = (Kafka(), Postgres(), MariaDb(), Connect())

# What `up` starts unless it is told otherwise.
DEFAULT_PARTS = ("kafka",)

OnEvent = Callable[[str, str], None]

# How a process says that another one was faster at a port it had been given.
PORT_LOST = re.compile(r"Address already in use|BindException")
STARTS = 4

# A log of warnings is small; one that is not is put aside once, so that it never fills a disk by restarts.
LOG_LIMIT_BYTES = 5 * 1024 * 1024


@dataclass(frozen=True)
class Running:
    """What `up` left running: the address of each part, by name."""

    addresses: dict[str, str]
    adopted: tuple[str, ...]

    @property
    def bootstrap(self) -> str:
        """The broker, as `kafka.bootstrap.servers` takes it."""
        return self.addresses["kafka"]


@dataclass(frozen=True)
class PartStatus:
    """One line of `headrace ps`.

    `crashed` means that there is a record of a start and no process: nobody stopped it, it ended.
    """

    name: str
    state: Literal["running", "stopped", "crashed"]
    pid: int | None
    address: str
    since: datetime | None
    log: Path
    data_bytes: int


class LocalStack:
    """The parts below one home. Any number of processes may use one home at once."""

    def __init__(self, home: Path, *, jars: JarCache | None = None, parts: Sequence[Part] = PARTS) -> None:
        self.folder = home.absolute() / "stack"
        self._jars = jars
        self._parts = {part.name: part for part in parts}

    def up(
        self,
        parts: Sequence[str] = DEFAULT_PARTS,
        on_event: OnEvent = lambda _part, _event: None,
        on_progress: OnProgress = lambda _jar, _done, _total: None,
    ) -> Running:
        """Bring the parts up and return when each has answered a real request.

        1. Find Java and fetch missing jars, before anything in the folder is touched.
        2. Hold the lock: a second `up` waits here and then adopts what the first one started.
        3. Per part: adopt it if healthy, otherwise clear away what is left of it and start it.

        `on_event(part, sentence)` and `on_progress(jar, done, total)` are for the eyes. Raises HR-4xx; no
        process that this call started is left when it does.
        """
        wanted = [self._parts[name] for name in self._names(parts)]
        java = find_java()
        jars = self._jars if self._jars is not None else JarCache()
        jars.sync(dict.fromkeys(conf for part in wanted for conf in part.confs), on_progress)
        addresses: dict[str, str] = {}
        adopted: list[str] = []
        waits = lambda: on_event("stack", "waiting for another headrace command on this folder")  # noqa: E731
        with errors.told_as_stack_errors(self.folder), hold(self.folder / "lock", on_wait=waits):
            self._finish_wipes()
            for part in wanted:
                place = self.place(part.name)
                place.folder.mkdir(exist_ok=True)
                if self._adopt(part, place, on_event):
                    adopted.append(part.name)
                else:
                    self._start(part, place, Means(java, jars, dict(addresses)), on_event)
                addresses[part.name] = part.address(place)
        return Running(addresses, tuple(adopted))

    def down(
        self, on_event: OnEvent = lambda _part, _event: None, *, parts: Sequence[str] | None = None
    ) -> tuple[str, ...]:
        """Stop every part, or only some, keep their data, and return the names of those that ran.

        Calling again does nothing.
        """
        if not self.folder.is_dir():
            return ()
        with errors.told_as_stack_errors(self.folder), hold(self.folder / "lock"):
            return self._stop_all(on_event, parts)

    def wipe(self, on_event: OnEvent = lambda _part, _event: None) -> tuple[str, ...]:
        """Stop every part and delete its folder, data included; return the names of those that had one.

        A folder is first moved aside in one step: killed halfway, a part is whole or gone, never in between.
        """
        if not self.folder.is_dir():
            return ()
        with errors.told_as_stack_errors(self.folder), hold(self.folder / "lock"):
            self._stop_all(on_event)
            wiped = []
            for part in self._parts.values():
                place = self.place(part.name)
                if place.folder.exists():
                    aside = Path(tempfile.mkdtemp(prefix="wiping-", dir=self.folder))
                    place.folder.replace(aside / part.name)
                    wiped.append(part.name)
                    on_event(part.name, "data deleted")
            self._finish_wipes()
            return tuple(wiped)

    def ps(self) -> list[PartStatus]:
        """Return the state of the default parts and of every other one that was started here.

        Changes nothing, takes no lock, and may be called at any time.
        """
        known = self._parts.values()
        return [
            self._status(part) for part in known if part.name in DEFAULT_PARTS or self.place(part.name).folder.exists()
        ]

    def place(self, name: str) -> Place:
        """Return where a part keeps everything, whether it was ever started or not."""
        return Place(self.folder / name)

    def _names(self, names: Sequence[str]) -> list[str]:
        for name in names:
            if name not in self._parts:
                raise errors.unknown(name, "part", self._parts)
        wanted = {*names, *(need for name in names for need in self._parts[name].needs)}
        return [name for name in self._parts if name in wanted]

    def _find(self, place: Place) -> process.Process | None:
        """Return the live process of a place: the recorded one, or one whose record was never written."""
        recorded = process.read(place.record)
        if recorded is not None and recorded.is_alive():
            return recorded
        return process.find_marked(place.mark)

    def _adopt(self, part: Part, place: Place, on_event: OnEvent) -> bool:
        """Take over a healthy process of this place, or clear away what is left of one."""
        found = self._find(place)
        if found is not None:
            # Just started by somebody who was killed since? Give it the time that a start takes.
            if part.healthy(place) or self._answers_in_time(part, place, found):
                found.write(place.record)
                on_event(part.name, f"already running at {part.address(place)} (pid {found.pid})")
                return True
            on_event(part.name, f"pid {found.pid} does not answer: stopping it")
            self._stop(part, place, found)
        elif place.record.exists():
            on_event(part.name, "ended without being stopped: starting it again, its data is kept")
        place.record.unlink(missing_ok=True)
        return False

    def _answers_in_time(self, part: Part, place: Place, found: process.Process) -> bool:
        deadline = found.started_at + part.patience
        while found.is_alive() and time.time() < deadline:
            if part.healthy(place):
                return True
            time.sleep(0.1)  # a process gives no event when it becomes healthy
        return False

    def _start(self, part: Part, place: Place, means: Means, on_event: OnEvent) -> None:
        """Start a part and wait for its first healthy answer; start again when it lost its port to another."""
        free = shutil.disk_usage(place.folder).free
        if free < errors.LEAST_FREE_BYTES:
            raise errors.disk_full(place.folder, free)
        for attempt in range(1, STARTS + 1):
            on_event(part.name, "preparing")
            command = part.prepare(place, means)
            _put_aside(place.log)
            said_before = place.log.stat().st_size if place.log.exists() else 0
            on_event(part.name, f"starting at {part.address(place)}")
            started = process.start(command, log=place.log, record=place.record)
            try:
                healthy = self._answers_in_time(part, place, started)
            except BaseException:
                self._stop(part, place, started)
                raise
            if healthy:
                on_event(part.name, f"running at {part.address(place)} (pid {started.pid})")
                return
            if started.is_alive():
                self._stop(part, place, started)
                raise errors.no_answer(part.name, part.address(place), part.patience, place.log)
            place.record.unlink(missing_ok=True)
            said = process.tail(place.log, lines=1000, since=said_before)
            if attempt == STARTS or not any(PORT_LOST.search(line) for line in said):
                # Frames of a stack trace name no cause; the lines between them do.
                words = [line for line in said if not line.lstrip().startswith(("at ", "... "))]
                raise errors.died(part.name, place.log, words[-12:])
            on_event(part.name, "its port was taken meanwhile: choosing another")

    def _stop_all(self, on_event: OnEvent, parts: Sequence[str] | None = None) -> tuple[str, ...]:
        stopped = []
        for part in reversed([each for each in self._parts.values() if parts is None or each.name in parts]):
            place = self.place(part.name)
            found = self._find(place)
            if found is not None:
                on_event(part.name, f"stopping (pid {found.pid})")
                self._stop(part, place, found)
                on_event(part.name, "stopped, data kept")
                stopped.append(part.name)
            place.record.unlink(missing_ok=True)
        return tuple(stopped)

    def _stop(self, part: Part, place: Place, found: process.Process) -> None:
        if not found.stop(ask=part.stop_signal):
            raise errors.will_not_stop(part.name, found.pid)
        place.record.unlink(missing_ok=True)

    def _finish_wipes(self) -> None:
        for leftover in self.folder.glob("wiping-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _status(self, part: Part) -> PartStatus:
        place = self.place(part.name)
        found = self._find(place)
        crashed = found is None and place.record.exists()
        return PartStatus(
            name=part.name,
            state="running" if found else "crashed" if crashed else "stopped",
            pid=found.pid if found else None,
            address=part.address(place),
            since=datetime.fromtimestamp(found.started_at, UTC) if found else None,
            log=place.log,
            data_bytes=_size(place.data),
        )


def _put_aside(log: Path) -> None:
    """Keep one older log of a part, once the current one has grown too large."""
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.replace(log.with_suffix(".log.1"))


def _size(folder: Path) -> int:
    """Add up what the files of a folder take on the disk, which for Kafka's sparse indexes is not their length."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except OSError:  # deleted while we look: segments come and go
            continue
    return total
