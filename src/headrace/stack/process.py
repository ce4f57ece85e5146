"""Long-lived child processes that outlive their parent on purpose and can always be found again.

A part runs in its own session: Ctrl-C in the terminal reaches the flows, which drain, but not the broker
that they use. So the parent may end, or be killed, while the child keeps running. It is found by:

1. the record, a small JSON file with pid, start time and command, written in one step after the start;
2. the marker, an argument in the command that names the folder: it finds a child whose parent was killed
   between the start and the record.

A pid alone is not enough: the system reuses pids. Nothing here depends on what the child does.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

# The kernel counts a start in ticks since boot; the clock that is added to them may be corrected in the meantime.
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
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started_at) > START_TIME_TOLERANCE_SECONDS:
                return False
            return process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def stop(self, grace: float = GRACE_SECONDS, stop_signal: signal.Signals = signal.SIGTERM) -> bool:
        """Send a signal, then SIGKILL after the grace period; return whether the process ended.

        Does nothing to a process that took over the pid. Called under the lock of the stack.
        """
        for sign, patience in ((stop_signal, grace), (signal.SIGKILL, 5.0)):
            if not self.is_alive():
                return True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, sign)
            deadline = time.monotonic() + patience
            while self.is_alive() and time.monotonic() < deadline:
                time.sleep(0.05)  # only a parent can wait for an exit, and the parent may be long gone
        return not self.is_alive()

    def write(self, path: Path) -> None:
        """Write the record atomically: a reader sees either the old or the new one."""
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self), indent=2) + "\n")
        fresh.replace(path)


def read_record(path: Path) -> Process | None:
    """Return the process of a record, or None if there is no readable record."""
    try:
        record = json.loads(path.read_text())
        return Process(int(record["pid"]), float(record["started_at"]), tuple(record["command"]))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def start(command: Sequence[str], *, log: Path, record: Path) -> Process:
    """Start a process in its own session, append its output to `log`, and write its record.

    Raises `OSError` when the command cannot be run. The child inherits no descriptor but its log.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(  # noqa: S603  commands are built by parts, never from input
            list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
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


def find_by_marker(marker: str) -> Process | None:
    """Return the oldest live process with an argument that ends in `marker`, or None.

    Called when the record names no live process. Looks at every process: tens of milliseconds. Only those of this user
    count; root also finds the one that it started under another user. The oldest, because a database forks: its
    children carry its command line for a moment.
    """
    own = os.getuid()
    matches = []
    for candidate in psutil.process_iter():
        try:
            command = tuple(candidate.cmdline())
            ours = own in (0, candidate.uids().real) and any(argument.endswith(marker) for argument in command)
            if ours and candidate.status() != psutil.STATUS_ZOMBIE:
                matches.append(Process(candidate.pid, candidate.create_time(), command))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return min(matches, key=lambda match: match.started_at, default=None)


def tail(log: Path, lines: int = 15, since: int = 0) -> list[str]:
    """Return the last lines of a log after its first `since` bytes, or an empty list without a log."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(since, size - 65_536))  # several stack traces fit; a log of gigabytes is not read
            text = stream.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()][-lines:]
