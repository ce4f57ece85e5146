"""Read again all rows that a flow has read up to a batch, if its sources still have them.

A window can be recomputed only if none of its rows can be among the deleted ones. For a flow with one input the
watermark proves this: it gives the newest event time before a batch, and rows that were read earlier are not newer.

A `Recomputation` computes rows of a table again from them, while the flow cannot run.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import and_
from typing import Self

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from headrace.audit.flow_audit import FlowAudit, quarantine_table
from headrace.clients.kafka import first_timestamps
from headrace.clients.spark.delta_log import is_table
from headrace.clients.sql import column_named
from headrace.errors import RecoveryError
from headrace.flow.duration import Duration
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.sink import Batch
from headrace.flow.source import CanLoseRows, HasStartOffset, MissingOffsets
from headrace.flow.target import Target
from headrace.ingest.future_events import drop_invalid, validate_by_clock
from headrace.ingest.parse import valid_rows, validate
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.folder_lock import lock_sink_folders
from headrace.runtime.checkpoint.lease import ActiveLease, acquire_lease
from headrace.runtime.checkpoint.source_order import source_index
from headrace.runtime.session import flow_session
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sinks.delta.write import DeltaAppend
from headrace.spark_plan.late_filters import mark_input

_POSITION = ("topic", "partition", "offset")

UNCHANGED = "Nothing was changed. The late rows are in the ledger."


class Recomputation:
    """Rows of a flow's table that are computed again while its lease is held and its table is locked."""

    def __init__(
        self, spark: SparkSession, target: Target, flow: Flow, checkpoint: Checkpoint, active_lease: ActiveLease
    ) -> None:
        self._target, self._flow, self._checkpoint, self._lease = target, flow, checkpoint, active_lease
        self._session = flow_session(spark, flow)
        self._replayable = ReplayableRows(self._session, target, flow, checkpoint)
        self._rows: DataFrame | None = None

    @classmethod
    @contextmanager
    def open(cls, spark: SparkSession, target: Target, flow: Flow) -> Iterator[Self]:
        """Take the flow's lease, lock its table, complete its audit, and yield the recomputation.

        Raises when the flow is running (HR-302), or another process writes the table (HR-337).
        """
        checkpoint = Checkpoint.of(flow.name, target, spark)
        with acquire_lease(checkpoint, target.lease) as active_lease, lock_sink_folders(flow, target):
            recomputation = cls(spark, target, flow, checkpoint, active_lease)
            if checkpoint.committed_batches():
                FlowAudit(flow_session(spark, flow), target, flow).catch_up()
            try:
                yield recomputation
            finally:
                if recomputation._rows is not None:
                    recomputation._rows.unpersist()

    @property
    def _query_id(self) -> str:
        query_id = self._checkpoint.query_id()
        assert query_id is not None  # noqa: S101 - a checkpoint with batches has its metadata
        return query_id

    def _next_batch(self, sink: DeltaAppend | DeltaUpsert, step: str) -> Batch:
        """Return the batch under which the next change of the table is recorded, apart from the flow's batches."""
        query_id = self._query_id
        last = sink.committed_batches(self._session, self._flow.name, step, self._target).last.get(query_id, -1)
        return Batch(self._flow.name, query_id, last + 1, self._target, step=step, fence=self._lease.token)


class ReplayableRows:
    """The rows of a flow that can be read again. Call `read_up_to` first; the flow must not be running."""

    def __init__(self, session: SparkSession, target: Target, flow: Flow, checkpoint: Checkpoint) -> None:
        self._session, self._target, self._flow, self._checkpoint = session, target, flow, checkpoint
        self._ranges: dict[str, tuple[str, str] | None] = {}
        self._deleted: dict[str, Sequence[MissingOffsets]] = {}

    def read_up_to(self, batch_id: int) -> None:
        """Look up the offsets from the first batch to this one, and which of them are deleted. Reads no rows."""
        end = self._checkpoint.offset_entry(batch_id).offsets
        for name, input_ in self._flow.named_inputs.items():
            index = source_index(self._checkpoint, self._flow, name)
            first, last = (None, None) if index is None else (self._checkpoint.start_offset(index), end[index])
            if last is None:
                self._ranges[name] = None
                continue
            source = input_.source
            if first is None and isinstance(source, HasStartOffset):
                first = source.start_offset(last)
            if first is None:
                raise RecoveryError(
                    f"The windows of flow '{self._flow.name}' cannot be recomputed.",
                    why="A window needs all rows, but the first offset that the flow read is unknown for "
                    f"{source.name}. Sources of topics record it, and Delta tables have a `starting_version`.",
                    state=UNCHANGED,
                    remedy="Replay the flow under a new name, with a longer delay of its watermark: `headrace late` "
                    "suggests one.",
                    code="HR-354",
                )
            self._deleted[name] = (
                source.watch(self._target).missing_offsets(first, last) if isinstance(source, CanLoseRows) else ()
            )
            self._ranges[name] = (_skip_missing(first, self._deleted[name]), last)

    def missing(self, window: tuple[datetime, datetime]) -> str | None:
        """Return why a window may lack rows, or None if all of its rows are available."""
        missing_ranges = [range_ for ranges in self._deleted.values() for range_ in ranges]
        if not missing_ranges:
            return None
        newest = self._newest_deleted_time(missing_ranges)
        if newest is not None and newest < window[0]:
            return None
        ranges_ = ", ".join(str(range_) for range_ in missing_ranges)
        so_far = "" if newest is None else f" They may reach up to {newest:%Y-%m-%d %H:%M:%S}Z."
        return f"The source no longer has records that may belong to it: {ranges_}.{so_far}"

    def frames(self, first: datetime, end: datetime) -> dict[str, DataFrame]:
        """Return a DataFrame per input for the transform, with the rows in this range of event time."""
        return {name: self._frame(name, input_, first, end) for name, input_ in self._flow.named_inputs.items()}

    def _frame(self, name: str, input_: Input, first: datetime, end: datetime) -> DataFrame:
        range_ = self._ranges[name]
        if range_ is None:
            schema = input_.columns or input_.source.stream(self._session, self._target).schema
            return mark_input(self._session.createDataFrame([], schema), name, input_, schema.names)
        rows = input_.source.batch(self._session, self._target, *range_)
        columns = rows.columns
        if input_.columns is not None:
            position = [F.col(place) for place in _POSITION]
            rows = valid_rows(validate(self._not_quarantined(rows, name, _POSITION, position), input_), input_)
            columns = input_.columns.names
        else:
            # A row of such a source has no offset: the quarantine has the full row as JSON.
            row_json = F.to_json(F.struct(*(column_named(column) for column in columns))).cast("binary")
            rows = self._not_quarantined(rows, name, ("value",), [row_json])
            rows = drop_invalid(validate_by_clock(rows, input_, F.current_timestamp()), input_)
        if input_.watermark is not None:
            # A window contains the rows from its start to before its end, and nothing else here is stateful.
            event_time = column_named(input_.watermark.column)
            rows = rows.where((event_time >= F.lit(first)) & (event_time < F.lit(end)))
        return mark_input(rows, name, input_, columns)

    def _not_quarantined(
        self, rows: DataFrame, name: str, identity: Sequence[str], values: Sequence[Column]
    ) -> DataFrame:
        """Return the rows without those that were invalid when the flow read them, whatever its present schema is.

        `identity` are columns of the quarantine, and `values` the matching columns of the rows.
        """
        table = quarantine_table(self._target, self._flow.name)
        if not is_table(table, self._session):
            return rows
        invalid = self._session.read.format("delta").load(table)
        invalid = invalid.where((F.col("query_id") == self._checkpoint.query_id()) & (F.col("input") == name))
        invalid = invalid.select(*(F.col(column).alias(f"_bad_{column}") for column in identity))
        is_same = reduce(
            and_, (value == F.col(f"_bad_{column}") for column, value in zip(identity, values, strict=True))
        )
        return rows.join(F.broadcast(invalid), is_same, "left_anti")

    def _newest_deleted_time(self, missing_ranges: Sequence[MissingOffsets]) -> datetime | None:
        """Return the newest event time that deleted records can have, or None if it is unknown.

        With several inputs the watermark is that of the slowest. Then the broker's timestamps decide: deleted records
        are older than the first remaining one, and no valid row is ahead of its record by more than the input allows.
        """
        inputs = list(self._flow.named_inputs.values())
        watermarks = [input_.watermark for input_ in inputs if input_.watermark is not None]
        if len(watermarks) < len(inputs) or any(range_.end is None for range_ in missing_ranges):
            return None
        if len(watermarks) > 1:
            first_left = first_timestamps(
                self._target, {(range_.topic, range_.partition): range_.end or 0 for range_ in missing_ranges}
            )
            max_future_ms = max(Duration.parse(watermark.max_future).ms for watermark in watermarks)
            newest = max(first_left.values()) if len(first_left) == len(missing_ranges) else None
            return newest and newest + timedelta(milliseconds=max_future_ms)
        planned = self._checkpoint.planned_batches()
        for batch_id in planned[:-1]:
            offsets = json.loads(self._checkpoint.offset_entry(batch_id).offsets[0] or "{}")
            if all(
                offsets.get(range_.topic, {}).get(str(range_.partition), 0) >= (range_.end or 0)
                for range_ in missing_ranges
            ):
                # The watermark of the next batch is the newest event time up to this one, less the delay.
                ms = self._checkpoint.offset_entry(batch_id + 1).watermark_ms + watermarks[0].duration.ms
                return datetime.fromtimestamp(ms / 1000, UTC)
        return None


def _skip_missing(first: str, missing_ranges: Sequence[MissingOffsets]) -> str:
    """Return the offsets to start from, after the deleted records of each partition."""
    if not missing_ranges:
        return first
    offsets = json.loads(first)
    for range_ in missing_ranges:
        if range_.end is not None:
            offsets.setdefault(range_.topic, {})[str(range_.partition)] = range_.end
    return json.dumps(offsets)
