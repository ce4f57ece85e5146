"""Wait until running flows have committed certain offsets, or any batch."""

import threading
import time
from collections.abc import Mapping

from pyspark.sql import SparkSession

from headrace.clients.positions import Partition
from headrace.flow.target import Target
from headrace.operate.checkpoint.offsets import committed_offsets
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.events import BatchCommitted, EventBus, FlowEvent

# How soon a wait notices a stop event.
_POLL_SECONDS = 0.5


class OffsetWaiter:
    """Waits for committed offsets. Create it before the flows start; call `wait` from any thread."""

    def __init__(self, bus: EventBus, target: Target, spark: SparkSession | None) -> None:
        self._target, self._spark = target, spark
        self._committed = threading.Event()
        self._read_something: set[str] = set()
        bus.subscribe(self._on_event)

    def wait(
        self, offsets_by_flow: Mapping[str, Mapping[Partition, int]], seconds: float, *stop_events: threading.Event
    ) -> dict[str, dict[Partition, int]]:
        """Return the offsets that are not reached, by flow: none, unless a stop event was set.

        Also returns early if no batch was committed for `seconds`: the wait continues while flows make progress. A
        flow without offsets has to commit one batch with rows.
        """
        while True:
            deadline = time.monotonic() + seconds
            self._committed.clear()
            remaining = {flow: self._pending_offsets(flow, offsets) for flow, offsets in offsets_by_flow.items()}
            remaining = {
                flow: offsets
                for flow, offsets in remaining.items()
                if offsets or self._lacks_rows(flow, offsets_by_flow)
            }
            if not remaining:
                return remaining
            while not self._committed.wait(_POLL_SECONDS):
                if time.monotonic() > deadline or any(stop.is_set() for stop in stop_events):
                    return remaining

    def _pending_offsets(self, flow: str, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        checkpoint = Checkpoint.of(flow, self._target, self._spark)
        reached = committed_offsets(checkpoint)
        return {partition: offset for partition, offset in offsets.items() if reached.get(partition, 0) < offset}

    def _lacks_rows(self, flow: str, offsets_by_flow: Mapping[str, Mapping[Partition, int]]) -> bool:
        return not offsets_by_flow[flow] and flow not in self._read_something

    def _on_event(self, event: FlowEvent) -> None:
        if isinstance(event, BatchCommitted):
            if event.rows_in:
                self._read_something.add(event.flow)
            self._committed.set()
