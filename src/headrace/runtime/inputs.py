"""The inputs of a flow as streaming frames: read, judged, counted, under their watermarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.flow.flow import Flow
from headrace.flow.levers import Continuous
from headrace.flow.target import Target
from headrace.ingest.future_events import in_time, judged_by_clock
from headrace.ingest.parse import good, judged
from headrace.ingest.rules import stopping
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.continuous import is_unbatched, source_of
from headrace.runtime.counters import count_judged, note_time
from headrace.runtime.guards.idle_inputs import Heartbeats
from headrace.spark_plan.source_order import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Frames:
    """What the transform of one run of a flow is given. `made` once, on the thread that starts the query."""

    def __init__(self, flow: Flow, target: Target, checkpoint: Checkpoint, beats: Heartbeats) -> None:
        self._flow, self._target, self._checkpoint, self._beats = flow, target, checkpoint, beats
        self._sources: dict[Place, DataFrame] = {}

    def made(self, session: SparkSession) -> dict[str, DataFrame]:
        """Return a frame per input."""
        return {name: self._frame(session, name) for name in self._flow.named_inputs}

    @property
    def streams(self) -> dict[Place, DataFrame]:
        """Every source behind the frames as it was opened, those of beats too."""
        return self._sources | self._beats.streams

    def _frame(self, session: SparkSession, name: str) -> DataFrame:
        given = self._flow.named_inputs[name]
        rows = source_of(self._flow, name, self._checkpoint).stream(session, self._target)
        self._sources[Place(name, given.source.name)] = rows
        if given.schema is not None:
            rows = good(self._counted(judged(rows, given), name), given)
        elif given.watermark is not None or given.rules:
            rows = in_time(self._counted(judged_by_clock(rows, given, F.current_timestamp()), name), given)
        # Without batches there is no state that a watermark would end.
        if given.watermark is None or is_unbatched(self._flow):
            return rows
        timed = self._beats.under_watermark(session, name, rows, given.watermark)
        return note_time(timed, name, given.watermark.column)

    def _counted(self, rows: DataFrame, name: str) -> DataFrame:
        """Count what was judged, and stop at a row that breaks a rule which says so."""
        rules = self._flow.named_inputs[name].rules
        counted = rows if isinstance(self._flow.trigger, Continuous) else count_judged(rows, name, rules)
        return stopping(counted, rules)
