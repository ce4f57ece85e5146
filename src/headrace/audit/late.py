"""Find the exact late rows of batches, and the drops that no row explains.

Spark drops late rows and counts them after partial aggregation, so its number is too small. The audit recomputes the
rows that reach a stateful operator, with the same transform, offsets and watermark: see `spark_plan.late_filters`.

A filter is evaluated if Spark counted drops there, or if the count is unknown: a killed driver loses it. Spark's count
is at most the number of rows, so a ledger with fewer rows than that is incomplete: the difference is reported as
unexplained, with the reason.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import StructType

from headrace.errors import SourceNotReplayable
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.target import Target
from headrace.ingest.future_events import drop_invalid, validate_by_clock
from headrace.ingest.parse import valid_rows, validate
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.spark_plan.late_filters import (
    ORIGIN,
    LateFilter,
    LateFilters,
    find_late_filters,
    mark_input,
    record_position,
)

# The fields of a late row's origin.
_ORIGIN = ("input", "topic", "partition", "offset", "row_id")

_OUT_OF_STATE = "They come from the state of another operator, and cannot be computed from the batch alone."
_NO_ROWS_FOUND = "Spark counted more than the rows of the batch explain. The transform may not be pure."


@dataclass(frozen=True)
class UnrecordedDrop:
    """Late rows of one batch that are not in the ledger. `dropped` is Spark's count; None if unknown."""

    batch_id: int
    operator: str
    dropped: int | None
    why: str


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
    def can_drop_rows(self) -> bool:
        """Whether any operator of the flow can drop late rows. Without a watermark none can."""
        if all(input_.watermark is None for input_ in self._flow.named_inputs.values()):
            return False
        return bool(self._late_plan.filters)

    @cached_property
    def _late_plan(self) -> LateFilters:
        """The filters that drop late rows, found by planning with empty frames."""
        frames = {name: self._empty_input(name, input_) for name, input_ in self._flow.named_inputs.items()}
        return find_late_filters(self._flow.apply(frames), self._flow.mode)

    def rows(self, dropped: Mapping[int, tuple[int, ...] | None]) -> tuple[list[DataFrame], list[UnrecordedDrop]]:
        """Return the late rows of batches, per batch and filter, and the drops of batches that cannot be read again."""
        late_rows: list[DataFrame] = []
        drops: list[UnrecordedDrop] = []
        for number, counts in dropped.items() if self.can_drop_rows else ():
            try:
                frames = {
                    name: self._input_rows(number, name, input_) for name, input_ in self._flow.named_inputs.items()
                }
            except SourceNotReplayable as error:
                # Reported as unexplained: no later attempt helps.
                drops.append(UnrecordedDrop(number, "", None if counts is None else sum(counts), error.why))
                continue
            watermark_ms = self._checkpoint.offset_entry(number - 1).watermark_ms
            for late_filter in find_late_filters(self._flow.apply(frames), self._flow.mode).filters:
                if late_filter.rows is not None and self._dropped_count(late_filter, counts) != 0:
                    rows = dropped_rows(late_filter, watermark_ms)
                    late_rows.append(rows.withColumn("batch_id", F.lit(number).cast("long")))
        return late_rows, drops

    def find_unrecorded_drops(
        self,
        dropped: Mapping[int, tuple[int, ...] | None],
        ledger: DataFrame | None,
        reported: Sequence[UnrecordedDrop],
    ) -> list[UnrecordedDrop]:
        """Return what Spark counted per batch and operator beyond the recorded rows, unless it is already reported."""
        counted = {number: counts for number, counts in dropped.items() if counts is not None and any(counts)}
        counted = {
            number: counts for number, counts in counted.items() if number not in {drop.batch_id for drop in reported}
        }
        if not counted:
            return []
        recorded: dict[tuple[int, int], int] = {}
        if ledger is not None:
            # One row of the ledger per closed window; Spark counts those, too.
            for row in ledger.groupBy("batch_id", "operator_number").count().collect():
                recorded[row["batch_id"], row["operator_number"]] = row["count"]
        return [drop for number, counts in counted.items() for drop in self._missing_drops(number, counts, recorded)]

    def _missing_drops(
        self, number: int, counts: tuple[int, ...], recorded: Mapping[tuple[int, int], int]
    ) -> Iterator[UnrecordedDrop]:
        if len(counts) != self._late_plan.operators:
            missing = sum(counts) - sum(rows for (batch, _), rows in recorded.items() if batch == number)
            if missing > 0:
                yield UnrecordedDrop(number, "", missing, _NO_ROWS_FOUND)
            return
        for operator, count in enumerate(counts):
            missing = count - recorded.get((number, operator), 0)
            if missing > 0:
                filters = [late_filter for late_filter in self._late_plan.filters if late_filter.number == operator]
                why = _OUT_OF_STATE if any(late_filter.rows is None for late_filter in filters) else _NO_ROWS_FOUND
                yield UnrecordedDrop(number, filters[0].operator if filters else "", missing, why)

    def to_dataframe(self, drops: Sequence[UnrecordedDrop]) -> DataFrame:
        """Return drops as rows of their table."""
        rows = [(drop.batch_id, drop.operator, drop.dropped, drop.why) for drop in drops]
        return self._session.createDataFrame(rows, "batch_id long, operator string, dropped long, why string")

    def _dropped_count(self, late_filter: LateFilter, counts: tuple[int, ...] | None) -> int | None:
        """Return how many rows Spark counted at a filter's operator, or None if unknown."""
        # The two lists differ if Spark's optimizer has removed or added an operator.
        return None if counts is None or len(counts) != self._late_plan.operators else counts[late_filter.number]

    def _input_rows(self, batch_id: int, name: str, input_: Input) -> DataFrame:
        """Return the rows of an input that the transform got in a batch. Raises if they cannot be read again."""
        scan = self._scan(batch_id, name)
        if scan is None:
            return self._empty_input(name, input_)
        if input_.columns is None:
            clock = F.timestamp_millis(F.lit(self._checkpoint.offset_entry(batch_id).timestamp_ms))
            rows = drop_invalid(validate_by_clock(scan, input_, clock), input_) if input_.rules else scan
            return mark_input(rows, name, input_, scan.columns)
        return mark_input(
            valid_rows(validate(scan, input_), input_, record_position()), name, input_, input_.columns.names
        )

    def _empty_input(self, name: str, input_: Input) -> DataFrame:
        if name not in self._schemas:
            schema = input_.columns or input_.source.stream(self._session, self._target).schema
            self._schemas[name] = schema
        schema = self._schemas[name]
        return mark_input(self._session.createDataFrame([], schema), name, input_, schema.names)


def dropped_rows(late_filter: LateFilter, watermark_ms: int) -> DataFrame:
    """Return the rows that a filter dropped: one for each closed window of a row."""
    assert late_filter.rows is not None  # noqa: S101 - the caller reports rows that come out of state differently
    names = late_filter.rows.columns
    # Names may repeat, such as two columns called `window`: positions do not.
    rows = late_filter.rows.toDF(*(f"_{number}" for number in range(len(names))))
    columns = {number: F.col(f"_{number}") for number in range(len(names))}
    compared = columns[late_filter.column]
    origin = next((columns[number] for number, name in enumerate(names) if name == ORIGIN), None)
    watermark = F.timestamp_millis(F.lit(watermark_ms))
    bound = compared.getField("end") if late_filter.window else compared
    event_time = _event_time(origin, None if late_filter.window else compared)
    fields = [
        column.alias(names[number])
        for number, column in columns.items()
        if names[number] != ORIGIN and not (late_filter.window and number == late_filter.column)
    ]
    origin_columns = [_origin_field(origin, name).alias(name) for name in _ORIGIN]
    return rows.where(bound <= watermark).select(
        F.to_json(F.struct(*fields)).alias("row"),
        (compared.getField("start") if late_filter.window else F.lit(None).cast("timestamp")).alias("window_start"),
        (bound if late_filter.window else F.lit(None).cast("timestamp")).alias("window_end"),
        watermark.alias("watermark"),
        event_time.alias("event_time"),
        ((F.unix_micros(watermark) - F.unix_micros(event_time)) / 1_000_000.0).alias("late_by"),
        F.lit(late_filter.operator).alias("operator"),
        F.lit(late_filter.number).alias("operator_number"),
        *origin_columns,
    )


def _event_time(origin: Column | None, compared: Column | None) -> Column:
    if origin is not None:
        return origin.getField("event_time")
    return F.lit(None).cast("timestamp") if compared is None else compared.cast("timestamp")


def _origin_field(origin: Column | None, name: str) -> Column:
    kinds = {"partition": "int", "offset": "long"}
    return F.lit(None).cast(kinds.get(name, "string")) if origin is None else origin.getField(name)
