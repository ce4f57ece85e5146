"""Counters in the query (observed metrics), and the conversion of Spark's progress into an event.

| counter             | position                   | counts                                                      |
|---------------------|----------------------------|-------------------------------------------------------------|
| headrace_in_INPUT   | after validation           | rows of an input, invalid rows, rows that violate each rule |
| headrace_time_INPUT | after the watermark        | the newest event time                                       |
| headrace_out        | after the transform        | rows for the sink                                           |

The second counter has another purpose, too. The optimizer pushes filters of the transform below a watermark, where they
would remove idle ticks before these advance it. It pushes nothing past a counter.

Continuous processing does not support counters, so its flows have none.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress

from headrace.flow.rules import Rule
from headrace.ingest import rules
from headrace.ingest.parse import INVALID
from headrace.runtime.events import BatchCommitted
from headrace.runtime.state.size import operator_states
from headrace.spark_plan.source_order import PlannedSource

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IN, _TIME, _OUT = "headrace_in_", "headrace_time_", "headrace_out"
_RULE = "rule_"


def count_validated(rows: DataFrame, name: str, input_rules: Sequence[Rule] = ()) -> DataFrame:
    """Count the rows of an input, the invalid rows and the violations of each rule."""
    counts = (F.count(F.lit(1)).alias("rows"), F.count_if(F.col(INVALID)).alias("invalid"))
    return rows.observe(f"{_IN}{name}", *counts, *rules.count_violations(input_rules, _RULE))


def track_event_time(rows: DataFrame, name: str, column: str) -> DataFrame:
    """Track the newest event time of an input, and keep filters above its watermark.

    The value is a number: a timestamp reaches Python as a string or as a datetime, depending on the path.
    """
    return rows.observe(f"{_TIME}{name}", F.unix_micros(F.max(column).cast("timestamp")).alias("newest"))


def count_results(rows: DataFrame) -> DataFrame:
    """Count the rows for the sink."""
    return rows.observe(_OUT, F.count(F.lit(1)).alias("rows"))


def batch_committed(flow: str, progress: StreamingQueryProgress, order: Sequence[PlannedSource]) -> BatchCommitted:
    """Convert Spark's progress of a committed batch into an event. `order` says which sources are idle ticks."""
    observed = {name: row.asDict() for name, row in progress.observedMetrics.items()}
    dropped = tuple(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
    return BatchCommitted(
        flow=flow,
        batch_id=progress.batchId,
        rows_in=sum(
            source.numInputRows
            for planned, source in zip(order, progress.sources, strict=False)
            if planned.role == "rows"
        ),
        rows_out=int(observed.get(_OUT, {}).get("rows", 0)),
        invalid={name.removeprefix(_IN): int(row["invalid"]) for name, row in observed.items() if name.startswith(_IN)},
        violations={name.removeprefix(_IN): _violations(row) for name, row in observed.items() if name.startswith(_IN)},
        dropped=sum(dropped),
        duration_ms=int(progress.durationMs.get("triggerExecution", 0)),
        watermark=progress.eventTime.get("watermark"),
        state=operator_states(progress.stateOperators),
        progress={"json": progress.json},
        dropped_by_operator=dropped,
        newest_event_times={
            name.removeprefix(_TIME): _EPOCH + timedelta(microseconds=int(row["newest"]))
            for name, row in observed.items()
            if name.startswith(_TIME) and row["newest"] is not None
        },
    )


def _violations(observed: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of violations per rule."""
    return {name.removeprefix(_RULE): int(rows) for name, rows in observed.items() if name.startswith(_RULE)}
