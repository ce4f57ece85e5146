"""Changes merged into a mirror: a table that equals its source, row for row (SCD type 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.cdc.apply import key_ranges, replace, tombstones
from headrace.cdc.apply.key_changes import with_moved
from headrace.cdc.apply.reduce import Counts, counts, filled, lacks_value, reduced, unreadable
from headrace.cdc.apply.replace import Recent
from headrace.cdc.apply.table import POSITION, QUICK, Into, fields, make, mark_rows_where_it_pays
from headrace.cdc.apply.tombstones import Graves
from headrace.sinks.batch.concurrency import meanwhile
from headrace.sinks.batch.persist import pinned
from headrace.sinks.delta.log import is_empty
from headrace.sinks.delta.sql import quoted, settings, text
from headrace.sinks.delta.table import DELETED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DELETED_AT = tombstones.DELETED_AT
_LACKS = "headrace: no value is known"
# So many keys take a few megabytes in each task that looks for them.
_TO_EVERY_TASK = 100_000


@dataclass(frozen=True)
class Mirror:
    """Keep the table as its source is: one row per key, the newest. Each row says the position of its change.

    | field   | default | meaning                                                                                  |
    |---------|---------|------------------------------------------------------------------------------------------|
    | deletes | `hard`  | `hard` removes the row and keeps a tombstone; `soft` keeps it, marked as deleted         |

    A change older than what is known of its key is passed over: older than the row, than the tombstone of the key, or
    than the last truncate. Several changes of a key in a batch are merged as one, the last. `Upkeep` ends tombstones.

    Changes have the columns and types that the table was made with. A row under a new primary key that lacks a large
    value takes that of the row under the old key; one that is nowhere known is refused (HR-541).

    A batch is two commits, of tombstones and of rows, the second of which records the batch. A crash between the two is
    made good by the batch that is run again.
    """

    deletes: Literal["hard", "soft"] = "hard"

    def apply(self, changes: DataFrame, into: Into) -> None:
        """Merge the changes of one table in one batch. Called once per attempt."""
        with settings(changes.sparkSession, QUICK), pinned(reduced(changes)) as last:
            found = counts(last)
            if found.unreadable is not None:
                raise unreadable(into, found.unreadable)
            if found.first is None:
                return
            key = fields(last, "_key")
            make(changes.sparkSession, into.location, self.columns(key, fields(last, "_after")), key.names)
            mark_rows_where_it_pays(changes.sparkSession, into.location)
            if not found.moved:
                self._fill(last, found, changes, into)
                return
            table = changes.sparkSession.read.format("delta").load(into.location)
            whole = with_moved(changes, table)
            with pinned(reduced(whole)) as moved:
                self._fill(moved, counts(moved), whole, into)

    def _fill(self, last: DataFrame, found: Counts, changes: DataFrame, into: Into) -> None:
        if not found.missing:
            self._merge(last, found, into)
            return
        with pinned(filled(last, changes)) as whole:
            self._merge(whole, found, into)

    def columns(self, key: T.StructType, after: T.StructType) -> T.StructType:
        """Return the columns of the table: the source's and its own."""
        columns = T.StructType([*after.fields, T.StructField(POSITION, T.StringType())])
        if self.deletes == "soft":
            columns = columns.add(DELETED, T.BooleanType()).add(DELETED_AT, T.TimestampType())
        return columns

    def _merge(self, last: DataFrame, found: Counts, into: Into) -> None:
        session = last.sparkSession
        before, was = tombstones.known(session, into), replace.state(session, into)
        # What is gone is written at the same time as the rows: either alone is not the batch yet.
        gone = F.col("_op").isin("d", "t") if self.deletes == "hard" else F.col("_op") == "t"
        buries = found.truncated is not None or (found.deletes and self.deletes == "hard")
        with into.commit(session), meanwhile(session, buries, lambda: tombstones.bury(last.where(gone), into)):
            try:
                recent = self._write(last, found, before, into)
            except (PySparkException, Py4JJavaError) as error:
                if _LACKS in str(error):
                    raise lacks_value(into) from error
                raise
        replace.remember(session, into, was, str(found.last), recent)
        if buries:
            tombstones.remember(session, into, before.with_those_of(found.last, found.truncated))

    def _write(self, last: DataFrame, found: Counts, before: Graves, into: Into) -> Recent | None:
        """Append the rows, replace those of their keys or merge them: the first of these that does.

        Returns the changes that are known now, where rows were replaced.
        """
        if self._can_replace(last, found, into) and (recent := self._replaced(last, found, before, into)):
            return recent
        ranges = key_ranges.ranges_of(last, found.spans, found.keys)
        # What is older than a tombstone, or than a truncate, is passed over. Changes in the log's order never are.
        rows = last.where(F.col("_op") != "t")
        for truncated in (before.truncated, found.truncated):
            rows = rows if truncated is None else rows.where(F.col("_position") >= truncated)
        if before.newest is not None and str(found.first) <= before.newest:
            rows = tombstones.without_gone(rows, into, key_ranges.within(ranges, "old"))
        if not self._appended(rows, found, into, ranges):
            self._execute(rows, found, into, ranges)
        return None

    def _can_replace(self, last: DataFrame, found: Counts, into: Into) -> bool:
        """Return whether every change of a batch holds its whole row, and the table is one whose rows are replaced."""
        key = fields(last, "_key")
        needs_old_row = found.missing or (found.deletes and self.deletes == "soft")
        if needs_old_row or found.truncated is not None or not replace.can_be_named(key, found.keys):
            return False
        if not (found.deletes or found.updates):
            return False
        return replace.takes_it(last.sparkSession, into, self.columns(key, fields(last, "_after")).names)

    def _replaced(self, last: DataFrame, found: Counts, before: Graves, into: Into) -> Recent | None:
        """Replace the rows of the keys, but for changes that are older than what is known; None where it cannot.

        Returns the changes that it applied.
        """
        session, key = last.sparkSession, fields(last, "_key")
        known = max(replace.newest(session, into), before.newest or "")
        # A truncate is a tombstone of every key, which no look at a few keys finds.
        if str(found.first) < (before.truncated or ""):
            return None
        changes = replace.collected(last)
        older = None if changes is None else replace.older(session, key, changes, known, into)
        if changes is None or older is None:
            return None
        newer = replace.without(last, older)
        applied = {each: change for each, change in changes.items() if each not in older}
        replace.replace(self._rows(newer.where(F.col("_op") != "d")), key, list(applied), into)
        return Recent(known, applied)

    def _appended(self, rows: DataFrame, found: Counts, into: Into, ranges: dict[str, list[key_ranges.Range]]) -> bool:
        """Append a batch of nothing but new rows, where none of its keys is in the table. Says whether it did.

        It looks, although a new row of the source cannot be in its mirror: a topic may be read again, or out of order.
        """
        session, keys = rows.sparkSession, fields(rows, "_key").names
        clears = found.truncated is not None and not is_empty(session, into.location)
        if found.deletes or found.updates or found.missing or clears:
            return False
        told = rows.select(*(F.col("_key")[name].alias(name) for name in keys))
        # The size of rows that are pinned is not known to Spark.
        told = F.broadcast(told) if found.keys <= _TO_EVERY_TASK else told
        held = session.read.format("delta").load(into.location).alias("old").where(key_ranges.within(ranges, "old"))
        if not held.join(told, keys, "left_semi").isEmpty():
            return False
        self._rows(rows).write.format("delta").mode("append").save(into.location)
        return True

    def _rows(self, changes: DataFrame) -> DataFrame:
        """Return the rows that changes end in."""
        new = changes.select("_after.*", F.col("_position").alias(POSITION))
        if self.deletes == "soft":
            new = new.withColumns({DELETED: F.lit(False), DELETED_AT: F.lit(None).cast("timestamp")})
        return new

    def _execute(self, rows: DataFrame, found: Counts, into: Into, ranges: dict[str, list[key_ranges.Range]]) -> None:
        names = fields(rows, "_after").names
        keys = fields(rows, "_key").names
        same = [f"old.{quoted(name)} = new._key.{quoted(name)}" for name in keys]
        on = F.expr(" AND ".join(same))
        if found.truncated is None:
            on = key_ranges.within(ranges, "old") & on
        # A row of a snapshot is what the source held at its position: a change at that position came after it.
        newer = f"(new._position > old.{POSITION} OR (new._position = old.{POSITION} AND new._op <> 'r'))"
        values: dict[str, str | Column] = {quoted(name): _value(name, bool(found.missing)) for name in names}
        values[POSITION] = "new._position"
        first: dict[str, str | Column] = {quoted(name): _first_value(name, bool(found.missing)) for name in names}
        first[POSITION] = "new._position"
        merge = DeltaTable.forPath(rows.sparkSession, into.location).alias("old").merge(rows.alias("new"), on)
        if self.deletes == "hard":
            merge = merge.whenMatchedDelete(f"new._op = 'd' AND {newer}")
            merge = merge.whenMatchedUpdate(newer, values).whenNotMatchedInsert("new._op <> 'd'", first)
        else:
            mark: dict[str, str | Column] = {DELETED: "true", DELETED_AT: "new._commit_time", POSITION: "new._position"}
            alive: dict[str, str | Column] = {DELETED: "false", DELETED_AT: "CAST(NULL AS TIMESTAMP)"}
            bare: dict[str, str | Column] = {quoted(name): f"new._key.{quoted(name)}" for name in keys}
            merge = merge.whenMatchedUpdate(f"new._op = 'd' AND {newer}", mark).whenMatchedUpdate(newer, values | alive)
            merge = merge.whenNotMatchedInsert("new._op = 'd'", bare | mark).whenNotMatchedInsert(values=first | alive)
        if found.truncated is not None:
            older = f"old.{POSITION} < '{found.truncated}'"
            if self.deletes == "hard":
                merge = merge.whenNotMatchedBySourceDelete(older)
            else:
                at: dict[str, str | Column] = {DELETED: F.lit(True), POSITION: F.lit(found.truncated)}
                merge = merge.whenNotMatchedBySourceUpdate(f"{older} AND NOT old.{DELETED}", at)
        merge.execute()


def _value(name: str, missing: bool) -> str:
    new = f"new._after.{quoted(name)}"
    if not missing:
        return new
    # A value from an earlier change of the batch may be older than the table's: the batch may hold content read again.
    older = f"COALESCE(new._from[{text(name)}] <= old.{POSITION}, false)"
    missing_here = f"array_contains(new._missing, {text(name)})"
    # The row under this key was another one before, unless this very change is in.
    unknown = f"{missing_here} AND new._moved AND new._position <> old.{POSITION}"
    kept = f"IF({missing_here} OR {older}, old.{quoted(name)}, {new})"
    return f"IF({unknown}, raise_error({text(_LACKS)}), {kept})"


def _first_value(name: str, missing: bool) -> str:
    new = f"new._after.{quoted(name)}"
    if not missing:
        return new
    return f"IF(array_contains(new._missing, {text(name)}), raise_error({text(_LACKS)}), {new})"
