"""Opens the inputs of a flow as streaming DataFrames: read, validated, counted, with watermarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.flow.flow import Flow
from headrace.flow.levers import Continuous
from headrace.flow.target import Target
from headrace.ingest.future_events import drop_invalid, validate_by_clock
from headrace.ingest.parse import valid_rows, validate
from headrace.ingest.rules import fail_on_violation
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.continuous import input_source, is_continuous
from headrace.runtime.counters import count_validated, track_event_time
from headrace.runtime.guards.idle_inputs import IdleInputs
from headrace.spark_plan.source_order import PlannedSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class InputFrames:
    """The input DataFrames of one run of a flow. Call `open` once, on the thread that starts the query."""

    def __init__(self, flow: Flow, target: Target, checkpoint: Checkpoint, idle_inputs: IdleInputs) -> None:
        self._flow, self._target, self._checkpoint, self._idle_inputs = flow, target, checkpoint, idle_inputs
        self._sources: dict[PlannedSource, DataFrame] = {}

    def open(self, session: SparkSession) -> dict[str, DataFrame]:
        """Return one DataFrame per input."""
        return {name: self._open_input(session, name) for name in self._flow.named_inputs}

    @property
    def streams(self) -> dict[PlannedSource, DataFrame]:
        """Every opened source with its DataFrame, including the sources of idle ticks."""
        return self._sources | self._idle_inputs.streams

    def _open_input(self, session: SparkSession, name: str) -> DataFrame:
        input_ = self._flow.named_inputs[name]
        rows = input_source(self._flow, name, self._checkpoint).stream(session, self._target)
        self._sources[PlannedSource(name, input_.source.name)] = rows
        if input_.schema is not None:
            rows = valid_rows(self._counted(validate(rows, input_), name), input_)
        elif input_.watermark is not None or input_.rules:
            rows = drop_invalid(self._counted(validate_by_clock(rows, input_, F.current_timestamp()), name), input_)
        # Without batches there is no state, so a watermark has no effect.
        if input_.watermark is None or is_continuous(self._flow):
            return rows
        watermarked = self._idle_inputs.apply_watermark(session, name, rows, input_.watermark)
        return track_event_time(watermarked, name, input_.watermark.column)

    def _counted(self, rows: DataFrame, name: str) -> DataFrame:
        """Count the validated rows, and fail on a row that violates a rule with the action `fail`."""
        rules = self._flow.named_inputs[name].rules
        counted = rows if isinstance(self._flow.trigger, Continuous) else count_validated(rows, name, rules)
        return fail_on_violation(counted, rules)
