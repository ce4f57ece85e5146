"""Waiting until flows that run have committed given offsets, or anything at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.clients.positions import Partition
from headrace.clients.storage import file_store
from headrace.flow.target import Target
from headrace.operate.checkpoint.offsets import committed_offsets
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.events import BatchCommitted, Event, EventBus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How soon a wait notices that it was given up.
_GLANCE_SECONDS = 0.5


class Arrivals:
    """Hears of committed batches. Make it before the flows start; `wait` may be called from any thread."""

    def __init__(self, bus: EventBus, target: Target, spark: SparkSession | None) -> None:
        self._target, self._spark = target, spark
        self._committed = threading.Event()
        self._read_something: set[str] = set()
        bus.subscribe(self._hear)

    def wait(
        self, awaited: Mapping[str, Mapping[Partition, int]], seconds: float, *given_up: threading.Event
    ) -> dict[str, dict[Partition, int]]:
        """Return what is not reached, by flow: nothing, unless one of the events was set.

        Or unless no batch was committed for so many seconds: flows that get on are waited for. A flow without offsets
        has to commit one batch with rows.
        """
        while True:
            deadline = time.monotonic() + seconds
            self._committed.clear()
            left = {flow: self._left(flow, offsets) for flow, offsets in awaited.items()}
            left = {flow: offsets for flow, offsets in left.items() if offsets or self._lacks_rows(flow, awaited)}
            if not left:
                return left
            while not self._committed.wait(_GLANCE_SECONDS):
                if time.monotonic() > deadline or any(each.is_set() for each in given_up):
                    return left

    def _left(self, flow: str, awaited: Mapping[Partition, int]) -> dict[Partition, int]:
        checkpoint = Checkpoint.of(flow, self._target, file_store(self._target.checkpoints, self._spark))
        reached = committed_offsets(checkpoint)
        return {each: offset for each, offset in awaited.items() if reached.get(each, 0) < offset}

    def _lacks_rows(self, flow: str, awaited: Mapping[str, Mapping[Partition, int]]) -> bool:
        return not awaited[flow] and flow not in self._read_something

    def _hear(self, event: Event) -> None:
        if isinstance(event, BatchCommitted):
            if event.rows_in:
                self._read_something.add(event.flow)
            self._committed.set()
