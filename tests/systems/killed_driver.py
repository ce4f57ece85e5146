"""The flows of several systems in one driver process, which is killed when each of them has stopped in a batch.

Every flow stops where its sink has the batch and Spark's commit log does not: the next driver runs the batch again.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from crash.armed import tell
from crash.chain import Line, ProcessDriver
from crash.driver import Probe, report_of, wait_for_the_kill
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.operate.run import Application
from headrace.runtime.events import FlowEvent
from headrace.runtime.session import open_session
from headrace.stack.jars import JarCache

# The flows in a cold JVM take about a minute on an idle machine.
_PATIENCE_SECONDS = 480.0


def target_for(folder: Path, bootstrap: str) -> Target:
    """Return where the flows of a system run, in the driver and in the process of the test."""
    return Target(
        name="test",
        lake=str(folder / "lake"),
        checkpoints=str(folder / "checkpoints"),
        master="local[2]",
        kafka={"bootstrap.servers": bootstrap},
    )


def run_until_killed(folder: Path, bootstrap: str, systems: Sequence[str]) -> None:
    """Run the systems in a process, each in a folder of its own, and kill it when all flows have stopped."""
    line = Line()
    stops = [importlib.import_module(f"systems.{system}").KILLED_IN for system in systems]
    waiting = {flow for flows in stops for flow in flows}
    driver = ProcessDriver("systems.killed_driver", [str(folder), bootstrap, *systems], line)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    try:
        while waiting:
            report = line.receive(0.5) or {}
            # Silver and gold wait for the table of the layer before, and try again.
            assert not report.get("down"), report
            if "point" in report:
                waiting.discard(str(report["case"]))
            died_of = driver.died_of()
            assert died_of is None, f"The driver ended before {sorted(waiting)} had stopped: {died_of}"
            assert time.monotonic() < deadline, f"{sorted(waiting)} did not stop; see {folder / 'spark.log'}"
    finally:
        driver.kill()
        line.close()


def _stopping(system: str) -> list[Flow]:
    module = importlib.import_module(f"systems.{system}")
    return [
        replace(flow, sink=Probe(flow.sink, {module.KILLED_IN[flow.name]: "P3"}, wait_for_the_kill))
        for flow in module.flows_to_kill()
    ]


def _say(event: FlowEvent) -> None:
    report = report_of(event)
    if report is not None:
        tell(**report)


def _main() -> None:
    folder, bootstrap, *systems = sys.argv[1:]
    target = target_for(Path(folder), bootstrap)
    spark = open_session(target, JarCache().verify("spark"), log=Path(folder) / "spark.log")
    applications = [
        Application(spark, target_for(Path(folder) / system, bootstrap), _stopping(system)) for system in systems
    ]
    threads = [threading.Thread(target=application.run) for application in applications]
    for application, thread in zip(applications, threads, strict=True):
        application.bus.subscribe(_say)
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    _main()
