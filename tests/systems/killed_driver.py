"""Flows of a test module in a process of their own, which dies by SIGKILL once a flow has committed a batch."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from headrace.flow.target import Target
from headrace.operate.run import open_application
from headrace.runtime.events import BatchCommitted, Event


def target_for(folder: Path, bootstrap: str) -> Target:
    """Return where the flows of a test run, in its own process and in this one."""
    return Target(
        name="test",
        lake=str(folder / "lake"),
        checkpoints=str(folder / "checkpoints"),
        master="local[2]",
        kafka={"bootstrap.servers": bootstrap},
    )


def run_until_killed(module: str, name: str, target: Target, *, flow: str, batch: int) -> None:
    """Run `flows_of(name)` of a test module elsewhere, and kill the driver and its JVM when a batch is committed.

    What the other flows, and the next batch of this one, are at then is cut off.
    """
    folder = str(Path(target.lake).parent)
    command = [sys.executable, __file__, module, name, folder, target.kafka["bootstrap.servers"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as driver:
        assert driver.stdout is not None
        reached = (json.loads(line) for line in driver.stdout)
        seen = any(event == {"flow": flow, "batch": batch} for event in reached)
        # The JVM is a child in the same process group.
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert seen, f"{flow} ended before batch {batch}: {Path(folder) / 'spark.log'}"


def forget_last_commit(target: Target, flow: str) -> None:
    """Leave a checkpoint as if the driver had died after the sinks had the last batch, before Spark noted it."""
    commits = Path(target.flow_folder(flow)) / "spark" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink()


def _say(event: Event) -> None:
    if isinstance(event, BatchCommitted):
        print(json.dumps({"flow": event.flow, "batch": event.batch_id}), flush=True)  # noqa: T201


def _main() -> None:
    module, name, folder, bootstrap = sys.argv[1:]
    flows = importlib.import_module(module).flows_of(name)
    application, _spark = open_application(flows, target_for(Path(folder), bootstrap), log=Path(folder) / "spark.log")
    application.bus.subscribe(_say)
    failed = [figures.error for figures in application.run().values() if figures.error]
    if failed:
        sys.exit(str(failed[0]))


if __name__ == "__main__":
    _main()
