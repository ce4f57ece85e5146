"""Merge changes into a mirror: a table with the current rows of its source (SCD type 1)."""

from dataclasses import dataclass
from typing import Literal

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, functions as F, types as T

from headrace.cdc.apply import key_ranges, replace_where, tombstones
from headrace.cdc.apply.key_changes import fill_unavailable_values_after_key_change
from headrace.cdc.apply.latest_change import (
    ChangeCounts,
    count_changes,
    fill_missing_values,
    latest_changes,
    missing_value_error,
)
from headrace.cdc.apply.replace_where import RecentChanges
from headrace.cdc.apply.table import (
    POSITION,
    SMALL_BATCH_CONF,
    TableWrite,
    create_table,
    enable_deletion_vectors,
    struct_fields,
)
from headrace.cdc.apply.tombstones import TombstoneIndex
from headrace.clients.spark.delta_log import is_empty
from headrace.clients.spark.settings import session_settings
from headrace.clients.sql import quote_name, string_literal
from headrace.sinks.batch.concurrency import in_background
from headrace.sinks.batch.persist import locally_checkpointed
from headrace.sinks.delta.table import DELETED

DELETED_AT = tombstones.DELETED_AT
_LACKS = "headrace: no copy of a missing value"
# This many keys need a few megabytes in each task.
_MAX_BROADCAST_KEYS = 100_000


@dataclass(frozen=True)
class Mirror:
    """Store the current row of each key (SCD type 1), with the log position of its change.

    | field   | default | meaning                                                                                  |
    |---------|---------|------------------------------------------------------------------------------------------|
    | deletes | `hard`  | `hard` removes the row and keeps a tombstone; `soft` keeps it, marked as deleted         |

    A change older than the row, its tombstone or the last truncate is skipped. Several changes of a key in a batch are
    merged as one, the latest. `CdcMaintenance` removes old tombstones.

    Changes have the columns and types of the table. If the log has no copy of a large value, the mirror keeps the value
    of its row. A row that moved to a new primary key takes the value of the row under the old key. If no copy of a
    missing value exists: HR-541.

    A batch is two commits: the first writes tombstones, the second writes rows and records the batch. After a crash
    between the two, the retried batch writes the rows.
    """

    deletes: Literal["hard", "soft"] = "hard"

    def apply(self, changes: DataFrame, into: TableWrite) -> None:
        """Merge the changes of one table in one batch. Called once per attempt."""
        with (
            session_settings(changes.sparkSession, SMALL_BATCH_CONF),
            locally_checkpointed(latest_changes(changes)) as last,
        ):
            counts = count_changes(last, into)
            if counts.first is None:
                return
            key = struct_fields(last, "_key")
            create_table(
                changes.sparkSession, into.location, self.columns(key, struct_fields(last, "_after")), key.names
            )
            enable_deletion_vectors(changes.sparkSession, into.location)
            if not counts.moved:
                self._fill_and_merge(last, counts, changes, into)
                return
            table = changes.sparkSession.read.format("delta").load(into.location)
            filled_changes = fill_unavailable_values_after_key_change(changes, table)
            with locally_checkpointed(latest_changes(filled_changes)) as moved:
                self._fill_and_merge(moved, count_changes(moved, into), filled_changes, into)

    def _fill_and_merge(self, last: DataFrame, counts: ChangeCounts, changes: DataFrame, into: TableWrite) -> None:
        if not counts.missing:
            self._write_changes(last, counts, into)
            return
        with locally_checkpointed(fill_missing_values(last, changes)) as filled_changes:
            self._write_changes(filled_changes, counts, into)

    def columns(self, key: T.StructType, after: T.StructType) -> T.StructType:
        """Return the columns of the table: those of the source, and metadata columns."""
        columns = T.StructType([*after.fields, T.StructField(POSITION, T.StringType())])
        if self.deletes == "soft":
            columns = columns.add(DELETED, T.BooleanType()).add(DELETED_AT, T.TimestampType())
        return columns

    def _write_changes(self, last: DataFrame, counts: ChangeCounts, into: TableWrite) -> None:
        session = last.sparkSession
        before, was = tombstones.tombstone_index(session, into), replace_where.table_id_and_version(session, into)
        # Tombstones and rows are written concurrently. The batch is complete when both are committed.
        is_deleted = F.col("_op").isin("d", "t") if self.deletes == "hard" else F.col("_op") == "t"
        writes_tombstones = counts.truncated is not None or (counts.deletes and self.deletes == "hard")
        with (
            into.commit(session),
            in_background(
                session, writes_tombstones, lambda: tombstones.write_tombstones(last.where(is_deleted), into)
            ),
        ):
            try:
                recent = self._write_rows(last, counts, before, into)
            except (PySparkException, Py4JJavaError) as error:
                if _LACKS in str(error):
                    raise missing_value_error(into) from error
                raise
        replace_where.cache_positions(session, into, was, str(counts.last), recent)
        if writes_tombstones:
            tombstones.cache_index(session, into, before.updated(counts.last, counts.truncated))

    def _write_rows(
        self, last: DataFrame, counts: ChangeCounts, before: TombstoneIndex, into: TableWrite
    ) -> RecentChanges | None:
        """Replace the rows of the keys, append the rows or merge them: the first of these that is possible.

        Returns the changes that the table has now, if rows were replaced.
        """
        if self._can_replace(last, counts, into) and (recent := self._replace_rows(last, counts, before, into)):
            return recent
        ranges = key_ranges.key_column_ranges(last, counts.spans, counts.keys)
        # Skip changes older than a tombstone or a truncate. Changes that arrive in the order of the log never are.
        rows = last.where(F.col("_op") != "t")
        for truncated in (before.truncated, counts.truncated):
            rows = rows if truncated is None else rows.where(F.col("_position") >= truncated)
        if before.newest is not None and str(counts.first) <= before.newest:
            rows = tombstones.drop_deleted_keys(rows, into, key_ranges.key_range_condition(ranges, "old"))
        if not self._append_rows(rows, counts, into, ranges):
            self._merge_rows(rows, counts, into, ranges)
        return None

    def _can_replace(self, last: DataFrame, counts: ChangeCounts, into: TableWrite) -> bool:
        """Return whether every change of a batch has its full row, and the table supports replaceWhere."""
        key = struct_fields(last, "_key")
        needs_old_row = counts.missing or (counts.deletes and self.deletes == "soft")
        if (
            needs_old_row
            or counts.truncated is not None
            or not replace_where.can_list_keys_in_condition(key, counts.keys)
        ):
            return False
        if not (counts.deletes or counts.updates):
            return False
        return replace_where.supports_replace(
            last.sparkSession, into, self.columns(key, struct_fields(last, "_after")).names
        )

    def _replace_rows(
        self, last: DataFrame, counts: ChangeCounts, before: TombstoneIndex, into: TableWrite
    ) -> RecentChanges | None:
        """Replace the rows of the keys, except for stale changes. Returns the applied changes, or None if it cannot."""
        session, key = last.sparkSession, struct_fields(last, "_key")
        newest_position = max(replace_where.newest_position(session, into), before.newest or "")
        # A truncate is a tombstone of every key: a lookup of some keys does not find it.
        if str(counts.first) < (before.truncated or ""):
            return None
        changes = replace_where.collect_changes(last)
        older = None if changes is None else replace_where.stale_keys(session, key, changes, newest_position, into)
        if changes is None or older is None:
            return None
        newer = replace_where.without_keys(last, older)
        applied = {row_key: change for row_key, change in changes.items() if row_key not in older}
        replace_where.replace_rows(self._new_rows(newer.where(F.col("_op") != "d")), key, list(applied), into)
        return RecentChanges(newest_position, applied)

    def _append_rows(
        self, rows: DataFrame, counts: ChangeCounts, into: TableWrite, ranges: dict[str, list[key_ranges.Range]]
    ) -> bool:
        """Append a batch that has only new rows, if none of its keys is in the table. Returns whether it did.

        The table can already have a row that is new at the source: a topic may be read again, or out of order.
        """
        session, keys = rows.sparkSession, struct_fields(rows, "_key").names
        clears = counts.truncated is not None and not is_empty(session, into.location)
        if counts.deletes or counts.updates or counts.missing or clears:
            return False
        batch_keys = rows.select(*(F.col("_key")[name].alias(name) for name in keys))
        # Spark does not know the size of checkpointed rows.
        batch_keys = F.broadcast(batch_keys) if counts.keys <= _MAX_BROADCAST_KEYS else batch_keys
        stored = (
            session.read.format("delta")
            .load(into.location)
            .alias("old")
            .where(key_ranges.key_range_condition(ranges, "old"))
        )
        if not stored.join(batch_keys, keys, "left_semi").isEmpty():
            return False
        self._new_rows(rows).write.format("delta").mode("append").save(into.location)
        return True

    def _new_rows(self, changes: DataFrame) -> DataFrame:
        """Return the rows after the changes."""
        new = changes.select("_after.*", F.col("_position").alias(POSITION))
        if self.deletes == "soft":
            new = new.withColumns({DELETED: F.lit(False), DELETED_AT: F.lit(None).cast("timestamp")})
        return new

    def _merge_rows(
        self, rows: DataFrame, counts: ChangeCounts, into: TableWrite, ranges: dict[str, list[key_ranges.Range]]
    ) -> None:
        names = struct_fields(rows, "_after").names
        keys = struct_fields(rows, "_key").names
        same = [f"old.{quote_name(name)} = new._key.{quote_name(name)}" for name in keys]
        on = F.expr(" AND ".join(same))
        if counts.truncated is None:
            on = key_ranges.key_range_condition(ranges, "old") & on
        # A snapshot row is the state of the source at its position: a change at that position happened after it.
        newer = f"(new._position > old.{POSITION} OR (new._position = old.{POSITION} AND new._op <> 'r'))"
        values: dict[str, str | Column] = {
            quote_name(name): _updated_value(name, bool(counts.missing)) for name in names
        }
        values[POSITION] = "new._position"
        first: dict[str, str | Column] = {
            quote_name(name): _inserted_value(name, bool(counts.missing)) for name in names
        }
        first[POSITION] = "new._position"
        merge = DeltaTable.forPath(rows.sparkSession, into.location).alias("old").merge(rows.alias("new"), on)
        if self.deletes == "hard":
            merge = merge.whenMatchedDelete(f"new._op = 'd' AND {newer}")
            merge = merge.whenMatchedUpdate(newer, values).whenNotMatchedInsert("new._op <> 'd'", first)
        else:
            mark: dict[str, str | Column] = {DELETED: "true", DELETED_AT: "new._commit_time", POSITION: "new._position"}
            alive: dict[str, str | Column] = {DELETED: "false", DELETED_AT: "CAST(NULL AS TIMESTAMP)"}
            bare: dict[str, str | Column] = {quote_name(name): f"new._key.{quote_name(name)}" for name in keys}
            merge = merge.whenMatchedUpdate(f"new._op = 'd' AND {newer}", mark).whenMatchedUpdate(newer, values | alive)
            merge = merge.whenNotMatchedInsert("new._op = 'd'", bare | mark).whenNotMatchedInsert(values=first | alive)
        if counts.truncated is not None:
            older = f"old.{POSITION} < {string_literal(counts.truncated)}"
            if self.deletes == "hard":
                merge = merge.whenNotMatchedBySourceDelete(older)
            else:
                at: dict[str, str | Column] = {DELETED: F.lit(True), POSITION: F.lit(counts.truncated)}
                merge = merge.whenNotMatchedBySourceUpdate(f"{older} AND NOT old.{DELETED}", at)
        merge.execute()


def _updated_value(name: str, missing: bool) -> str:
    new = f"new._after.{quote_name(name)}"
    if not missing:
        return new
    # A value from an earlier change of the batch may be older than the table's: the change may be a redelivered one.
    older = f"COALESCE(new._from[{string_literal(name)}] <= old.{POSITION}, false)"
    missing_here = f"array_contains(new._missing, {string_literal(name)})"
    # Another row had this key before, unless the table already has this change.
    unknown = f"{missing_here} AND new._moved AND new._position <> old.{POSITION}"
    filled_value = f"IF({missing_here} OR {older}, old.{quote_name(name)}, {new})"
    return f"IF({unknown}, raise_error({string_literal(_LACKS)}), {filled_value})"


def _inserted_value(name: str, missing: bool) -> str:
    new = f"new._after.{quote_name(name)}"
    if not missing:
        return new
    return f"IF(array_contains(new._missing, {string_literal(name)}), raise_error({string_literal(_LACKS)}), {new})"
