"""The late rows of batches, exactly, and what cannot be told about them.

Spark counts late rows after partial aggregation, so its number is too small, and drops them. Here the rows that reach
an operator with state are computed once more, by the same transform, from the same offsets, and compared with the same
watermark as Spark did: see `spark_plan.late_filters`.

A filter is looked at when Spark counted drops there, or when nobody knows: after a kill the count is gone with the
driver. Spark's count is at most the number of rows, so a ledger with fewer rows than that misses some: the difference
is told as unexplained, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.errors import DataError
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.target import Target
from headrace.ingest.future_events import drop_invalid, validate_by_clock
from headrace.ingest.parse import valid_rows, validate
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.spark_plan.late_filters import (
    ORIGIN,
    LateFilter,
    LatePlan,
    find_late_filters,
    mark_input,
    record_position,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

# The error of a source whose rows cannot be had a second time. They are told as unexplained: no later attempt helps.
_NOT_AGAIN = "HR-511"

_FROM = ("input", "topic", "partition", "offset", "row_id")

_OUT_OF_STATE = "They came out of the state of another operator, and cannot be computed from the batch alone."
_NO_ROWS_FOUND = "Spark counted more than the rows of the batch explain. The transform may not be pure."


@dataclass(frozen=True)
class Unexplained:
    """Late rows of one batch that are not in the ledger. `dropped` is Spark's count; None where it is not known."""

    batch_id: int
    operator: str
    dropped: int | None
    why: str

    def as_dict(self) -> dict[str, object]:
        """The gap as `--json` prints it."""
        return asdict(self)


class LateAudit:
    """Finds the late rows of one flow. Used by its audit, on one thread."""

    def __init__(
        self,
        session: SparkSession,
        target: Target,
        flow: Flow,
        checkpoint: Checkpoint,
        scan: Callable[[int, str], DataFrame | None],
    ) -> None:
        self._session, self._target, self._flow, self._checkpoint, self._scan = session, target, flow, checkpoint, scan
        self._schemas: dict[str, StructType] = {}

    @cached_property
    def possible(self) -> bool:
        """Whether the flow has a place where rows can be late. Without a watermark it has none."""
        if all(given.watermark is None for given in self._flow.named_inputs.values()):
            return False
        return bool(self._shape.filters)

    @cached_property
    def _shape(self) -> LatePlan:
        """The places where rows are dropped, found with frames that hold no rows."""
        frames = {name: self._empty(name, given) for name, given in self._flow.named_inputs.items()}
        return find_late_filters(self._flow.apply(frames), self._flow.mode)

    def rows(self, dropped: Mapping[int, tuple[int, ...] | None]) -> tuple[list[DataFrame], list[Unexplained]]:
        """Return the late rows of batches, a frame per batch and filter, and what cannot be read again."""
        parts: list[DataFrame] = []
        gaps: list[Unexplained] = []
        for number, counts in dropped.items() if self.possible else ():
            try:
                frames = {name: self._frame(number, name, given) for name, given in self._flow.named_inputs.items()}
            except DataError as error:
                if error.code != _NOT_AGAIN:
                    raise
                gaps.append(Unexplained(number, "", None if counts is None else sum(counts), error.why))
                continue
            watermark_ms = self._checkpoint.offset_entry(number - 1).watermark_ms
            for found in find_late_filters(self._flow.apply(frames), self._flow.mode).filters:
                if found.rows is not None and self._count(found, counts) != 0:
                    parts.append(late(found, watermark_ms).withColumn("batch_id", F.lit(number).cast("long")))
        return parts, gaps

    def short(
        self, dropped: Mapping[int, tuple[int, ...] | None], filed: DataFrame | None, told: Sequence[Unexplained]
    ) -> list[Unexplained]:
        """Return what Spark counted per batch and operator beyond the rows that are filed, unless it is told of."""
        counted = {number: counts for number, counts in dropped.items() if counts is not None and any(counts)}
        counted = {number: counts for number, counts in counted.items() if number not in {gap.batch_id for gap in told}}
        if not counted:
            return []
        held: dict[tuple[int, int], int] = {}
        if filed is not None:
            # One row of the ledger per closed window; Spark counts those, too.
            for row in filed.groupBy("batch_id", "operator_number").count().collect():
                held[row["batch_id"], row["operator_number"]] = row["count"]
        return [gap for number, counts in counted.items() for gap in self._missing(number, counts, held)]

    def _missing(
        self, number: int, counts: tuple[int, ...], held: Mapping[tuple[int, int], int]
    ) -> Iterator[Unexplained]:
        if len(counts) != self._shape.operators:
            missing = sum(counts) - sum(rows for (batch, _), rows in held.items() if batch == number)
            if missing > 0:
                yield Unexplained(number, "", missing, _NO_ROWS_FOUND)
            return
        for operator, count in enumerate(counts):
            missing = count - held.get((number, operator), 0)
            if missing > 0:
                filters = [each for each in self._shape.filters if each.number == operator]
                why = _OUT_OF_STATE if any(each.rows is None for each in filters) else _NO_ROWS_FOUND
                yield Unexplained(number, filters[0].operator if filters else "", missing, why)

    def frame(self, gaps: Sequence[Unexplained]) -> DataFrame:
        """Return gaps as rows of their table."""
        rows = [(gap.batch_id, gap.operator, gap.dropped, gap.why) for gap in gaps]
        return self._session.createDataFrame(rows, "batch_id long, operator string, dropped long, why string")

    def _count(self, found: LateFilter, counts: tuple[int, ...] | None) -> int | None:
        """Return how many rows Spark counted at a filter's operator, or None when that is not known."""
        # An operator that Spark's optimizer has taken out, or added, makes the two lists differ.
        return None if counts is None or len(counts) != self._shape.operators else counts[found.number]

    def _frame(self, batch_id: int, name: str, given: Input) -> DataFrame:
        """Return what the transform was given of an input in a batch; raises when it cannot be read again."""
        scan = self._scan(batch_id, name)
        if scan is None:
            return self._empty(name, given)
        if given.columns is None:
            clock = F.timestamp_millis(F.lit(self._checkpoint.offset_entry(batch_id).timestamp_ms))
            rows = drop_invalid(validate_by_clock(scan, given, clock), given) if given.rules else scan
            return mark_input(rows, name, given, scan.columns)
        return mark_input(valid_rows(validate(scan, given), given, record_position()), name, given, given.columns.names)

    def _empty(self, name: str, given: Input) -> DataFrame:
        if name not in self._schemas:
            schema = given.columns or given.source.stream(self._session, self._target).schema
            self._schemas[name] = schema
        schema = self._schemas[name]
        return mark_input(self._session.createDataFrame([], schema), name, given, schema.names)


def late(found: LateFilter, watermark_ms: int) -> DataFrame:
    """Return the rows that a filter dropped: one for each window of a row that was closed."""
    assert found.rows is not None  # noqa: S101 - the caller tells of rows that come out of state otherwise
    names = found.rows.columns
    # Names may repeat, such as two columns called `window`: positions do not.
    rows = found.rows.toDF(*(f"_{number}" for number in range(len(names))))
    columns = {number: F.col(f"_{number}") for number in range(len(names))}
    compared = columns[found.column]
    at = next((columns[number] for number, name in enumerate(names) if name == ORIGIN), None)
    watermark = F.timestamp_millis(F.lit(watermark_ms))
    bound = compared.getField("end") if found.window else compared
    event_time = _event_time(at, None if found.window else compared)
    shown = [
        column.alias(names[number])
        for number, column in columns.items()
        if names[number] != ORIGIN and not (found.window and number == found.column)
    ]
    origin = [_origin(at, name).alias(name) for name in _FROM]
    return rows.where(bound <= watermark).select(
        F.to_json(F.struct(*shown)).alias("row"),
        (compared.getField("start") if found.window else F.lit(None).cast("timestamp")).alias("window_start"),
        (bound if found.window else F.lit(None).cast("timestamp")).alias("window_end"),
        watermark.alias("watermark"),
        event_time.alias("event_time"),
        ((F.unix_micros(watermark) - F.unix_micros(event_time)) / 1_000_000.0).alias("late_by"),
        F.lit(found.operator).alias("operator"),
        F.lit(found.number).alias("operator_number"),
        *origin,
    )


def _event_time(at: Column | None, compared: Column | None) -> Column:
    if at is not None:
        return at.getField("event_time")
    return F.lit(None).cast("timestamp") if compared is None else compared.cast("timestamp")


def _origin(at: Column | None, name: str) -> Column:
    kinds = {"partition": "int", "offset": "long"}
    return F.lit(None).cast(kinds.get(name, "string")) if at is None else at.getField(name)
