"""All rows that a flow has read up to a batch, as far as its sources still have them, as its transform gets them.

A window may be computed from them only when none of its rows can be among those that are gone. For a flow with one
input this can be shown: the watermark says which event time was the newest before a batch, so rows that were read
before it are no later than that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.audit.flow_audit import quarantine_table
from headrace.clients.kafka import first_timestamps
from headrace.flow.duration import Duration
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.source import CanLoseRows, HasStartOffset, MissingOffsets
from headrace.flow.target import Target
from headrace.ingest.future_events import drop_invalid, validate_by_clock
from headrace.ingest.parse import valid_rows, validate
from headrace.operate.late import errors as refusals
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.source_order import source_index
from headrace.spark_plan.late_filters import mark_input

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PLACE = ("topic", "partition", "offset")


class RetainedRows:
    """The rows of one flow. `read_up_to` first; used by one repair, while the flow is not running."""

    def __init__(self, session: SparkSession, target: Target, flow: Flow, checkpoint: Checkpoint) -> None:
        self._session, self._target, self._flow, self._checkpoint = session, target, flow, checkpoint
        self._ranges: dict[str, tuple[str, str] | None] = {}
        self._gone: dict[str, Sequence[MissingOffsets]] = {}

    def read_up_to(self, batch_id: int) -> None:
        """Look up what was read from the first batch to this one, and what of it is gone. Reads no row."""
        end = self._checkpoint.offset_entry(batch_id).offsets
        for name, given in self._flow.named_inputs.items():
            index = source_index(self._checkpoint, self._flow, name)
            first, last = (None, None) if index is None else (self._checkpoint.start_offset(index), end[index])
            if last is None:
                self._ranges[name] = None
                continue
            source = given.source
            if first is None and isinstance(source, HasStartOffset):
                first = source.start_offset(last)
            if first is None:
                raise refusals.no_beginning(self._flow, source.name)
            self._gone[name] = (
                source.watch(self._target).missing_offsets(first, last) if isinstance(source, CanLoseRows) else ()
            )
            self._ranges[name] = (_after(first, self._gone[name]), last)

    def missing(self, window: tuple[datetime, datetime]) -> str | None:
        """Return why a window may lack rows, or None when all of its rows are there."""
        gone = [each for ranges in self._gone.values() for each in ranges]
        if not gone:
            return None
        newest = self._newest_gone(gone)
        if newest is not None and newest < window[0]:
            return None
        listed = ", ".join(str(each) for each in gone)
        so_far = "" if newest is None else f" They may reach up to {newest:%Y-%m-%d %H:%M:%S}Z."
        return f"Records that may belong to it are gone from the source: {listed}.{so_far}"

    def frames(self, first: datetime, end: datetime) -> dict[str, DataFrame]:
        """Return a frame per input for the transform, with the rows of this span of event time only."""
        return {name: self._frame(name, given, first, end) for name, given in self._flow.named_inputs.items()}

    def _frame(self, name: str, given: Input, first: datetime, end: datetime) -> DataFrame:
        span = self._ranges[name]
        if span is None:
            schema = given.columns or given.source.stream(self._session, self._target).schema
            return mark_input(self._session.createDataFrame([], schema), name, given, schema.names)
        rows = given.source.batch(self._session, self._target, *span)
        columns = rows.columns
        if given.columns is not None:
            placed = [F.col(place) for place in _PLACE]
            rows = valid_rows(validate(self._not_quarantined(rows, name, _PLACE, placed), given), given)
            columns = given.columns.names
        else:
            # A row of such a source has no place of its own: the quarantine keeps it whole, as JSON.
            whole = F.to_json(F.struct(*(F.col(f"`{each}`") for each in columns))).cast("binary")
            rows = self._not_quarantined(rows, name, ("value",), [whole])
            rows = drop_invalid(validate_by_clock(rows, given, F.current_timestamp()), given)
        if given.watermark is not None:
            # A window holds the rows from its start to before its end, and nothing else here keeps state.
            event_time = F.col(f"`{given.watermark.column}`")
            rows = rows.where((event_time >= F.lit(first)) & (event_time < F.lit(end)))
        return mark_input(rows, name, given, columns)

    def _not_quarantined(
        self, rows: DataFrame, name: str, known_by: Sequence[str], here: Sequence[Column]
    ) -> DataFrame:
        """Return the rows without those that were bad when the flow read them, whatever its schema says by now.

        `known_by` are columns of the quarantine, and `here` is what a row has for each.
        """
        table = quarantine_table(self._target, self._flow.name)
        if not self._checkpoint.files.names(f"{table}/_delta_log"):
            return rows
        bad = self._session.read.format("delta").load(table)
        bad = bad.where((F.col("query_id") == self._checkpoint.query_id()) & (F.col("input") == name))
        bad = bad.select(*(F.col(each).alias(f"_bad_{each}") for each in known_by))
        same = reduce(and_, (one == F.col(f"_bad_{each}") for each, one in zip(known_by, here, strict=True)))
        return rows.join(F.broadcast(bad), same, "left_anti")

    def _newest_gone(self, gone: Sequence[MissingOffsets]) -> datetime | None:
        """Return the newest event time that records which are gone can have, or None when it cannot be told.

        With several inputs the watermark is that of the slowest, and says nothing about the others. There the broker's
        clock is asked: what is gone lay before the first record that is left, and no good row is ahead of its record
        by more than the input allows.
        """
        inputs = list(self._flow.named_inputs.values())
        marks = [each.watermark for each in inputs if each.watermark is not None]
        if len(marks) < len(inputs) or any(each.end is None for each in gone):
            return None
        if len(marks) > 1:
            left = first_timestamps(self._target, {(each.topic, each.partition): each.end or 0 for each in gone})
            ahead = max(Duration.parse(each.max_future).ms for each in marks)
            newest = max(left.values()) if len(left) == len(gone) else None
            return newest and newest + timedelta(milliseconds=ahead)
        planned = self._checkpoint.planned_batches()
        for batch_id in planned[:-1]:
            offsets = json.loads(self._checkpoint.offset_entry(batch_id).offsets[0] or "{}")
            if all(offsets.get(each.topic, {}).get(str(each.partition), 0) >= (each.end or 0) for each in gone):
                # The watermark of the next batch is the newest event time up to this one, less the delay.
                ms = self._checkpoint.offset_entry(batch_id + 1).watermark_ms + marks[0].duration.ms
                return datetime.fromtimestamp(ms / 1000, UTC)
        return None


def _after(first: str, gone: Sequence[MissingOffsets]) -> str:
    """Return offsets to begin at, behind what is gone of each partition."""
    if not gone:
        return first
    offsets = json.loads(first)
    for each in gone:
        if each.end is not None:
            offsets.setdefault(each.topic, {})[str(each.partition)] = each.end
    return json.dumps(offsets)
