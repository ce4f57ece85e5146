"""Validates rows of sources with their own columns: event times in the future, and data quality rules.

Event times are compared with the timestamp of the batch. Spark writes it into the offset log before the batch runs, so
a retried batch validates identically, and an audit can validate the same rows again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, functions as F

from headrace.clients.sql import column_named
from headrace.ingest import rules
from headrace.ingest.parse import INVALID

if TYPE_CHECKING:
    from headrace.flow.inputs import Input

# The reason in the quarantine table, the same as for Kafka records.
FUTURE_REASON = "event_time_in_future"


def validate_by_clock(rows: DataFrame, input_: Input, clock: Column) -> DataFrame:
    """Add whether a row's event time is later than the clock by more than `max_future`, and which rules it violates.

    A row that violates a rule with the action `quarantine` is invalid, too.
    """
    validated = rows.withColumn(INVALID, _is_in_future(input_, clock)).withColumns(
        rules.violation_columns(input_.rules, F.col(INVALID))
    )
    return (
        validated.withColumn(INVALID, F.col(INVALID) | rules.violates(input_.rules, "quarantine"))
        if input_.rules
        else validated
    )


def drop_invalid(rows: DataFrame, input_: Input) -> DataFrame:
    """Return the valid rows with the columns of the source."""
    valid = rows.where(~F.col(INVALID) & ~rules.violates(input_.rules, "drop"))
    return valid.drop(INVALID, *rules.violation_names(input_.rules))


def invalid_rows(rows: DataFrame, input_: Input) -> DataFrame:
    """Return the invalid rows, each with its `reason`."""
    return rows.where(F.col(INVALID)).withColumn("reason", rules.violated_rule(input_.rules, F.lit(FUTURE_REASON)))


def _is_in_future(input_: Input, clock: Column) -> Column:
    if input_.watermark is None:
        return F.lit(False)
    max_future = F.make_dt_interval(secs=F.lit(input_.watermark.max_future_duration.seconds))
    is_in_future = column_named(input_.watermark.column).cast("timestamp") > clock + max_future
    return F.coalesce(is_in_future, F.lit(False))
