"""The guard against event times in the future, for sources that have columns of their own and no broker's timestamp.

They are compared with the clock of the batch. Spark writes it into the offset log before the batch runs, so a batch
that is run again judges as it did before, and an audit can judge the same rows once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.transforms.parse import BAD

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headrace.flow.levers import Watermark

# The reason that the quarantine gives, as for records of Kafka.
IN_FUTURE = "event_time_in_future"


def judged_by_clock(rows: DataFrame, watermark: Watermark, clock: Column) -> DataFrame:
    """Add whether a row's event time is past the clock by more than the watermark's `ahead`."""
    guard = F.make_dt_interval(secs=F.lit(watermark.ahead_duration.seconds))
    ahead = F.col(f"`{watermark.column}`").cast("timestamp") > clock + guard
    return rows.withColumn(BAD, F.coalesce(ahead, F.lit(False)))


def in_time(rows: DataFrame) -> DataFrame:
    """Return the rows that were judged to be in time, as they came."""
    return rows.where(~F.col(BAD)).drop(BAD)
