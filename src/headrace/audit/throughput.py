"""Measure how many rows per second a flow processes, and store the rate with its checkpoint.

    FLOW/headrace/throughput.json

The number is smoothed over large batches only: in a small one the fixed cost of a batch says more than its rows. It is
written every 30 seconds and at the end of a run, which costs next to nothing.
"""

import json
import time
from collections.abc import Sequence

from pyspark.sql import SparkSession

from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.events import BatchCommitted, EventBus, FlowEvent

# The weight of the newest batch: after ten large batches little of the earlier rate is left.
_NEWEST_WEIGHT = 0.2

# A batch is large if it has half the rows of the largest recent one, which fades by 1 % per batch.
_LARGE_SHARE = 0.5
_LARGEST_DECAY = 0.99

_WRITE_EVERY_SECONDS = 30.0


def processed_per_second(
    target: Target, flow: str, spark: SparkSession | None = None, *, batches_of: int = 0
) -> float | None:
    """Return the rows per second of a flow in its earlier runs, or None if nothing is known or readable.

    With `batches_of`, only if it had batches of that many rows: a flow that keeps up does not show its top speed.
    """
    checkpoint = Checkpoint.of(flow, target, spark)
    text = checkpoint.files.read(_path(checkpoint))
    try:
        note = json.loads(text) if text else {}
        return float(note["rows_per_second"]) if note.get("largest_batch", 0) >= batches_of else None
    except (ValueError, KeyError, TypeError):
        return None


class Throughput:
    """Measures the flows of one application from their events. Call `close` when all flows have ended."""

    def __init__(self, application: SparkSession, target: Target, flows: Sequence[Flow], bus: EventBus) -> None:
        self._flows = {flow.name: _SmoothedRate(Checkpoint.of(flow.name, target, application)) for flow in flows}
        bus.subscribe(self._on_event)

    def close(self) -> None:
        """Write the latest rates. Call once, after the last event."""
        for rate in self._flows.values():
            rate.write()

    def _on_event(self, event: FlowEvent) -> None:
        if isinstance(event, BatchCommitted):
            self._flows[event.flow].add_batch(event.rows_in, event.duration_ms / 1000)


class _SmoothedRate:
    """The rate of one flow. Each run starts over, since it may be on another machine."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._rate: float | None = None
        self._largest = 0.0
        self._written_at = time.monotonic()

    def add_batch(self, rows: int, seconds: float) -> None:
        if not rows or not seconds:
            return
        self._largest = max(rows, self._largest * _LARGEST_DECAY)
        if rows >= self._largest * _LARGE_SHARE:
            rate = rows / seconds
            self._rate = rate if self._rate is None else self._rate + _NEWEST_WEIGHT * (rate - self._rate)
        if time.monotonic() - self._written_at > _WRITE_EVERY_SECONDS:
            self.write()

    def write(self) -> None:
        self._written_at = time.monotonic()
        if self._rate is not None:
            note = {"rows_per_second": round(self._rate, 1), "largest_batch": round(self._largest)}
            self._checkpoint.files.write(_path(self._checkpoint), json.dumps(note))


def _path(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.metadata_dir}/throughput.json"
