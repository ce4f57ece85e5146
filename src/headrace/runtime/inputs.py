"""The inputs of a flow as streaming DataFrames: `STEPS` lists what happens to rows before the transform.

A step returns the rows unchanged if the input does not need it:

| step              | for                                                                          |
|-------------------|------------------------------------------------------------------------------|
| read              | every input                                                                  |
| validate          | inputs with a payload schema, a watermark or rules                           |
| count             | the same, under triggers that support counters                               |
| fail_on_violation | inputs with a rule of the action `fail`                                      |
| drop_invalid      | validated inputs: from here on the rows have the columns that the flow gets  |
| add_idle_ticks    | inputs with an `idle_timeout`: they advance a watermark without rows         |
| set_watermark     | inputs with a watermark, under triggers with batches                         |
| drop_idle_ticks   | inputs with idle ticks                                                       |
| track_event_time  | inputs with a watermark, under triggers with batches                         |
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession, functions as F

from headrace.flow.inputs import Input
from headrace.flow.levers import Continuous, Watermark
from headrace.ingest import future_events, idle_ticks, parse, rules
from headrace.runtime import counters
from headrace.runtime.checkpoint.tick_files import TickFiles
from headrace.runtime.continuous import input_source, is_continuous
from headrace.runtime.run import Run
from headrace.spark_plan.source_order import PlannedSource


@dataclass
class OpenInput:
    """One input while its steps build its rows. `streams` gets every source that a step opens."""

    run: Run
    name: str
    session: SparkSession
    ticks: TickFiles
    streams: dict[PlannedSource, DataFrame]
    rows: DataFrame = field(init=False)

    @property
    def spec(self) -> Input:
        """The declared input."""
        return self.run.flow.named_inputs[self.name]

    @property
    def is_validated(self) -> bool:
        """Whether rows of the input can be invalid."""
        return self.spec.schema is not None or self.spec.watermark is not None or bool(self.spec.rules)

    @property
    def watermark(self) -> Watermark | None:
        """The watermark of the input. Without batches there is no state, so a watermark has no effect."""
        return None if is_continuous(self.run.flow) else self.spec.watermark


def read(opened: OpenInput) -> DataFrame:
    """Open the stream of the source."""
    rows = input_source(opened.run.flow, opened.name, opened.run.checkpoint).stream(opened.session, opened.run.target)
    opened.streams[PlannedSource(opened.name, opened.spec.source.name)] = rows
    return rows


def validate(opened: OpenInput) -> DataFrame:
    """Parse the payload, and mark invalid rows and the rules that each row violates."""
    if opened.spec.schema is not None:
        return parse.validate(opened.rows, opened.spec)
    if opened.is_validated:
        return future_events.validate_by_clock(opened.rows, opened.spec, F.current_timestamp())
    return opened.rows


def count(opened: OpenInput) -> DataFrame:
    """Count the rows, the invalid ones and the violations of each rule."""
    if opened.is_validated and not isinstance(opened.run.flow.trigger, Continuous):
        return counters.count_validated(opened.rows, opened.name, opened.spec.rules)
    return opened.rows


def fail_on_violation(opened: OpenInput) -> DataFrame:
    """Fail the query on a row that violates a rule with the action `fail`."""
    return rules.fail_on_violation(opened.rows, opened.spec.rules)


def drop_invalid(opened: OpenInput) -> DataFrame:
    """Keep the valid rows, with the columns of the payload or of the source."""
    if opened.spec.schema is not None:
        return parse.valid_rows(opened.rows, opened.spec)
    return future_events.drop_invalid(opened.rows, opened.spec) if opened.is_validated else opened.rows


def add_idle_ticks(opened: OpenInput) -> DataFrame:
    """Add the stream of idle ticks."""
    if opened.watermark is None or not opened.ticks.has_ticks(opened.name):
        return opened.rows
    stream_of = opened.run.idle_ticks
    assert stream_of is not None, "Supervisor(idle_ticks=...) is not set"  # noqa: S101 - `operate` sets it
    ticks = stream_of(opened.session, opened.ticks.prepare(opened.name))
    opened.streams[_tick_source(opened)] = ticks
    return idle_ticks.add_idle_ticks(opened.rows, opened.watermark.column, ticks)


def set_watermark(opened: OpenInput) -> DataFrame:
    """Set the watermark."""
    if opened.watermark is None:
        return opened.rows
    return opened.rows.withWatermark(opened.watermark.column, opened.watermark.duration.as_interval())


def drop_idle_ticks(opened: OpenInput) -> DataFrame:
    """Drop the idle ticks, which have advanced the watermark."""
    if opened.watermark is None or _tick_source(opened) not in opened.streams:
        return opened.rows
    return idle_ticks.drop_idle_ticks(opened.rows, opened.watermark.column)


def track_event_time(opened: OpenInput) -> DataFrame:
    """Track the newest event time."""
    if opened.watermark is None:
        return opened.rows
    return counters.track_event_time(opened.rows, opened.name, opened.watermark.column)


STEPS: tuple[Callable[[OpenInput], DataFrame], ...] = (
    read,
    validate,
    count,
    fail_on_violation,
    drop_invalid,
    add_idle_ticks,
    set_watermark,
    drop_idle_ticks,
    track_event_time,
)


def open_inputs(session: SparkSession, run: Run) -> tuple[dict[str, DataFrame], dict[PlannedSource, DataFrame]]:
    """Return the rows of each input of a flow, and every opened source with its stream. Called once per start."""
    ticks = TickFiles(run.flow, run.checkpoint)
    rows: dict[str, DataFrame] = {}
    streams: dict[PlannedSource, DataFrame] = {}
    for name in run.flow.named_inputs:
        opened = OpenInput(run, name, session, ticks, streams)
        for step in STEPS:
            opened.rows = step(opened)
        rows[name] = opened.rows
    return rows, streams


def _tick_source(opened: OpenInput) -> PlannedSource:
    return PlannedSource(opened.name, opened.spec.source.name, "idle ticks")
