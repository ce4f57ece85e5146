"""One writing process per local folder, with real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import RecoveryError
from headrace.flow.flow import Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.inputs import Input
from headrace.flow.levers import OutputMode
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Sink
from headrace.flow.target import Lease, Target
from headrace.runtime.checkpoint.folder_lock import lock_folder, lock_sink_folders
from headrace.sinks.delta.write import DeltaAppend
from headrace.sinks.fan_out import FanOut, Filtered
from headrace.sinks.files import FileSink
from headrace.sources.rate import RateSource

HOLDER = """
import sys
from headrace.runtime.checkpoint.folder_lock import lock_folder

with lock_folder(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def flow(*sinks: Sink) -> Flow:
    return Flow("rides", Input(RateSource(1)), lambda rows: rows, FanOut(*sinks))


def target(root: Path, **more: Lease) -> Target:
    return Target("dev", lake=str(root), checkpoints="unused", **more)


@pytest.mark.parametrize(
    "sink", [DeltaAppend("gold/rides"), FileSink("gold/rides"), Filtered("true", FileSink("gold/rides"))]
)
def test_a_second_process_is_refused_until_the_first_one_ends(
    tmp_path: Path, sink: DeltaAppend | FileSink | Filtered
) -> None:
    command = [sys.executable, "-c", HOLDER, f"file:{tmp_path}/gold/rides"]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(RecoveryError, match=rf"gold/rides .*{holder.pid}") as refused,
            lock_sink_folders(flow(DeltaAppend("gold/other"), sink), target(tmp_path)),
        ):
            pytest.fail("two processes write one folder")
        assert refused.value.code == "HR-337"
    finally:
        holder.kill()
        holder.communicate()
    with lock_sink_folders(flow(sink), target(tmp_path)):
        pass


def test_the_flows_of_one_process_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with lock_folder(str(tmp_path / "rides")):
        with lock_folder(str(tmp_path / "link" / "rides")):
            pass
        taken = subprocess.run(
            [sys.executable, "-c", HOLDER, str(tmp_path / "rides")], capture_output=True, text=True, check=False
        )
        assert "HR-337" in taken.stderr, "the end of one flow took the lock from the other"


class UsersSink:
    """A sink that has a method `folder` for a purpose of its own, and does not inherit `WritesFolder`."""

    name = "users"
    guarantee = Guarantee.BEST_EFFORT
    output_modes = frozenset(OutputMode)

    def folder(self, target: Target) -> str:
        raise AssertionError("only a sink that inherits WritesFolder is asked for its folder")

    def preflight(self, target: Target) -> None: ...

    def prepare(self, spark: object, target: Target, cache: RunCache) -> None: ...

    def write(self, rows: object, batch: object) -> None: ...


def test_a_sink_with_a_method_folder_that_does_not_inherit_the_capability_is_not_locked(tmp_path: Path) -> None:
    with lock_sink_folders(flow(UsersSink()), target(tmp_path)):
        assert list(tmp_path.iterdir()) == []


def test_folders_that_machines_share_and_other_storage_are_not_locked(tmp_path: Path) -> None:
    with lock_sink_folders(flow(DeltaAppend("gold/rides")), target(tmp_path, lease=Lease("record"))):
        assert list(tmp_path.iterdir()) == []
    with lock_folder("s3a://bucket/gold/rides"):
        pass
