"""The interface of a local part: what differs between a broker, a database and Kafka Connect.

To add one, write a module with a frozen subclass of `LocalService`, add its jars to ivy.xml if it has
any, and list it in `PARTS` of `headrace.stack.local`. `LocalStack` starts, adopts, stops and records parts,
waits until they are healthy and cleans up after a crash; this is the same for every part.
"""

import os
import shlex
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.stack import ports
from headrace.stack.jars import JarCache
from headrace.stack.java import Java


@dataclass(frozen=True)
class PartFiles:
    """The files of one part, in `<home>/stack/<part>`. Deleting the folder deletes the part."""

    folder: Path

    @property
    def data(self) -> Path:
        """The data folder, which `down` keeps and `wipe` deletes."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """The log with all output of the process."""
        return self.folder / f"{self.folder.name}.log"

    @property
    def record(self) -> Path:
        """The process record. It exists from a start until a clean stop."""
        return self.folder / "process.json"

    @property
    def ports(self) -> Path:
        """The file with the ports of the last start."""
        return self.folder / "ports.json"

    @property
    def process_marker(self) -> str:
        """The end of a command line argument of every part, by which a process without a record is found."""
        return f"headrace.part={self.folder.resolve()}"


@dataclass(frozen=True)
class StartContext:
    """What a part needs to prepare its start.

    | field | meaning                                                                     |
    |-------|-----------------------------------------------------------------------------|
    | java  | the machine's Java                                                          |
    | jars  | verified jars are taken from here                                           |
    | parts | addresses of the parts that run already, by name, in the order of `PARTS`    |
    """

    java: Java
    jars: JarCache
    parts: Mapping[str, str]

    @property
    def jvm(self) -> list[str]:
        """The start of a Java command, with the options of HEADRACE_PARTS_JAVA_OPTS."""
        return [str(self.java.binary), *shlex.split(os.environ.get("HEADRACE_PARTS_JAVA_OPTS", ""))]


@dataclass(frozen=True)
class LocalService(ABC):
    """One local part. Instances are stateless: all state is in its files.

    | field                   | meaning                                                                                |
    |-------------------------|----------------------------------------------------------------------------------------|
    | name                    | the name of the part on the command line and of its folder                             |
    | startup_timeout_seconds | seconds from the start of the process to its first healthy answer, at the very worst   |
    | jar_configurations      | the jar configurations it needs; fetched before `prepare` is called                    |
    | depends_on              | the parts that have to run before it, by name; they are started with it                |
    | stop_signal             | the signal for a quick graceful shutdown, even while clients are connected             |
    """

    name: str
    startup_timeout_seconds: float
    jar_configurations: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    stop_signal: signal.Signals = signal.SIGTERM

    @abstractmethod
    def prepare(self, files: PartFiles, context: StartContext) -> list[str]:
        """Choose ports, write settings, make the data folder, and return the command with `files.process_marker`.

        Called under the lock of the stack, with no process of this part alive. May be called again immediately
        when the process lost a race for its port. Interrupted anywhere, it can be called again.
        """

    def port(self, files: PartFiles) -> int | None:
        """Return the port for clients, or None before the first `prepare`."""
        return ports.previous_ports(files.ports).get(self.name)

    def address(self, files: PartFiles) -> str:
        """Return where it listens, as clients write it, or an empty string before the first `prepare`."""
        port = self.port(files)
        return f"{ports.LOOPBACK}:{port}" if port else ""

    def healthy(self, files: PartFiles) -> bool:
        """Whether it answers a real request and runs on these files. Never raises, never blocks long."""
        port = self.port(files)
        # A client that meets a closed port retries for seconds: check the port first.
        return port is not None and not ports.is_free(port) and self.answers(files)

    @abstractmethod
    def answers(self, files: PartFiles) -> bool:
        """Whether the process that listens on the port answers a real request and runs on these files."""


def run_program(command: list[str], text: str = "") -> tuple[bool, list[str]]:
    """Run a program with a text as its input; return whether it succeeded, and its output."""
    completed = subprocess.run(command, input=text, capture_output=True, text=True, check=False)  # noqa: S603
    return completed.returncode == 0, (completed.stdout + completed.stderr).splitlines()
