"""Ride flows to the end of a topic, as a process of its own that a test may kill."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.operate.run import open_application
from headrace.patterns.rides.flows import RideSettings, flows
from headrace.runtime.events import BatchCommitted, Event


def settings_for(name: str, max_offsets: int) -> RideSettings:
    return RideSettings(
        topic=f"{name}-events",
        city_topic=f"{name}-city",
        surge_topic=f"{name}-surge",
        alerts_topic=f"{name}-alerts",
        city_trigger=AvailableNow(),
        driver_trigger=AvailableNow(),
        max_offsets=max_offsets,
    )


def target_for(folder: Path, bootstrap: str) -> Target:
    return Target(
        name="test",
        lake=str(folder / "lake"),
        checkpoints=str(folder / "checkpoints"),
        master="local[2]",
        kafka={"bootstrap.servers": bootstrap},
    )


def say(event: Event) -> None:
    if isinstance(event, BatchCommitted):
        print(json.dumps({"flow": event.flow, "batch": event.batch_id}), flush=True)  # noqa: T201


def main() -> None:
    name, max_offsets, folder, bootstrap = sys.argv[1:]
    settings = settings_for(name, int(max_offsets))
    target = target_for(Path(folder), bootstrap)
    application, _spark = open_application(flows(settings), target, log=Path(folder) / "spark.log")
    application.bus.subscribe(say)
    failed = [figures.error for figures in application.run().values() if figures.error]
    if failed:
        sys.exit(str(failed[0]))


if __name__ == "__main__":
    main()
