"""The counters that ride in a query, and how they are read from what Spark tells of a batch.

| counter             | stands                     | counts                                                      |
|---------------------|----------------------------|-------------------------------------------------------------|
| headrace_in_INPUT   | behind the judge           | the rows of an input, the bad ones, those that break a rule |
| headrace_time_INPUT | behind its watermark       | the newest event time                                       |
| headrace_out        | behind the transform       | the rows that go to the sink                                |

The second one is there for another reason, too. The optimizer moves filters of the transform below a watermark, where
only their rows would move it, and no heartbeat. It moves nothing past a counter.

Continuous processing refuses counters: its flows have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from headrace.flow.rules import Rule
from headrace.ingest import rules
from headrace.ingest.parse import BAD
from headrace.runtime.events import BatchCommitted
from headrace.runtime.state.size import operator_states
from headrace.spark_plan.source_order import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import StreamingQueryProgress

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IN, _TIME, _OUT = "headrace_in_", "headrace_time_", "headrace_out"
_RULE = "rule_"


def count_judged(rows: DataFrame, name: str, given: Sequence[Rule] = ()) -> DataFrame:
    """Count the rows of an input, the bad ones among them and those that break each rule, in passing."""
    judged = (F.count(F.lit(1)).alias("rows"), F.count_if(F.col(BAD)).alias("bad"))
    return rows.observe(f"{_IN}{name}", *judged, *rules.counts(given, _RULE))


def note_time(rows: DataFrame, name: str, column: str) -> DataFrame:
    """Note the newest event time of an input, in passing, and keep filters behind its watermark.

    As a number: a time is told as text or as a moment, by the way it takes to Python.
    """
    return rows.observe(f"{_TIME}{name}", F.unix_micros(F.max(column).cast("timestamp")).alias("newest"))


def count_results(rows: DataFrame) -> DataFrame:
    """Count what goes to the sink, in passing."""
    return rows.observe(_OUT, F.count(F.lit(1)).alias("rows"))


def as_event(flow: str, progress: StreamingQueryProgress, order: Sequence[Place]) -> BatchCommitted:
    """Return what Spark tells of a batch that was committed. `order` says which of its sources are beats."""
    observed = {name: row.asDict() for name, row in progress.observedMetrics.items()}
    dropped = tuple(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
    return BatchCommitted(
        flow=flow,
        batch_id=progress.batchId,
        rows_in=sum(each.numInputRows for at, each in zip(order, progress.sources, strict=False) if at.role == "rows"),
        rows_out=int(observed.get(_OUT, {}).get("rows", 0)),
        bad={name.removeprefix(_IN): int(row["bad"]) for name, row in observed.items() if name.startswith(_IN)},
        broken={name.removeprefix(_IN): _broken(row) for name, row in observed.items() if name.startswith(_IN)},
        dropped=sum(dropped),
        duration_ms=int(progress.durationMs.get("triggerExecution", 0)),
        watermark=progress.eventTime.get("watermark"),
        state=operator_states(progress.stateOperators),
        progress={"json": progress.json},
        dropped_by=dropped,
        newest={
            name.removeprefix(_TIME): _EPOCH + timedelta(microseconds=int(row["newest"]))
            for name, row in observed.items()
            if name.startswith(_TIME) and row["newest"] is not None
        },
    )


def _broken(observed: Mapping[str, Any]) -> dict[str, int]:
    """Return how many rows broke each rule."""
    return {name.removeprefix(_RULE): int(rows) for name, rows in observed.items() if name.startswith(_RULE)}
