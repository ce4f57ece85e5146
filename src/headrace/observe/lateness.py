"""Which rows of a batch came too late, exactly, as the late ledger keeps them.

Spark counts late rows after partial aggregation, so its number is too small, and drops them. Here the rows that reach
an operator with state are computed once more, by the same transform, from the same offsets, and compared with the same
watermark as Spark did: see `late_plan`.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.spark_plan.late_filters import AT, LateFilter

_FROM = ("input", "topic", "partition", "offset", "row_id")


def late(found: LateFilter, watermark_ms: int) -> DataFrame:
    """Return the rows that a filter dropped: one for each window of a row that was closed."""
    assert found.rows is not None  # noqa: S101 - the caller tells of rows that come out of state otherwise
    names = found.rows.columns
    # Names may repeat, such as two columns called `window`: positions do not.
    rows = found.rows.toDF(*(f"_{number}" for number in range(len(names))))
    columns = {number: F.col(f"_{number}") for number in range(len(names))}
    compared = columns[found.column]
    at = next((columns[number] for number, name in enumerate(names) if name == AT), None)
    watermark = F.timestamp_millis(F.lit(watermark_ms))
    bound = compared.getField("end") if found.window else compared
    event_time = _event_time(at, None if found.window else compared)
    shown = [
        column.alias(names[number])
        for number, column in columns.items()
        if names[number] != AT and not (found.window and number == found.column)
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
