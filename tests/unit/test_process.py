"""A child that is started, found again, and stopped; and one that only looks like it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from headrace.stack import process
from headrace.stack.process import Process

WAITS = "import signal; print('ready', flush=True); signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    left = process.read_record(tmp_path / "process.json")
    if left is not None:
        left.stop(grace=0)


def start(folder: Path, code: str = WAITS, *arguments: str) -> Process:
    """Start a child and return once it has said that it is ready."""
    os.mkfifo(folder / "fifo")
    command = [sys.executable, "-c", code, *arguments]
    reader = subprocess.Popen(["cat", str(folder / "fifo")], stdout=subprocess.PIPE)
    started = process.start(command, log=folder / "fifo", record=folder / "process.json")
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"ready\n"
    reader.kill()
    reader.communicate()
    return started


def test_a_started_process_is_alive_and_its_record_finds_it_again(folder: Path) -> None:
    started = start(folder)
    assert started.is_alive()
    assert process.read_record(folder / "process.json") == started


def test_it_runs_in_its_own_session_without_ctrl_c(folder: Path) -> None:
    started = start(folder)
    assert os.getsid(started.pid) == started.pid != os.getsid(0)


def test_a_reused_pid_is_neither_alive_nor_stopped(folder: Path) -> None:
    started = start(folder)
    impostor = replace(started, started_at=started.started_at - 60)
    assert not impostor.is_alive()
    assert impostor.stop()
    assert started.is_alive()


def test_stop_ends_it_with_sigterm(folder: Path) -> None:
    started = start(folder)
    assert started.stop()
    assert not psutil.pid_exists(started.pid)


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_period(folder: Path) -> None:
    started = start(folder, STUBBORN)
    assert started.stop(grace=0.2)
    assert not started.is_alive()


def test_a_killed_child_is_not_alive_before_it_is_waited_for(folder: Path) -> None:
    started = start(folder)
    os.kill(started.pid, signal.SIGKILL)
    psutil.Process(started.pid).wait(timeout=60)
    assert not started.is_alive()


def test_a_child_without_a_record_is_located_by_its_mark(folder: Path) -> None:
    mark = f"headrace.part={folder}"
    started = start(folder, WAITS, f"-D{mark}")
    assert process.find_by_marker(mark) == started
    assert process.find_by_marker(mark + "/other") is None


def test_an_invalid_record_is_ignored(tmp_path: Path) -> None:
    record = tmp_path / "process.json"
    for text in ("", "{", "[]", '{"pid": 1}', '{"pid": "x", "started_at": 0, "command": []}'):
        record.write_text(text)
        assert process.read_record(record) is None
    assert process.read_record(tmp_path / "none.json") is None


def test_the_tail_of_a_log_is_its_last_lines_since_a_point(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(f"line {number}" for number in range(100_000)))
    assert process.tail(log, 2) == ["line 99998", "line 99999"]
    log.write_text("before\nafter\n")
    assert process.tail(log, since=len("before\n")) == ["after"]
    assert process.tail(tmp_path / "none") == []
