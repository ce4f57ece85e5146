"""The judge of rows of sources that have columns of their own: the guard against event times in the future, and rules.

Event times are compared with the clock of the batch. Spark writes it into the offset log before the batch runs, so a
batch that is run again judges as it did before, and an audit can judge the same rows once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.ingest import rules
from headrace.ingest.parse import BAD

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headrace.flow.inputs import Input

# The reason that the quarantine gives, as for records of Kafka.
IN_FUTURE = "event_time_in_future"


def judged_by_clock(rows: DataFrame, given: Input, clock: Column) -> DataFrame:
    """Add whether a row's event time is past the clock by more than the watermark's `ahead`, and which rules it breaks.

    A row that breaks a rule which files it is bad, too.
    """
    ruled = rows.withColumn(BAD, _is_ahead(given, clock)).withColumns(rules.verdicts(given.rules, F.col(BAD)))
    return ruled.withColumn(BAD, F.col(BAD) | rules.broken(given.rules, "quarantine")) if given.rules else ruled


def in_time(rows: DataFrame, given: Input) -> DataFrame:
    """Return the rows that were judged to be good, as they came."""
    kept = rows.where(~F.col(BAD) & ~rules.broken(given.rules, "drop"))
    return kept.drop(BAD, *rules.columns(given.rules))


def with_reason(rows: DataFrame, given: Input) -> DataFrame:
    """Return the rows that were judged bad, with the `reason` for each."""
    return rows.where(F.col(BAD)).withColumn("reason", rules.with_rule(given.rules, F.lit(IN_FUTURE)))


def _is_ahead(given: Input, clock: Column) -> Column:
    if given.watermark is None:
        return F.lit(False)
    guard = F.make_dt_interval(secs=F.lit(given.watermark.ahead_duration.seconds))
    ahead = F.col(f"`{given.watermark.column}`").cast("timestamp") > clock + guard
    return F.coalesce(ahead, F.lit(False))
