"""The local stack: its parts started, adopted, stopped and wiped, all below one folder.

    <home>/stack/lock              the lock of a running `up`, `down` or `wipe`
    <home>/stack/<part>/           the files of one part: see `headrace.stack.part.PartFiles`
    <home>/stack/wiping-*/         data that is being deleted; removed by the next command if a wipe was killed

A part outlives the process that started it. So every `up` first looks for existing processes: a healthy
one of this folder is adopted, an unhealthy or dead one is cleaned up, and data is kept.
"""

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from headrace.errors import StackError
from headrace.flow.target import Database, KafkaConnect
from headrace.stack import errors, mariadb, postgres, process
from headrace.stack.connect import ConnectService, secrets_folder
from headrace.stack.file_lock import file_lock
from headrace.stack.jars import JarCache, OnProgress
from headrace.stack.java import find_java
from headrace.stack.kafka import KafkaService
from headrace.stack.mariadb import MariaDbPart
from headrace.stack.part import LocalService, PartFiles, StartContext
from headrace.stack.postgres import PostgresService

# In start order; parts stop in reverse order.
PARTS: tuple[LocalService, ...] = (KafkaService(), PostgresService(), MariaDbPart(), ConnectService())

# What `up` starts by default.
DEFAULT_PARTS = ("kafka",)

OnEvent = Callable[[str, str], None]

# Log lines of a process whose port was taken by another one in the meantime.
PORT_LOST = re.compile(r"Address already in use|BindException")
STARTS = 4

# Logs contain warnings only and stay small. A larger one is rotated once, so that restarts do not fill the disk.
LOG_LIMIT_BYTES = 5 * 1024 * 1024


@dataclass(frozen=True)
class RunningParts:
    """The parts that run after `up`: their addresses by name, and which of them were running before."""

    addresses: dict[str, str]
    adopted: tuple[str, ...]

    @property
    def bootstrap(self) -> str:
        """The broker address for `kafka.bootstrap.servers`."""
        return self.addresses["kafka"]


@dataclass(frozen=True)
class PartStatus:
    """One line of `headrace ps`.

    `crashed` means that there is a record of a start but no process: it ended without being stopped.
    """

    name: str
    state: Literal["running", "stopped", "crashed"]
    pid: int | None
    address: str
    since: datetime | None
    log: Path
    data_bytes: int


class LocalStack:
    """The parts in one home folder. Several processes may use one home folder concurrently."""

    def __init__(self, home: Path, *, parts: Sequence[LocalService] = PARTS) -> None:
        self.folder = home.absolute() / "stack"
        self._parts = {part.name: part for part in parts}

    def up(
        self,
        parts: Sequence[str] = DEFAULT_PARTS,
        on_event: OnEvent = lambda _part, _event: None,
        on_progress: OnProgress = lambda _jar, _done, _total: None,
    ) -> RunningParts:
        """Start the parts and return when each has answered a real request.

        1. Find Java and fetch missing jars, before anything in the folder is touched.
        2. Take the lock: a second `up` waits here and then adopts what the first one started.
        3. Per part: adopt it if healthy, otherwise clean up and start it.

        `on_event(part, sentence)` and `on_progress(jar, done, total)` report progress. Raises HR-4xx; then no
        process that this call started is left running.
        """
        selected = [self._parts[name] for name in self._names(parts)]
        java = find_java()
        jars = JarCache()
        jars.sync(dict.fromkeys(conf for part in selected for conf in part.jar_configurations), on_progress)
        addresses: dict[str, str] = {}
        adopted: list[str] = []
        on_wait = lambda: on_event("stack", "waiting for another headrace command on this folder")  # noqa: E731
        with errors.as_stack_errors(self.folder), file_lock(self.folder / "lock", on_wait=on_wait):
            self._finish_wipes()
            for part in selected:
                files = self.files(part.name)
                files.folder.mkdir(exist_ok=True)
                if self._adopt(part, files, on_event):
                    adopted.append(part.name)
                else:
                    self._start(part, files, StartContext(java, jars, dict(addresses)), on_event)
                addresses[part.name] = part.address(files)
        return RunningParts(addresses, tuple(adopted))

    def down(
        self, on_event: OnEvent = lambda _part, _event: None, *, parts: Sequence[str] | None = None
    ) -> tuple[str, ...]:
        """Stop all parts, or only some, keep their data, and return the names of those that ran.

        Calling again does nothing.
        """
        if not self.folder.is_dir():
            return ()
        with errors.as_stack_errors(self.folder), file_lock(self.folder / "lock"):
            return self._stop_all(on_event, parts)

    def database(self, part: str) -> Database | None:
        """Return the connection of a part that is a database, or None for another part."""
        databases = {"postgres": postgres.database, "mariadb": mariadb.database}
        return databases[part](self.files(part)) if part in databases else None

    def connect(self, url: str) -> KafkaConnect:
        """Return Kafka Connect at its address, with the folder of its secrets."""
        return KafkaConnect(url, secrets=secrets_folder(self.files("connect")))

    def wipe(self, on_event: OnEvent = lambda _part, _event: None) -> tuple[str, ...]:
        """Stop every part and delete its folder, data included; return the names of those that had one.

        A folder is first moved in one step: if this is interrupted, a part is either complete or deleted.
        """
        if not self.folder.is_dir():
            return ()
        with errors.as_stack_errors(self.folder), file_lock(self.folder / "lock"):
            self._stop_all(on_event)
            wiped = []
            for part in self._parts.values():
                files = self.files(part.name)
                if files.folder.exists():
                    trash = Path(tempfile.mkdtemp(prefix="wiping-", dir=self.folder))
                    files.folder.replace(trash / part.name)
                    wiped.append(part.name)
                    on_event(part.name, "data deleted")
            self._finish_wipes()
            return tuple(wiped)

    def ps(self) -> list[PartStatus]:
        """Return the state of the default parts and of every other one that was started here.

        Changes nothing, takes no lock, and may be called at any time.
        """
        return [
            self._status(part)
            for part in self._parts.values()
            if part.name in DEFAULT_PARTS or self.files(part.name).folder.exists()
        ]

    def files(self, name: str) -> PartFiles:
        """Return the files of a part, whether it was ever started or not."""
        return PartFiles(self.folder / name)

    def _names(self, names: Sequence[str]) -> list[str]:
        for name in names:
            if name not in self._parts:
                raise errors.unknown_name(name, "part", self._parts)
        selected = {*names, *(need for name in names for need in self._parts[name].depends_on)}
        return [name for name in self._parts if name in selected]

    def _find(self, files: PartFiles) -> process.Process | None:
        """Return the live process of a part: the recorded one, or one whose record was never written."""
        recorded = process.read_record(files.record)
        if recorded is not None and recorded.is_alive():
            return recorded
        return process.find_by_marker(files.process_marker)

    def _adopt(self, part: LocalService, files: PartFiles, on_event: OnEvent) -> bool:
        """Take over a healthy process of this part, or clean up an unhealthy one."""
        running = self._find(files)
        if running is not None:
            # It may have just been started by a process that was killed since: give it time to start.
            if part.healthy(files) or self._answers_in_time(part, files, running):
                running.write(files.record)
                on_event(part.name, f"already running at {part.address(files)} (pid {running.pid})")
                return True
            on_event(part.name, f"pid {running.pid} does not answer: stopping it")
            self._stop(part, files, running)
        elif files.record.exists():
            on_event(part.name, "ended without being stopped: restarting it, its data is kept")
        files.record.unlink(missing_ok=True)
        return False

    def _answers_in_time(self, part: LocalService, files: PartFiles, running: process.Process) -> bool:
        deadline = running.started_at + part.startup_timeout_seconds
        while running.is_alive() and time.time() < deadline:
            if part.healthy(files):
                return True
            time.sleep(0.1)  # a process gives no event when it becomes healthy
        return False

    def _start(self, part: LocalService, files: PartFiles, context: StartContext, on_event: OnEvent) -> None:
        """Start a part and wait for its first healthy answer; start again when it lost its port to another."""
        free_bytes = shutil.disk_usage(files.folder).free
        if free_bytes < errors.LEAST_FREE_BYTES:
            raise errors.disk_full(files.folder, free_bytes)
        for attempt in range(1, STARTS + 1):
            on_event(part.name, "preparing")
            command = part.prepare(files, context)
            log_size = files.log.stat().st_size if files.log.exists() else 0
            if log_size > LOG_LIMIT_BYTES:
                # One older log is kept.
                files.log.replace(files.log.with_suffix(".log.1"))
                log_size = 0
            on_event(part.name, f"starting at {part.address(files)}")
            child = process.start(command, log=files.log, record=files.record)
            try:
                healthy = self._answers_in_time(part, files, child)
            except BaseException:
                self._stop(part, files, child)
                raise
            if healthy:
                on_event(part.name, f"running at {part.address(files)} (pid {child.pid})")
                return
            if child.is_alive():
                self._stop(part, files, child)
                raise StackError(
                    f"{part.name} at {part.address(files)} did not answer within {part.startup_timeout_seconds:.0f} s.",
                    why="The process was alive but never healthy; the machine may be overloaded.",
                    state="The process was stopped again; its data is kept.",
                    remedy=f"Read {files.log} and run `headrace up` again.",
                    code="HR-409",
                )
            files.record.unlink(missing_ok=True)
            output = process.tail(files.log, lines=1000, since=log_size)
            if attempt == STARTS or not any(PORT_LOST.search(line) for line in output):
                # Stack frames are not the cause; the lines between them are.
                cause = [line for line in output if not line.lstrip().startswith(("at ", "... "))]
                raise errors.start_failed(part.name, files.log, cause)
            on_event(part.name, "its port was taken in the meantime: choosing another")

    def _stop_all(self, on_event: OnEvent, parts: Sequence[str] | None = None) -> tuple[str, ...]:
        stopped = []
        for part in reversed([part for part in self._parts.values() if parts is None or part.name in parts]):
            files = self.files(part.name)
            running = self._find(files)
            if running is not None:
                on_event(part.name, f"stopping (pid {running.pid})")
                self._stop(part, files, running)
                on_event(part.name, "stopped, data kept")
                stopped.append(part.name)
            files.record.unlink(missing_ok=True)
        return tuple(stopped)

    def _stop(self, part: LocalService, files: PartFiles, running: process.Process) -> None:
        if not running.stop(stop_signal=part.stop_signal):
            raise StackError(
                f"{part.name} (pid {running.pid}) does not stop.",
                why="It ignored SIGTERM and SIGKILL: it hangs in the kernel, or belongs to another user.",
                state="Its data is kept.",
                remedy=f"Look at it with `ps -fp {running.pid}`, then run `headrace down` again.",
                code="HR-410",
            )
        files.record.unlink(missing_ok=True)

    def _finish_wipes(self) -> None:
        for leftover in self.folder.glob("wiping-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _status(self, part: LocalService) -> PartStatus:
        files = self.files(part.name)
        running = self._find(files)
        crashed = running is None and files.record.exists()
        return PartStatus(
            name=part.name,
            state="running" if running else "crashed" if crashed else "stopped",
            pid=running.pid if running else None,
            address=part.address(files),
            since=datetime.fromtimestamp(running.started_at, UTC) if running else None,
            log=files.log,
            data_bytes=_size(files.data),
        )


def _size(folder: Path) -> int:
    """Return the disk usage of a folder. For Kafka's sparse indexes it differs from the file lengths."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except OSError:  # deleted during the walk: Kafka deletes segments
            continue
    return total
