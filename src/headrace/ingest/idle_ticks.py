"""Idle ticks: synthetic rows that advance the watermark of an idle input and never reach the transform.

They are added before the watermark and dropped after it.
"""

from datetime import datetime

from pyspark.sql import DataFrame, functions as F

from headrace.clients.sql import column_named

_TICK = "_headrace_idle_tick"

# Earlier than any event.
_MIN_TIME = datetime(1, 1, 1)  # noqa: DTZ001 - Spark reads it in the session's zone, and a day more or less is the same


def add_idle_ticks(rows: DataFrame, column: str, ticks: DataFrame) -> DataFrame:
    """Add idle ticks to the rows of an input. `ticks` has one column of event times, and `column` is that of the rows.

    All other columns of a tick are null, so the columns become nullable in the schema. The rows contain no such nulls
    after `drop_idle_ticks`.
    """
    time = F.col(ticks.columns[0]).cast(rows.schema[column].dataType)
    tick_rows = ticks.select(time.alias(column), F.lit(True).alias(_TICK))
    return rows.withColumn(_TICK, F.lit(False)).unionByName(tick_rows, allowMissingColumns=True)


def drop_idle_ticks(rows: DataFrame, column: str) -> DataFrame:
    """Return the rows without idle ticks. `column` has the watermark, which keeps the times of the ticks."""
    # Spark pushes a filter below the watermark unless it reads the watermark column. There it would remove the ticks
    # before they advance the watermark. So this filter reads the column, without effect.
    return rows.where(~F.col(_TICK) | (column_named(column) < F.lit(_MIN_TIME))).drop(_TICK)
