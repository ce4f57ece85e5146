"""Deduplicate rows by key within the delay of the watermark.

The rule, for batches and streams: a row is dropped if an emitted row of the same key has an event time at most one
watermark delay earlier.

A stream removes a key from its state when the *watermark* is past its event time plus the delay. Until then it drops
further rows: a repeated key between one and two delays later may or may not be emitted, depending on the other rows.
"""

from pyspark.sql import Column, DataFrame, functions as F

from headrace.errors import FlowError
from headrace.flow.levers import Watermark
from headrace.spark_plan.tree import WATERMARK_DELAY


def deduplicate(rows: DataFrame, *key: str, within: Watermark) -> DataFrame:
    """Return the first row of each key within the watermark's delay.

    `within` is the watermark of the flow's input: pass the same value to `Input(watermark=...)`. A stream with another
    watermark is an error, because it would drop other rows than a batch. A batch returns the row with the earliest
    event time, a stream the row that arrives first.
    """
    if not key:
        raise _invalid("No column was named as the key.", "Without one every row would be its own.", "Name the key.")
    if rows.isStreaming:
        require_watermark(rows, within.column, within)
        return rows.dropDuplicatesWithinWatermark(list(key))
    return _first_rows(rows, key, within)


def require_watermark(rows: DataFrame, column: str, declared: Watermark | None = None) -> None:
    """Raise HR-231 unless a stream has a watermark on the column, equal to `declared` if that is set."""
    marks = {field.name: field.metadata.get(WATERMARK_DELAY) for field in rows.schema}
    delay = marks.get(column)
    if delay is None:
        marked = next((name for name, mark in marks.items() if mark is not None), None)
        raise _invalid(
            f"There is no watermark on '{column}'.",
            f"It is on '{marked}'." if marked else "The rows have none, so state could never be removed.",
            f"Declare it on the input, and keep the column: Watermark('{column}', ...).",
        )
    if declared is not None and delay != declared.duration.ms:
        raise _invalid(
            f"The stream's watermark on '{column}' is {delay / 1000:g} seconds, and 'within' says '{declared.delay}'.",
            "Spark keeps each key for the delay of the stream's watermark.",
            "Give the input and 'within' the same value.",
        )


def _first_rows(rows: DataFrame, key: tuple[str, ...], within: Watermark) -> DataFrame:
    delay = F.make_dt_interval(secs=F.lit(within.duration.seconds))
    timed_row = F.struct(F.col(within.column).alias("at"), F.struct("*").alias("row"))

    def compare_times(left: Column, right: Column) -> Column:
        return F.when(left["at"] < right["at"], -1).when(left["at"] > right["at"], 1).otherwise(0)

    # Compare by time only: rows may contain maps, which have no order.
    by_time = F.array_sort(F.collect_list(timed_row), compare_times)
    gathered = rows.groupBy(*key).agg(by_time.alias("all"))
    initial = F.struct(
        F.filter(F.transform("all", lambda timed: timed["row"]), lambda _: F.lit(False)).alias("rows"),
        F.lit(None).cast(rows.schema[within.column].dataType).alias("last"),
    )

    def accumulate(state: Column, timed: Column) -> Column:
        is_new = state["last"].isNull() | (timed["at"] > state["last"] + delay)
        longer = F.struct(F.concat(state["rows"], F.array(timed["row"])).alias("rows"), timed["at"].alias("last"))
        return F.when(is_new, longer).otherwise(state)

    first_rows = F.aggregate("all", initial, accumulate)["rows"]
    return gathered.select(F.inline(first_rows)).select(*rows.columns)


def _invalid(what: str, why: str, remedy: str) -> FlowError:
    return FlowError(what, why=why, remedy=remedy, code="HR-231")
