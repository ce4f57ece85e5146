"""How fast a flow is by its own record: the rows a second that its batches processed, kept beside its checkpoint.

    FLOW/headrace/throughput.json

The number is smoothed over large batches only: in a small one the fixed cost of a batch says more than its rows. It is
written every half a minute and at the end of a run, so it costs nothing that anybody would notice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.clients.storage import file_store
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.events import BatchCommitted, Event, EventBus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The weight of the newest batch: after ten large batches little is left of what was before.
_NEWEST = 0.2

# A batch is large when it has half of the rows of the largest one lately; that one fades by a hundredth per batch.
_LARGE = 0.5
_FADING = 0.99

_WRITE_EVERY_SECONDS = 30.0


def processed_per_second(
    target: Target, flow: str, spark: SparkSession | None = None, *, batches_of: int = 0
) -> float | None:
    """Return the rows a second of a flow that has run before, or None when nothing is known or readable.

    With `batches_of`, only when it had batches of so many rows: one that keeps up says little of how fast it could be.
    """
    checkpoint = Checkpoint.of(flow, target, file_store(target.checkpoints, spark))
    text = checkpoint.files.read(_path(checkpoint))
    try:
        read = json.loads(text) if text else {}
        return float(read["rows_per_second"]) if read.get("largest_batch", 0) >= batches_of else None
    except (ValueError, KeyError, TypeError):
        return None


class Throughput:
    """Follows the flows of one application, from the bus. `close` it when all flows have ended."""

    def __init__(self, application: SparkSession, target: Target, flows: Sequence[Flow], bus: EventBus) -> None:
        files = file_store(target.checkpoints, application)
        self._flows = {flow.name: _Smoothed(Checkpoint.of(flow.name, target, files)) for flow in flows}
        bus.subscribe(self._hear)

    def close(self) -> None:
        """Write what is not written yet. Called once, after the last event."""
        for smoothed in self._flows.values():
            smoothed.write()

    def _hear(self, event: Event) -> None:
        if isinstance(event, BatchCommitted):
            self._flows[event.flow].take(event.rows_in, event.duration_ms / 1000)


class _Smoothed:
    """The rate of one flow, begun anew with each run: the machine may be another one."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._rate: float | None = None
        self._largest = 0.0
        self._written_at = time.monotonic()

    def take(self, rows: int, seconds: float) -> None:
        if not rows or not seconds:
            return
        self._largest = max(rows, self._largest * _FADING)
        if rows >= self._largest * _LARGE:
            rate = rows / seconds
            self._rate = rate if self._rate is None else self._rate + _NEWEST * (rate - self._rate)
        if time.monotonic() - self._written_at > _WRITE_EVERY_SECONDS:
            self.write()

    def write(self) -> None:
        self._written_at = time.monotonic()
        if self._rate is not None:
            found = {"rows_per_second": round(self._rate, 1), "largest_batch": round(self._largest)}
            self._checkpoint.files.write(_path(self._checkpoint), json.dumps(found))


def _path(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.metadata_dir}/throughput.json"
