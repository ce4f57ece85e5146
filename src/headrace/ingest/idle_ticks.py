"""Beats among the rows of an input: they move the watermark, and nobody behind it sees them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.flow.levers import Watermark

_BEAT = "_headrace_beat"

# Before any event.
_NEVER = datetime(1, 1, 1)  # noqa: DTZ001 - Spark reads it in the session's zone, and a day more or less is the same


def with_beats(rows: DataFrame, watermark: Watermark, beats: DataFrame) -> DataFrame:
    """Return the rows of an input under their watermark, which beats move too. `beats` has one column, of event times.

    All other columns of a beat are null, so columns that never were null may be by their type; by their values they
    are not.
    """
    delay, column = watermark.duration.spark(), watermark.column
    time = F.col(beats.columns[0]).cast(rows.schema[column].dataType)
    beating = beats.select(time.alias(column), F.lit(True).alias(_BEAT))
    both = rows.withColumn(_BEAT, F.lit(False)).unionByName(beating, allowMissingColumns=True)
    marked = both.withWatermark(column, delay)
    # Spark moves a filter below the watermark unless it reads the watermark's column; there it would take the beats out
    # before they have moved anything. So this filter reads the column, to no effect.
    return marked.where(~F.col(_BEAT) | (F.col(f"`{column}`") < F.lit(_NEVER))).drop(_BEAT)
