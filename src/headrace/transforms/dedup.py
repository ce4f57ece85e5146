"""One row per key, however often a producer sends it.

The rule, for batches and streams: a row is left out when a row of the same key was kept whose event time is at most the
watermark's delay before its own.

A stream keeps each key until its delay is over, and so can do no better than the rule for rows that are further apart.
Spark forgets a key when the *watermark* is past its event time plus the delay. Until that, it goes on leaving rows out:
between one and two delays apart a repeated key may or may not appear, depending on what else has arrived.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.errors import FlowError
from headrace.flow.levers import Watermark

# Spark marks the column of a watermark with its delay, in milliseconds.
_DELAY_MARK = "spark.watermarkDelayMs"


def deduplicate(rows: DataFrame, *key: str, within: Watermark) -> DataFrame:
    """Keep the first row of each key within the watermark's delay.

    `within` is the watermark of the flow's input: the same value goes to `Input(watermark=...)`. A stream under another
    one is refused, because it would leave out other rows than a batch. A batch keeps the row of the earliest event
    time, a stream the one that came first.
    """
    if not key:
        raise _refused("No column was named as the key.", "Without one every row would be its own.", "Name the key.")
    if rows.isStreaming:
        require_watermark(rows, within.column, within)
        return rows.dropDuplicatesWithinWatermark(list(key))
    return _first_of_each(rows, key, within)


def require_watermark(rows: DataFrame, column: str, declared: Watermark | None = None) -> None:
    """Raise HR-231 unless a stream has a watermark on the column, and the declared one if that is given."""
    marks = {field.name: field.metadata.get(_DELAY_MARK) for field in rows.schema}
    delay = marks.get(column)
    if delay is None:
        found = next((name for name, mark in marks.items() if mark is not None), None)
        raise _refused(
            f"There is no watermark on '{column}'.",
            f"It is on '{found}'." if found else "The rows have none, so nothing that is kept could ever be forgotten.",
            f"Declare it on the input, and keep the column: Watermark('{column}', ...).",
        )
    if declared is not None and delay != declared.duration.ms:
        raise _refused(
            f"The stream's watermark on '{column}' is {delay / 1000:g} seconds, and 'within' says '{declared.delay}'.",
            "Spark keeps each key for the delay of the stream's watermark.",
            "Give the input and 'within' the same value.",
        )


def _first_of_each(rows: DataFrame, key: tuple[str, ...], within: Watermark) -> DataFrame:
    delay = F.make_dt_interval(secs=F.lit(within.duration.seconds))
    each = F.struct(F.col(within.column).alias("at"), F.struct("*").alias("row"))
    # Compared by time alone: rows may hold maps, which have no order.
    by_time = F.array_sort(F.collect_list(each), _earlier)
    gathered = rows.groupBy(*key).agg(by_time.alias("all"))
    nothing = F.struct(
        F.filter(F.transform("all", lambda one: one["row"]), lambda _: F.lit(False)).alias("kept"),
        F.lit(None).cast(rows.schema[within.column].dataType).alias("last"),
    )

    def taken(so_far: Column, one: Column) -> Column:
        is_new = so_far["last"].isNull() | (one["at"] > so_far["last"] + delay)
        longer = F.struct(F.concat(so_far["kept"], F.array(one["row"])).alias("kept"), one["at"].alias("last"))
        return F.when(is_new, longer).otherwise(so_far)

    kept = F.aggregate("all", nothing, taken)["kept"]
    return gathered.select(F.inline(kept)).select(*rows.columns)


def _earlier(one: Column, other: Column) -> Column:
    return F.when(one["at"] < other["at"], -1).when(one["at"] > other["at"], 1).otherwise(0)


def _refused(what: str, why: str, remedy: str) -> FlowError:
    return FlowError(what, why=why, state="Nothing was started.", remedy=remedy, code="HR-231")
