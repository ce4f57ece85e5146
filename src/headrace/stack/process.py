"""A long-lived child process that outlives its parent on purpose, and is always found again.

A part runs in a session of its own: Ctrl-C in the terminal reaches the flows, which drain, and not the
broker they drain into. So the parent may end, or be killed, while the child lives on. Two things find it:

1. the record, a small JSON file with pid, start time and command, written in one step after the start;
2. the mark, an argument in the command that names the folder: it finds a child whose parent was killed
   between the start and the record.

A pid alone is never believed: the system hands it out again. Nothing here knows what the child is.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

# The kernel counts a start in ticks since boot; the clock that is added to them may be corrected meanwhile.
START_TIME_TOLERANCE_SECONDS = 2.0

# Kafka writes its last segments and a clean mark in about 1 s; 20 s is for a disk that is busy.
GRACE_SECONDS = 20.0

# Children of this very process have to be waited for, or they stay as zombies after their end.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Process:
    """One started process, as its record describes it."""

    pid: int
    started_at: float
    command: tuple[str, ...]

    def is_alive(self) -> bool:
        """Whether this very process still runs: the same pid, the same start, and not a zombie."""
        child = _children.get(self.pid)
        if child is not None and child.poll() is not None:
            del _children[self.pid]
        try:
            found = psutil.Process(self.pid)
            if abs(found.create_time() - self.started_at) > START_TIME_TOLERANCE_SECONDS:
                return False
            return found.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def stop(self, grace: float = GRACE_SECONDS, ask: signal.Signals = signal.SIGTERM) -> bool:
        """Ask with a signal, insist with SIGKILL after the grace; return whether the process is gone.

        Does nothing to a process that took over the pid. Called under the lock of the stack.
        """
        for sign, patience in ((ask, grace), (signal.SIGKILL, 5.0)):
            if not self.is_alive():
                return True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, sign)
            deadline = time.monotonic() + patience
            while self.is_alive() and time.monotonic() < deadline:
                time.sleep(0.05)  # only a parent can wait for an exit, and the parent may be long gone
        return not self.is_alive()

    def write(self, path: Path) -> None:
        """Write the record in one step: a reader sees the old one, or the new one, whole."""
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self), indent=2) + "\n")
        fresh.replace(path)


def read(path: Path) -> Process | None:
    """Return the process of a record, or None where there is none that can be read."""
    try:
        record = json.loads(path.read_text())
        return Process(int(record["pid"]), float(record["started_at"]), tuple(record["command"]))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def start(command: Sequence[str], *, log: Path, record: Path, env: Mapping[str, str] | None = None) -> Process:
    """Start a process in a session of its own, its output appended to `log`, and write its record.

    Raises `OSError` when the command cannot be run. The child inherits no descriptor but its log.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(  # noqa: S603  commands are built by parts, never from input
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    _children[child.pid] = child
    try:
        process = Process(child.pid, psutil.Process(child.pid).create_time(), tuple(command))
        process.write(record)
    except BaseException:
        child.kill()
        child.wait()
        raise
    return process


def find_marked(mark: str) -> Process | None:
    """Return the oldest live process with an argument that ends in `mark`, or None.

    Called when the record names no live process. Looks at every process: tens of milliseconds. Only those of this user
    count; root also finds the one that it started under another user. The oldest, because a database forks: its
    children carry its command line for a moment.
    """
    own = os.getuid()
    marked = []
    for found in psutil.process_iter():
        try:
            command = tuple(found.cmdline())
            ours = own in (0, found.uids().real) and any(argument.endswith(mark) for argument in command)
            if ours and found.status() != psutil.STATUS_ZOMBIE:
                marked.append(Process(found.pid, found.create_time(), command))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return min(marked, key=lambda each: each.started_at, default=None)


def tail(log: Path, lines: int = 15, since: int = 0) -> list[str]:
    """Return the last lines of a log after its first `since` bytes, or none where there is no log."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(since, size - 65_536))  # several stack traces fit; a log of gigabytes is not read
            text = stream.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()][-lines:]
