"""Reduce the changes of a table to the latest one of each key, as a MERGE needs them."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, functions as F, types as T

from headrace.cdc.apply.key_ranges import Range, ordered_key_columns
from headrace.cdc.apply.table import TableWrite, struct_fields
from headrace.errors import DataError, UnreadableChange


def log_order() -> Column:
    """Return the sort order of the source log. A snapshot row comes before the changes at its position."""
    return F.struct("_position", F.col("_op") != "r", "_offset")


@dataclass(frozen=True)
class ChangeCounts:
    """Statistics of a batch of latest changes, computed in one pass.

    | field       | meaning                                                                                      |
    |-------------|----------------------------------------------------------------------------------------------|
    | spans       | the minimum and maximum of each column of the key that has an order                          |
    | keys        | the number of keys                                                                           |
    | deletes     | the number of keys whose last change is a delete                                             |
    | updates     | the number of keys whose last change is an update                                            |
    | truncated   | the position of the last truncate, or None                                                   |
    | missing     | the number of keys whose last row has missing values                                         |
    | moved       | whether a row under a new key has missing values                                             |
    | first, last | the minimum and maximum position                                                             |
    """

    spans: Mapping[str, Range]
    keys: int
    deletes: int
    updates: int
    truncated: str | None
    missing: int
    moved: bool
    first: str | None
    last: str | None


def latest_changes(changes: DataFrame) -> DataFrame:
    """Return the last change of each key; a truncate is the last change of the key null.

    If the database did not write a value of the last change to its log, `fill_missing_values` takes it from an earlier
    change.
    """
    last = F.max_by(F.struct("_op", "_position", "_commit_time", "_after", "_missing"), log_order()).alias("last")
    first_unreadable = F.max(F.try_element_at("_unreadable", F.lit(1))).alias("_unreadable")
    moved = F.max((F.col("_op") == "c") & (F.size("_unavailable") > 0)).alias("_moved")
    complete_changes = ensure_unreadable_column(changes).withColumn("_missing", F.col("_unavailable"))
    return (
        complete_changes.groupBy("_key")
        .agg(last, first_unreadable, moved)
        .select("_key", "last.*", "_unreadable", "_moved")
    )


def ensure_unreadable_column(changes: DataFrame) -> DataFrame:
    """Return changes with the column `_unreadable`, empty if the decoder did not add it."""
    if "_unreadable" in changes.columns:
        return changes
    return changes.withColumn("_unreadable", F.array().cast("array<string>"))


def unreadable_value_error(into: TableWrite, column: str) -> UnreadableChange:
    """Return HR-540: a text does not fit the type of its column."""
    return UnreadableChange(
        f"A change of table {into.table} cannot be read.",
        why=f"A text in column {column} does not fit the type of the column in the source's catalogue.",
        state="Nothing of the batch was written to this table.",
        remedy="Compare the column's type in the source and in the table. If the type was changed, restart the flow: "
        "each start reads the catalogue again.",
    )


def missing_value_error(into: TableWrite) -> DataError:
    """Return HR-541: the log, the batch and the table have no copy of a large value."""
    return DataError(
        f"A change of table {into.table} has a missing value.",
        why="The database does not log a large value that did not change, and neither the table nor the batch has the "
        "earlier value of the row.",
        state="Nothing of the batch was written to this table: a null would be wrong.",
        remedy="Set REPLICA IDENTITY FULL on the table, and repair the row from the source.",
        code="HR-541",
    )


def count_changes(rows: DataFrame, into: TableWrite) -> ChangeCounts:
    """Count reduced changes, in one job. It is the first job that computes them. Raises HR-540 for unreadable ones."""
    truncate, names = F.col("_op") == "t", ordered_key_columns(rows)
    keys = [F.col("_key")[name] for name in names]
    row = rows.agg(
        F.count_if(~truncate),
        F.count_if(F.col("_op") == "d"),
        F.count_if(F.col("_op") == "u"),
        F.max(F.when(truncate, F.col("_position"))),
        F.count_if((F.size("_missing") > 0) & F.col("_op").isin("c", "u", "r")),
        F.max("_moved"),
        F.min("_position"),
        F.max("_position"),
        F.max("_unreadable"),
        *(end for name, key in zip(names, keys, strict=True) for end in _key_min_max(rows, name, key)),
    ).first()
    assert row is not None  # noqa: S101 - an aggregate without a group has one row
    *counts, unreadable = row[:9]
    if unreadable is not None:
        raise unreadable_value_error(into, unreadable)
    ends = row[9:]
    spans = {
        name: (ends[2 * n], ends[2 * n + 1]) for n, name in enumerate(names) if None not in ends[2 * n : 2 * n + 2]
    }
    return ChangeCounts(spans, *counts)


def _key_min_max(rows: DataFrame, name: str, key: Column) -> tuple[Column, Column]:
    """Return the minimum and maximum of a column of the key; null for a date outside of Python's range."""
    least, greatest = F.min(key), F.max(key)
    if isinstance(struct_fields(rows, "_key")[name].dataType, T.DateType):
        return F.when(F.year(least) >= dt.MINYEAR, least), F.when(F.year(greatest) <= dt.MAXYEAR, greatest)
    return least, greatest


def fill_missing_values(rows: DataFrame, changes: DataFrame) -> DataFrame:
    """Return reduced changes whose missing values are filled from earlier changes of the batch.

    `_from` has the position of each filled value: the table may have a newer one. `_missing` lists the columns that no
    change of the batch contains: their values are in the table.
    """
    names = struct_fields(rows, "_after").names
    # A row that moved to this key without its values: earlier values in the batch belong to another row.
    lacking = rows.where((F.size("_missing") > 0) & F.col("_op").isin("c", "u", "r") & ~F.col("_moved")).select("_key")
    # An update never follows a delete, so the newest available value is never from before a delete.
    values = [_newest_value(name).alias(f"v{number}") for number, name in enumerate(names)]
    earlier_values = changes.join(F.broadcast(lacking), "_key", "left_semi").groupBy("_key").agg(*values)
    with_earlier_values = rows.join(F.broadcast(earlier_values), "_key", "left")
    fills = [
        (name, F.array_contains("_missing", name) & F.col("_after").isNotNull(), F.col(f"v{number}"))
        for number, name in enumerate(names)
    ]
    after = F.struct(
        *(F.when(lacks, newest["value"]).otherwise(F.col("_after")[name]).alias(name) for name, lacks, newest in fills)
    )
    nowhere = [F.when(lacks & newest.isNull(), F.lit(name)) for name, lacks, newest in fills]
    origin = [
        F.when(lacks & newest.isNotNull(), F.struct(F.lit(name), newest["position"])) for name, lacks, newest in fills
    ]
    return with_earlier_values.select(
        "_key",
        "_op",
        "_position",
        "_commit_time",
        F.when(F.col("_after").isNotNull(), after).alias("_after"),
        F.filter(F.array(*nowhere), lambda name: name.isNotNull()).alias("_missing"),
        F.map_from_entries(F.filter(F.array(*origin), lambda entry: entry.isNotNull())).alias("_from"),
        "_moved",
    )


def _newest_value(name: str) -> Column:
    present = F.col("_after").isNotNull() & ~F.array_contains("_unavailable", name)
    value = F.struct(F.col("_after")[name].alias("value"), F.col("_position").alias("position"))
    return F.max_by(F.when(present, value), F.when(present, log_order()))
