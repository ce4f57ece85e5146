"""One driver per checkpoint, with real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.clients.filesystem import LocalFiles
from headrace.errors import ConfigError, RecoveryError
from headrace.flow.target import Target
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.lease import lease

# Takes the lease, says so, and holds it until its standard input ends.
HOLDER = """
import sys
from headrace.flow.target import Target
from headrace.runtime.checkpoint import Checkpoint
from headrace.clients.filesystem import LocalFiles
from headrace.runtime.lease import lease

target = Target("dev", lake="unused", checkpoints=sys.argv[1])
with lease(Checkpoint.of("rides", target, LocalFiles())):
    print("held", flush=True)
    sys.stdin.read()
"""


def checkpoint(root: Path | str, flow: str = "rides") -> Checkpoint:
    return Checkpoint.of(flow, Target("dev", lake="unused", checkpoints=str(root)), LocalFiles())


@pytest.fixture
def another_driver(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_second_process_is_refused_and_told_who_holds_the_checkpoint(
    tmp_path: Path, another_driver: Callable[[], subprocess.Popen[str]]
) -> None:
    holder = another_driver()
    with pytest.raises(RecoveryError) as refused, lease(checkpoint(tmp_path)):
        pytest.fail("two drivers hold one checkpoint")
    assert refused.value.code == "HR-302"
    assert f'"pid": {holder.pid}' in refused.value.why
    assert str(tmp_path / "rides") in refused.value.why


def test_a_driver_that_was_killed_holds_nothing(
    tmp_path: Path, another_driver: Callable[[], subprocess.Popen[str]]
) -> None:
    holder = another_driver()
    holder.kill()
    holder.wait()
    with lease(checkpoint(tmp_path)):
        held = json.loads((tmp_path / "rides" / "headrace" / "lease").read_text())
    assert held["pid"] != holder.pid


def test_a_process_that_was_refused_leaves_the_note_of_the_holder_alone(
    tmp_path: Path, another_driver: Callable[[], subprocess.Popen[str]]
) -> None:
    holder = another_driver()
    for _ in range(2):
        with pytest.raises(RecoveryError, match=str(holder.pid)), lease(checkpoint(tmp_path)):
            pytest.fail("two drivers hold one checkpoint")


def test_a_second_thread_of_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with lease(checkpoint(tmp_path)), pytest.raises(RecoveryError), lease(checkpoint(tmp_path)):
        pytest.fail("one checkpoint is held twice")


def test_a_lease_ends_with_its_block_also_when_that_raises(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lease(checkpoint(tmp_path)):
        _ = 1 / 0
    with lease(checkpoint(tmp_path)):
        pass


def test_two_flows_do_not_keep_each_other_waiting(tmp_path: Path) -> None:
    with lease(checkpoint(tmp_path, "rides")), lease(checkpoint(tmp_path, "drivers")):
        pass


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Not a directory") as refused, lease(checkpoint(tmp_path / "file")):
        pytest.fail("the lease was given")
    assert refused.value.code == "HR-111"


def test_a_root_on_other_storage_is_not_locked_and_makes_no_folder_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with lease(checkpoint("s3a://bucket/checkpoints")), lease(checkpoint("s3a://bucket/checkpoints")):
        pass
    assert list(tmp_path.iterdir()) == []
