"""Heartbeats of a running flow: their streams beside the inputs, and their files.

    FLOW/headrace/heartbeats/INPUT/MILLISECONDS

A beat is a file, so a batch that is run again reads the same beats, and moves the watermark as it did before. Spark
deletes a file after the batch that read it. What an earlier run left unread is deleted at the start: beside a
checkpoint that was begun anew or set back it would stand for rows that are still to come.
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
from headrace.flow.sink import Waiting, leaves
from headrace.flow.target import Target
from headrace.ingest.idle_ticks import with_beats
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.source_order import recorded_order
from headrace.runtime.clock import Clock
from headrace.runtime.guards.idle import Heart, Seen
from headrace.sources.idle_ticks import idle_ticks
from headrace.spark_plan.source_order import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

# Makes the folder on any filesystem. Spark passes over names that begin with a dot.
_KEEP = ".keep"


class Heartbeats:
    """The beats of one run of a flow. `under_watermark` on the thread that starts it, the rest on the listener's."""

    def __init__(self, flow: Flow, target: Target, checkpoint: Checkpoint, clock: Clock) -> None:
        self._flow, self._target, self._checkpoint = flow, target, checkpoint
        # A run that ends when everything is read waits for nobody.
        ending = isinstance(flow.trigger, AvailableNow)
        idles = {name: given.watermark.idle_duration for name, given in flow.named_inputs.items() if given.watermark}
        # Triggers without batches keep no state, and take no second source.
        batches = not isinstance(flow.trigger, Continuous | RealTime)
        self._idle = {name: idle.ms for name, idle in idles.items() if idle is not None and batches}
        self._heart = Heart({} if ending else self._idle, clock, self._sink_waits)
        self._waiting = [sink for _, sink in leaves(flow.sink) if isinstance(sink, Waiting)]
        self._session: SparkSession | None = None
        self._beating = threading.Lock()
        self.streams: dict[Place, DataFrame] = {}

    def under_watermark(self, session: SparkSession, name: str, rows: DataFrame, watermark: Watermark) -> DataFrame:
        """Return the rows of an input under its watermark, with its beats. Called once per input and start."""
        if name not in self._idle and not self._was_beating(name):
            return rows.withWatermark(watermark.column, watermark.duration.spark())
        self._session, folder = session, self._folder(name)
        if self._checkpoint.unfinished() is None:
            for each in self._checkpoint.files.names(folder):
                if not each.startswith("."):
                    self._checkpoint.files.delete(f"{folder}/{each}")
        self._checkpoint.files.write(f"{folder}/{_KEEP}", "")
        stream = idle_ticks(session, folder)
        self.streams[Place(name, self._flow.named_inputs[name].source.name, "beats")] = stream
        return with_beats(rows, watermark, stream)

    def on_batch(self, progress: StreamingQueryProgress, order: tuple[Place, ...]) -> None:
        """Look at a batch that was committed."""
        if self._idle:
            seen = {
                place.input: Seen(
                    source.numInputRows,
                    rest=source.startOffset != source.endOffset or source.latestOffset not in (_NONE, source.endOffset),
                )
                for place, source in zip(order, progress.sources, strict=False)
                if place.role == "rows"
            }
            with self._beating:
                self._write(self._heart.on_batch(seen, sum(each.numRowsTotal for each in progress.stateOperators)))

    def on_nothing(self) -> None:
        """Look at a trigger that found nothing to do."""
        if self._idle:
            with self._beating:
                self._write(self._heart.on_nothing())

    def _write(self, due: Mapping[str, int]) -> None:
        for name, beat in due.items():
            # A beat that cannot be written is not missed: the next one comes with the next trigger.
            with suppress(OSError, Py4JError):
                self._checkpoint.files.write(f"{self._folder(name)}/{beat}", str(beat))

    def _sink_waits(self) -> bool:
        """Whether rows in a sink wait for a batch. A sink that cannot say now is asked at the next trigger again."""
        session = self._session
        with suppress(OSError, Py4JError, PySparkException):
            return session is not None and any(sink.is_due(session, self._target) for sink in self._waiting)
        return False

    def _was_beating(self, name: str) -> bool:
        """Whether the checkpoint counts beats of the input. Its stream then stays, without beats, and can be silent."""
        kept = recorded_order(self._checkpoint) if self._checkpoint.planned() else None
        return any((place.input, place.role) == (name, "beats") for place in kept or ())

    def _folder(self, name: str) -> str:
        return f"{self._checkpoint.house}/heartbeats/{name}"


# How PySpark writes an offset that is not there.
_NONE = "None"
