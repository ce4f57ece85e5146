"""Reports the epochs of continuous processing. Spark does not report them, so the commit log is polled."""

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from headrace.errors import HeadraceError
from headrace.flow.flow import Flow
from headrace.flow.levers import Continuous
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.continuous import latest_offsets, record_start_offsets
from headrace.runtime.events import BatchCommitted
from headrace.runtime.guards.guard import Guard, Progress, Stop

# The commit log is polled twice per epoch, within these bounds.
_POLL_SECONDS = (0.25, 5.0)


class EpochGuard(Guard):
    """Polls the commit log of a continuous flow on a separate thread. Does nothing for other flows.

    Calls `on_progress` for every epoch that this run commits, in order. With `until_done` it stops the query when the
    epochs have reached the offsets that were the latest at the start.
    """

    def __init__(
        self, flow: Flow, target: Target, checkpoint: Checkpoint, stop: Stop, on_progress: Callable[[Progress], None]
    ) -> None:
        self._flow, self._target, self._checkpoint = flow, target, checkpoint
        self._stop, self._on_progress = stop, on_progress
        self._end_offsets: Sequence[str] = ()
        self._last = -1
        self._has_recorded_start = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def before_start(self, session: SparkSession) -> None:
        """Record the start offsets, and start polling. Earlier epochs are not reported."""
        trigger = self._flow.trigger
        if not isinstance(trigger, Continuous):
            return
        record_start_offsets(self._flow, self._target, self._checkpoint)
        self._end_offsets = latest_offsets(self._flow, self._target) if trigger.until_done else ()
        self._last = max(self._checkpoint.committed_batches(), default=-1)
        shortest, longest = _POLL_SECONDS
        pause = min(max(trigger.duration.seconds / 2, shortest), longest)
        self._thread = threading.Thread(
            target=self._poll_until_closed, args=(pause,), name=f"epochs-{self._flow.name}", daemon=True
        )
        self._thread.start()

    def on_end(self, error: HeadraceError | None) -> HeadraceError | None:
        """Report the last epochs, and stop polling."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
            self._poll()
        return error

    def _poll_until_closed(self, pause: float) -> None:
        while not self._closed.wait(pause):
            # If the storage does not answer, the next poll asks again.
            with suppress(OSError, Py4JError, HeadraceError):
                self._poll()
                if self._end_offsets and self._is_done():
                    self._end_offsets = ()
                    self._stop(None, immediately=True)

    def _poll(self) -> None:
        # Record the start offsets again, with the query id that the checkpoint has since the query has started.
        if not self._has_recorded_start and self._checkpoint.query_id() is not None:
            self._checkpoint.record_continuous_start(self._checkpoint.continuous_start())
            self._has_recorded_start = True
        for epoch in self._checkpoint.committed_batches():
            if epoch > self._last:
                self._on_progress(Progress(self._batch_committed(epoch)))
                self._last = epoch

    def _batch_committed(self, epoch: int) -> BatchCommitted:
        offsets = self._checkpoint.offset_range(epoch, 0)
        return BatchCommitted(
            self._flow.name,
            epoch,
            rows_in=_count_offsets(*offsets) if offsets else 0,
            rows_out=0,
            invalid={},
            dropped=0,
            duration_ms=0,
            watermark=None,
            counted=False,
        )

    def _is_done(self) -> bool:
        if self._last < 0:
            return False
        reached = self._checkpoint.offset_entry(self._last).offsets
        return all(
            _count_offsets(offset or "{}", end) <= 0 for offset, end in zip(reached, self._end_offsets, strict=True)
        )


def _count_offsets(start: str, end: str) -> int:
    """Return the number of offsets between two positions; partitions that are only in the first do not count."""
    first, last = json.loads(start), json.loads(end)
    return sum(
        max(0, offset - first.get(topic, {}).get(number, 0))
        for topic, numbers in last.items()
        for number, offset in numbers.items()
    )
