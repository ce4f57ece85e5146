"""What a local part is: the few answers that differ between a broker, a database and a connector.

To add one, write a file with a frozen class that gives these answers, add its jars to ivy.xml if it has
any, and list it in `PARTS` of `headrace.stack.local`. Starting, adopting, stopping, recording, waiting for
health and cleaning up after a crash are the stack's work and the same for every part.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.stack.jars import JarCache
from headrace.stack.java import Java


@dataclass(frozen=True)
class Place:
    """Where one part keeps everything: `<home>/stack/<part>`. Deleting the folder forgets the part."""

    folder: Path

    @property
    def data(self) -> Path:
        """What `down` keeps and `wipe` deletes."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """Everything the process says."""
        return self.folder / f"{self.folder.name}.log"

    @property
    def record(self) -> Path:
        """The process record; there from a start until a clean stop."""
        return self.folder / "process.json"

    @property
    def mark(self) -> str:
        """The end of an argument that every part puts on its command line, by which a lost process is found."""
        return f"headrace.part={self.folder.resolve()}"


@dataclass(frozen=True)
class Means:
    """What a part may use to prepare its start.

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
        """The beginning of the command of a part that runs on Java, with the options that the environment gives."""
        return [str(self.java.binary), *shlex.split(os.environ.get("HEADRACE_PARTS_JAVA_OPTS", ""))]


class Part(Protocol):
    """One local part. Instances are stateless: everything that lasts is in the place."""

    @property
    def name(self) -> str:
        """The word on the command line, and the name of the folder."""
        ...

    @property
    def confs(self) -> tuple[str, ...]:
        """The jar configurations it needs; fetched before `prepare` is called."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """The parts that have to run before it, by name; they are started with it."""
        ...

    @property
    def patience(self) -> float:
        """Seconds from the start of the process to its first healthy answer, at the very worst."""
        ...

    @property
    def stop_signal(self) -> signal.Signals:
        """What asks the process to end in order, and soon: with clients still connected."""
        ...

    def prepare(self, place: Place, means: Means) -> list[str]:
        """Choose ports, write settings, make the data folder, and return the command, `place.mark` in it.

        Called under the lock of the stack, with no process of this part alive. May be called again at once
        when the process lost a race for its port. Interrupted anywhere, it can be called again.
        """
        ...

    def address(self, place: Place) -> str:
        """Return where it listens, as clients write it, or an empty string before the first `prepare`."""
        ...

    def healthy(self, place: Place) -> bool:
        """Whether it answers a real request, and is the one of this place. Never raises, never waits long."""
        ...
