"""Build the timeline of each key in log order: the versions of its row and what ended them.

One row per position of the log:

| column      | type      | contains                                                                                  |
|-------------|-----------|-------------------------------------------------------------------------------------------|
| `_key`      | struct    | the key                                                                                   |
| `_position` | string    | the position in the log                                                                   |
| `_rank`     | int       | the order at one position                                                                 |
| `_op`       | string    | `c`, `u`, `r` for a version, `d` and `t` for an end                                       |
| `_at`       | timestamp | when the source committed it                                                              |
| `_after`    | struct    | the values of a version                                                                   |
| `_missing`  | array     | columns that the log omits: their values are those of the previous version                |
| `_old`      | struct    | the stored row: `since`, `to`, `current`, `until`, `ended`; null if the table has none    |
"""

from pyspark.sql import Column, DataFrame, Window, functions as F

from headrace.cdc.apply.latest_change import ensure_unreadable_column
from headrace.cdc.apply.table import struct_fields

# At one position of the log: snapshot rows first, then deletes, then new versions.
SNAPSHOT, END, VERSION = 0, 1, 2


def order_within_position(op: Column) -> Column:
    """Return the sort order of a change among those at one position of the log."""
    return F.when(op == "r", SNAPSHOT).when(op.isin("d", "t"), END).otherwise(VERSION)


def is_version() -> Column:
    """Return whether a row of a timeline is a version and not an end."""
    return F.col("_rank") != END


def events(changes: DataFrame) -> DataFrame:
    """Return the changes of a batch, each once, as `count_changes` expects them. A redelivery has the same position."""
    complete_changes = ensure_unreadable_column(changes).withColumn("_rank", order_within_position(F.col("_op")))
    first = F.min_by(F.struct("_op", "_commit_time", "_after", F.col("_unavailable").alias("_missing")), "_offset")
    unreadable = F.max(F.try_element_at("_unreadable", F.lit(1))).alias("_unreadable")
    moved = F.max((F.col("_op") == "c") & (F.size("_unavailable") > 0)).alias("_moved")
    once = complete_changes.groupBy("_key", "_position", "_rank").agg(first.alias("one"), unreadable, moved)
    return once.select("_key", "_position", "_rank", "one.*", "_unreadable", "_moved")


def version_end_events(versions: DataFrame) -> DataFrame:
    """Return the ends of stored versions: deletes and truncates."""
    ended = versions.where(is_version() & F.col("_old.ended").isin("d", "t"))
    return ended.select(
        "_key", F.col("_old.until").alias("_position"), F.col("_old.ended").alias("_op"), F.col("_old.to").alias("_at")
    )


def merge_with_stored_versions(rows: DataFrame) -> DataFrame:
    """Return a timeline with one row per log position. A stored row takes precedence over the same row in the batch."""
    stored = F.col("_old").isNotNull()
    preferred = F.max_by(F.struct("_op", "_after", "_missing", "_old"), stored)
    # All later steps work by key: one shuffle here is the only one.
    once = (
        rows.repartition("_key")
        .groupBy("_key", "_position", "_rank")
        .agg(preferred.alias("one"), F.min("_at").alias("_at"))
    )
    return once.select("_key", "_position", "_rank", "_at", "one.*")


def resolve_versions(timeline: DataFrame) -> DataFrame:
    """Return a timeline with the rows that the table must have.

    | column    | contains                                                                                          |
    |-----------|---------------------------------------------------------------------------------------------------|
    | `_now`    | as `_old`, computed from all events                                                               |
    | `_values` | as `_after`, with the values that the log omits                                                   |
    | `_lacks`  | whether no copy of such a value exists                                                            |
    | `_ends`   | whether an end is that of a version                                                               |
    """
    log = Window.partitionBy("_key").orderBy("_position", "_rank")
    so_far = log.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    stored, before = F.col("_old").isNotNull(), F.lag("_rank").over(log)
    # Nothing changed before the first row of a timeline: the stored row is correct.
    alone = before.isNull() | (before == END)
    # Before an insert, another row had the key.
    other = alone | (F.col("_op") == "c")
    placed = timeline.withColumns(
        {
            "_lacks": is_version() & (F.size("_missing") > 0) & other & ~stored,
            "_ends": ~is_version() & F.coalesce(before != END, stored),
            "_holds": is_version() & alone & stored,
        }
    )
    names = struct_fields(timeline, "_after").names
    values = [_newest_value(name, placed).over(so_far)["value"].alias(name) for name in names]
    return _with_validity(placed.withColumn("_values", F.when(is_version(), F.struct(*values))))


def _newest_value(name: str, placed: DataFrame) -> Column:
    """Return the newest value of a column that a version contains."""
    has_value = is_version() & (F.col("_holds") | ~F.array_contains("_missing", name))
    return F.last(F.when(has_value, F.struct(placed["_after"][name].alias("value"))), ignorenulls=True)


def _with_validity(placed: DataFrame) -> DataFrame:
    # From the end of the log backwards: Spark would compute a frame that starts at each row again for each row.
    back = Window.partitionBy("_key").orderBy(F.desc("_position"), F.desc("_rank"))
    from_here = back.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    behind = back.rowsBetween(Window.unboundedPreceding, -1)
    # A version starts no later than the next event, even if the clock of the source went back.
    timed = placed.withColumn("_since", F.min("_at").over(from_here))
    here = F.struct(F.col("_position").alias("until"), F.col("_op").alias("ended"), F.col("_since").alias("to"))
    version = F.last(F.when(is_version(), here), ignorenulls=True).over(behind)
    following = F.when(is_version(), F.lag(here).over(back)).otherwise(version)
    with_next = timed.withColumn("_next", following)
    now = F.struct(
        F.col("_since").alias("since"),
        F.col("_next.to").alias("to"),
        F.col("_next").isNull().alias("current"),
        F.col("_next.until").alias("until"),
        F.col("_next.ended").alias("ended"),
    )
    return with_next.withColumn("_now", now)


def changed_rows(timeline: DataFrame, *, ends: bool) -> DataFrame:
    """Return the rows of a resolved timeline that the table must insert, update or delete (`_gone`).

    With `ends` the table has a row for each end of a version.
    """
    belongs = is_version() | F.lit(ends) & F.col("_ends")
    stored = F.col("_old").isNotNull()
    same = F.col("_now").eqNullSafe(F.col("_old")) & F.col("_values").eqNullSafe(F.col("_after"))
    rows = timeline.where(F.when(belongs, ~(stored & same)).otherwise(stored))
    return rows.withColumn("_gone", ~belongs)
