"""Idle ticks: synthetic rows that advance the watermark of an idle input and never reach the transform."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.clients.sql import column_named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.flow.levers import Watermark

_TICK = "_headrace_beat"

# Earlier than any event.
_MIN_TIME = datetime(1, 1, 1)  # noqa: DTZ001 - Spark reads it in the session's zone, and a day more or less is the same


def with_idle_ticks(rows: DataFrame, watermark: Watermark, ticks: DataFrame) -> DataFrame:
    """Apply the watermark to the rows of an input and to idle ticks. `ticks` has one column, of event times.

    All other columns of a tick are null, so the columns become nullable in the schema. The rows that are returned
    contain no such nulls.
    """
    delay, column = watermark.duration.spark(), watermark.column
    time = F.col(ticks.columns[0]).cast(rows.schema[column].dataType)
    tick_rows = ticks.select(time.alias(column), F.lit(True).alias(_TICK))
    combined = rows.withColumn(_TICK, F.lit(False)).unionByName(tick_rows, allowMissingColumns=True)
    watermarked = combined.withWatermark(column, delay)
    # Spark pushes a filter below the watermark unless it reads the watermark column. There it would remove the ticks
    # before they advance the watermark. So this filter reads the column, without effect.
    return watermarked.where(~F.col(_TICK) | (column_named(column) < F.lit(_MIN_TIME))).drop(_TICK)
