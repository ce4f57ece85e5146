"""Waiting for flows: until their commit logs hold the offsets, the time is over, or nobody wants to wait any more."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from headrace.demos.runner import OffsetWaiter
from headrace.flow.target import Target
from headrace.operate.checkpoint.offsets import committed_offsets
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.events import BatchCommitted, EventBus

AWAITED = {"f": {("t", 0): 5, ("u", 0): 1}}


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path), checkpoints=str(tmp_path))


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


@pytest.fixture
def arrivals(bus: EventBus, target: Target) -> OffsetWaiter:
    return OffsetWaiter(bus, target, None)


def planned(target: Target, batch: int, offsets: dict[str, dict[str, int]]) -> None:
    folder = Path(target.checkpoints) / "f" / "spark" / "offsets"
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}
    (folder / str(batch)).write_text(f"v1\n{json.dumps(settings)}\n{json.dumps(offsets)}")


def committed(target: Target, batch: int, bus: EventBus) -> None:
    folder = Path(target.checkpoints) / "f" / "spark" / "commits"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(batch)).write_text("v1\n{}")
    bus.publish(BatchCommitted("f", batch, 1, 1, {}, 0, 1, None))


def test_a_wait_ends_with_the_batch_that_contains_the_last_offset(
    target: Target, bus: EventBus, arrivals: OffsetWaiter
) -> None:
    planned(target, 0, {"t": {"0": 4}})
    committed(target, 0, bus)
    planned(target, 1, {"t": {"0": 9}, "u": {"0": 1}})
    later = threading.Timer(0.1, committed, (target, 1, bus))
    later.start()

    assert arrivals.wait(AWAITED, 30) == {}

    later.join()
    checkpoint = Checkpoint.of("f", target)
    assert committed_offsets(checkpoint) == {("t", 0): 9, ("u", 0): 1}


def test_what_is_planned_and_not_committed_is_not_there_when_the_time_is_over(
    target: Target, bus: EventBus, arrivals: OffsetWaiter
) -> None:
    planned(target, 0, {"t": {"0": 4}, "u": {"0": 1}})
    committed(target, 0, bus)
    planned(target, 1, {"t": {"0": 9}, "u": {"0": 1}})

    assert arrivals.wait(AWAITED, 0) == {"f": {("t", 0): 5}}


def test_a_flow_without_offsets_is_waited_for_until_it_has_committed_rows(
    bus: EventBus, arrivals: OffsetWaiter
) -> None:
    bus.publish(BatchCommitted("f", 0, 0, 0, {}, 0, 1, None))
    assert arrivals.wait({"f": {}}, 0) == {"f": {}}
    bus.publish(BatchCommitted("f", 1, 1, 1, {}, 0, 1, None))
    assert arrivals.wait({"f": {}}, 0) == {}


def test_a_cancelled_wait_reports_what_is_left(arrivals: OffsetWaiter) -> None:
    enough = threading.Event()
    enough.set()

    assert arrivals.wait(AWAITED, 600, enough) == AWAITED
    assert arrivals.wait({}, 600) == {}
