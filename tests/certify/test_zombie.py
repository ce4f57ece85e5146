"""A driver that was paused in the middle of a batch, and continues after another one has taken over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from zombie_run import BATCHES

from headrace.clients.kafka import read_topic
from headrace.clients.topics import create_topics
from headrace.flow.target import Target

if TYPE_CHECKING:
    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]

FLOWS = ("delta", "kafka", "files")
PATIENCE = 300


def started(role: str, name: str, folder: Path, bootstrap: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).with_name("zombie_run.py")), role, name, str(folder), bootstrap]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(driver: subprocess.Popen[str]) -> dict[str, str | None]:
    """Return the code that each flow ended with."""
    events, wrong = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 0, wrong
    codes = dict(json.loads(events.splitlines()[-1]))
    print(wrong)  # noqa: T201 - shown when the test fails
    return codes


def await_entered(folder: Path, driver: subprocess.Popen[str]) -> None:
    """Return when every flow of the driver is in the middle of its batch 1."""
    deadline = time.monotonic() + PATIENCE
    while not all((folder / f"entered-{flow}").exists() for flow in FLOWS):
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def in_delta(folder: Path) -> list[int]:
    rows = QueryBuilder().register("held", DeltaTable(str(folder / "lake" / "delta"))).execute("SELECT id FROM held")
    return sorted(rows.read_all()["id"].to_pylist())


def in_files(folder: Path) -> list[int]:
    """Return what the log of the folder names, as a reader does that honours it."""
    log = folder / "lake" / "files" / "_spark_metadata"
    lines = [line for entry in log.iterdir() if entry.name.isdigit() for line in entry.read_text().splitlines()[1:]]
    files = [json.loads(line)["path"].removeprefix("file://") for line in lines]
    return sorted(item for file in files for item in pq.ParquetFile(file).read()["id"].to_pylist())


def test_a_driver_that_was_paused_in_a_batch_commits_nothing_after_another_took_over(broker: Broker, tmp_path: Path):
    target = Target("test", lake="unused", checkpoints="unused", kafka={"bootstrap.servers": broker.bootstrap})
    create_topics(target.kafka, {"zombie": 2})
    (tmp_path / "lines").mkdir()
    for number, ids in enumerate(BATCHES):
        file = tmp_path / "lines" / f"{number}.txt"
        file.write_text("".join(f"{item}\n" for item in ids))
        # Spark takes files by their times, in milliseconds: two written within one come in any order.
        os.utime(file, (number, number))
    model = sorted(item for ids in BATCHES for item in ids)

    def in_topic() -> list[int]:
        return sorted(json.loads(message.value() or b"")["id"] for message in read_topic(target, "zombie"))

    first = started("first", "zombie", tmp_path, broker.bootstrap)
    processes = []
    try:
        await_entered(tmp_path, first)
        processes = [psutil.Process(first.pid), *psutil.Process(first.pid).children(recursive=True)]
        assert any("java" in process.name() for process in processes)
        for process in processes:
            process.suspend()

        assert ended(started("second", "zombie", tmp_path, broker.bootstrap)) == dict.fromkeys(FLOWS)
        assert in_delta(tmp_path) == in_topic() == in_files(tmp_path) == model

        (tmp_path / "go").touch()
        for process in processes:
            process.resume()
        assert ended(first) == dict.fromkeys(FLOWS, "HR-330")
        assert in_delta(tmp_path) == in_topic() == in_files(tmp_path) == model
    finally:
        for process in reversed(processes):
            if process.is_running():
                process.kill()
        first.kill()
        first.communicate()
