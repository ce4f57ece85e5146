"""Idle ticks of a running flow: the files that hold them, and the streams that read these files.

    FLOW/headrace/heartbeats/INPUT/MILLISECONDS

An idle tick is a file, so a retried batch reads the same ticks and advances the watermark identically. Spark deletes a
file after the batch that read it. Unread files of an earlier run are deleted at the start: with a new or restored
checkpoint their event times would be ahead of rows that are still to be read.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.flow.flow import Flow
from headrace.flow.levers import AvailableNow, Continuous, RealTime, Watermark
from headrace.flow.sink import HasPendingRows, leaf_sinks
from headrace.flow.target import Target
from headrace.ingest.idle_ticks import with_idle_ticks
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.source_order import read_source_order
from headrace.runtime.clock import Clock
from headrace.runtime.guards.idle_timer import IdleTimer, InputProgress
from headrace.sources.idle_ticks import idle_ticks
from headrace.spark_plan.source_order import PlannedSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

# Creates the folder on any filesystem. Spark ignores names that start with a dot.
_PLACEHOLDER = ".keep"


class IdleInputs:
    """The idle inputs of one run of a flow. Call `apply_watermark` on the starting thread."""

    def __init__(self, flow: Flow, target: Target, checkpoint: Checkpoint, clock: Clock) -> None:
        self._flow, self._target, self._checkpoint = flow, target, checkpoint
        # A run that ends when everything is read has no idle inputs.
        is_finite = isinstance(flow.trigger, AvailableNow)
        timeouts = {
            name: input_.watermark.idle_timeout_duration
            for name, input_ in flow.named_inputs.items()
            if input_.watermark
        }
        # Triggers without batches have no state, and support no second source.
        has_batches = not isinstance(flow.trigger, Continuous | RealTime)
        self._timeouts_ms = {
            name: timeout.ms for name, timeout in timeouts.items() if timeout is not None and has_batches
        }
        self._timer = IdleTimer({} if is_finite else self._timeouts_ms, clock, self._sink_waits)
        self._pending_sinks = [sink for _, sink in leaf_sinks(flow.sink) if isinstance(sink, HasPendingRows)]
        self._session: SparkSession | None = None
        self._lock = threading.Lock()
        self.streams: dict[PlannedSource, DataFrame] = {}

    def apply_watermark(self, session: SparkSession, name: str, rows: DataFrame, watermark: Watermark) -> DataFrame:
        """Return the rows of an input with its watermark and idle ticks. Called once per input and start."""
        if name not in self._timeouts_ms and not self._had_idle_ticks(name):
            return rows.withWatermark(watermark.column, watermark.duration.spark())
        self._session, folder = session, self._folder(name)
        if self._checkpoint.unfinished_batch() is None:
            for file in self._checkpoint.files.names(folder):
                if not file.startswith("."):
                    self._checkpoint.files.delete(f"{folder}/{file}")
        self._checkpoint.files.write(f"{folder}/{_PLACEHOLDER}", "")
        stream = idle_ticks(session, folder)
        self.streams[PlannedSource(name, self._flow.named_inputs[name].source.name, "beats")] = stream
        return with_idle_ticks(rows, watermark, stream)

    def on_batch(self, progress: StreamingQueryProgress, order: tuple[PlannedSource, ...]) -> None:
        """Process a committed batch."""
        if self._timeouts_ms:
            read = {
                planned.input: InputProgress(
                    source.numInputRows,
                    rest=source.startOffset != source.endOffset or source.latestOffset not in (_NONE, source.endOffset),
                )
                for planned, source in zip(order, progress.sources, strict=False)
                if planned.role == "rows"
            }
            with self._lock:
                self._write(
                    self._timer.on_batch(read, sum(operator.numRowsTotal for operator in progress.stateOperators))
                )

    def on_empty_trigger(self) -> None:
        """Process a trigger without new data."""
        if self._timeouts_ms:
            with self._lock:
                self._write(self._timer.on_empty_trigger())

    def _write(self, due: Mapping[str, int]) -> None:
        for name, tick in due.items():
            # A tick that cannot be written is skipped: the next trigger writes one.
            with suppress(OSError, Py4JError):
                self._checkpoint.files.write(f"{self._folder(name)}/{tick}", str(tick))

    def _sink_waits(self) -> bool:
        """Whether a sink holds pending rows. If a sink cannot tell, the next trigger asks again."""
        session = self._session
        with suppress(OSError, Py4JError, PySparkException):
            return session is not None and any(sink.is_due(session, self._target) for sink in self._pending_sinks)
        return False

    def _had_idle_ticks(self, name: str) -> bool:
        """Whether the checkpoint has a source of idle ticks for the input. Its stream must then stay, without ticks."""
        order = read_source_order(self._checkpoint) if self._checkpoint.planned_batches() else None
        return any((source.input, source.role) == (name, "beats") for source in order or ())

    def _folder(self, name: str) -> str:
        return f"{self._checkpoint.metadata_dir}/heartbeats/{name}"


# How PySpark represents a missing offset.
_NONE = "None"
