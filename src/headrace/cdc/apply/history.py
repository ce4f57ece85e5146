"""Apply changes to a history table: every version of every row with its validity period (SCD type 2)."""

from dataclasses import dataclass
from typing import Literal

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, functions as F, types as T

from headrace.cdc.apply import key_ranges, timeline as cdc_timeline, tombstones
from headrace.cdc.apply.key_changes import fill_unavailable_values_after_key_change
from headrace.cdc.apply.latest_change import ChangeCounts, count_changes, missing_value_error
from headrace.cdc.apply.table import POSITION, SMALL_BATCH_CONF, TableWrite, create_table, struct_fields
from headrace.clients.spark.settings import session_settings
from headrace.clients.sql import quote_name
from headrace.errors import FlowError
from headrace.sinks.batch.persist import locally_checkpointed
from headrace.sinks.delta.table import DELETED

OP, UNTIL, ENDED, TAKEN = "_headrace_op", "_headrace_until", "_headrace_ended", "_headrace_taken"

# The columns of a timeline.
_TIMELINE_COLUMNS = ("_key", "_position", "_rank", "_op", "_at", "_after", "_missing", "_old")
# The maximum number of keys that are broadcast; more keys are shuffled.
_MAX_BROADCAST_KEYS = 100_000


@dataclass(frozen=True)
class History:
    """Store every version of a row: the columns of the table and the period in which they were valid (SCD type 2).

    | field   | default | meaning                                                                                    |
    |---------|---------|--------------------------------------------------------------------------------------------|
    | deletes | `close` | `close` ends the version; `mark` also adds a row that is marked as deleted                 |
    | prefix  | none    | prefix of `valid_from`, `valid_to` and `is_current`, if the source has such columns        |

    | column              | contains                                                                                 |
    |---------------------|------------------------------------------------------------------------------------------|
    | `valid_from`        | the commit time of the change at the source                                              |
    | `valid_to`          | the commit time of the key's next change or of a truncate; null before it                |
    | `is_current`        | whether `valid_to` is null                                                               |
    | `_headrace_position`, `_headrace_op` | the position of the change in the source's log, and its operation       |
    | `_headrace_until`, `_headrace_ended` | position and operation of the change that ended the version             |
    | `_headrace_taken`   | columns that the log omits: their values are those of the previous version               |
    | `_headrace_deleted` | with `mark`: whether the row marks a delete; then it has the key and no values           |

    Versions are in the order of the source log. The history depends on the set of changes only, not on their order of
    arrival or on duplicates: a late change is inserted at its position, and the adjacent versions get new ends. A
    version starts no later than the next one, even if the clock of the source went back, or another snapshot was taken
    after the first changes.

    If an update has no copy of a large value, the version takes the value of the previous version. A row under a new
    primary key takes the value of the version that ended under the old key. If no copy exists: HR-541.

    A batch is two commits, ends and then versions, and each records the batch. After a crash between the two, the ends
    are stored and their versions are still open; the retried batch skips the first commit and makes the second.
    """

    deletes: Literal["close", "mark"] = "close"
    prefix: str = ""

    @property
    def validity_columns(self) -> tuple[str, str, str]:
        """The names of the columns with the validity period."""
        return f"{self.prefix}valid_from", f"{self.prefix}valid_to", f"{self.prefix}is_current"

    @property
    def metadata_columns(self) -> T.StructType:
        """The columns that the source does not have."""
        since, to, current = self.validity_columns
        columns = T.StructType().add(since, T.TimestampType()).add(to, T.TimestampType()).add(current, T.BooleanType())
        for name in (POSITION, OP, UNTIL, ENDED):
            columns = columns.add(name, T.StringType())
        columns = columns.add(TAKEN, T.ArrayType(T.StringType()))
        return columns.add(DELETED, T.BooleanType()) if self.deletes == "mark" else columns

    def columns(self, key: T.StructType, after: T.StructType) -> T.StructType:
        """Return the columns of the table: the source's and the metadata columns."""
        return T.StructType([*after.fields, *self.metadata_columns.fields])

    def apply(self, changes: DataFrame, into: TableWrite) -> None:
        """Put the changes of one table in one batch into their places. Called once per attempt."""
        session, after = changes.sparkSession, struct_fields(changes, "_after")
        alike = sorted({*after.names} & {*self.metadata_columns.names})
        if alike:
            raise FlowError(
                f"Table {into.table} has a column '{alike[0]}', and so has its history.",
                why="A history adds columns for the validity period of each version.",
                state="Nothing of the batch was written to this table.",
                remedy="Set a prefix for the columns of the history: History(prefix='row_').",
                code="HR-248",
            )
        with session_settings(session, SMALL_BATCH_CONF), locally_checkpointed(cdc_timeline.events(changes)) as events:
            counts = count_changes(events, into)
            if counts.first is None:
                return
            key = struct_fields(events, "_key")
            create_table(session, into.location, self.columns(key, after), key.names)
            if not counts.moved:
                self._apply_events(events, counts, into)
                return
            versions = session.read.format("delta").load(into.location).where(~F.col(OP).isin("d", "t"))
            deleted_at = F.when(F.col(ENDED).isin("d", "t"), F.col(UNTIL))
            with locally_checkpointed(
                cdc_timeline.events(fill_unavailable_values_after_key_change(changes, versions, deleted_at))
            ) as moved:
                self._apply_events(moved, count_changes(moved, into), into)

    def _apply_events(self, events: DataFrame, counts: ChangeCounts, into: TableWrite) -> None:
        session = events.sparkSession
        # 1. Ends first: a late version must not miss a delete that arrived before it.
        before = tombstones.tombstone_index(session, into)
        if counts.deletes or counts.truncated is not None:
            tombstones.write_tombstones(events.where(F.col("_op").isin("d", "t")), into)
            tombstones.cache_index(session, into, before.updated(counts.last, counts.truncated))
        with locally_checkpointed(self._affected_versions(events, counts, into)) as near:
            # 2. The versions of the batch and their neighbours, with the known ends of their keys.
            timeline = cdc_timeline.merge_with_stored_versions(_timeline_rows(events, near, counts, before, into))
            # 3. The rows that the table lacks or stores differently.
            rows = cdc_timeline.changed_rows(cdc_timeline.resolve_versions(timeline), ends=self.deletes == "mark")
            with locally_checkpointed(rows) as once:
                if _require_values(once, into):
                    with into.commit(session):
                        self._merge_versions(once, into)

    def _affected_versions(self, events: DataFrame, counts: ChangeCounts, into: TableWrite) -> DataFrame:
        """Return the versions of the table that may get another end: those that had not ended at a key's first change.

        Ended both by log position and by time: a version must not start later than the next event.
        """
        stored = self._stored_versions(events, into)
        bounds = _first_changes(events, counts)
        if counts.truncated is None:
            ranges = key_ranges.key_column_ranges(events, counts.spans, counts.keys)
            near = stored.where(key_ranges.key_range_condition(ranges, "old")).join(bounds, "_key")
        else:
            # A truncate is a change of every key.
            truncate = (
                F.when(F.col("_op") == "t", F.col("_position")),
                F.when(F.col("_op") == "t", F.col("_commit_time")),
            )
            first = events.agg(F.min(truncate[0]).alias("at"), F.min(truncate[1]).alias("when"))
            near = stored.crossJoin(F.broadcast(first)).join(bounds, "_key", "left")
            near = near.withColumns({"_first": F.least("_first", "at"), "_since": F.least("_since", "when")})
        over = (F.col("_old.until") < F.col("_first")) & (F.col("_old.to") <= F.col("_since"))
        return near.where(~F.coalesce(over, F.lit(False))).select(*_TIMELINE_COLUMNS)

    def _stored_versions(self, events: DataFrame, into: TableWrite) -> DataFrame:
        """Return the versions of the table as rows of a timeline, with the table's columns under the alias `old`."""
        since, to, current = (F.col(f"old.{quote_name(name)}") for name in self.validity_columns)
        old = F.struct(
            since.alias("since"),
            to.alias("to"),
            current.alias("current"),
            F.col(f"old.{UNTIL}").alias("until"),
            F.col(f"old.{ENDED}").alias("ended"),
        )
        rank = cdc_timeline.order_within_position(F.col(f"old.{OP}"))
        values = _stored_struct(struct_fields(events, "_after").names)
        return (
            DeltaTable.forPath(events.sparkSession, into.location)
            .toDF()
            .alias("old")
            .withColumns(
                {
                    "_key": _stored_struct(struct_fields(events, "_key").names),
                    "_position": F.col(f"old.{POSITION}"),
                    "_rank": rank,
                    "_op": F.col(f"old.{OP}"),
                    "_at": since,
                    "_after": F.when(rank != cdc_timeline.END, values),
                    "_missing": F.col(f"old.{TAKEN}"),
                    "_old": old,
                }
            )
        )

    def _merge_versions(self, rows: DataFrame, into: TableWrite) -> None:
        keys, names = struct_fields(rows, "_key").names, struct_fields(rows, "_after").names
        same = [f"old.{quote_name(name)} = new._key.{quote_name(name)}" for name in keys]
        place = f"old.{POSITION} = new._position AND CASE WHEN old.{OP} = 'r' THEN {cdc_timeline.SNAPSHOT} "
        place += f"WHEN old.{OP} IN ('d', 't') THEN {cdc_timeline.END} ELSE {cdc_timeline.VERSION} END = new._rank"
        since, to, current = self.validity_columns
        values: dict[str, str | Column] = {quote_name(name): f"new._values.{quote_name(name)}" for name in names}
        values |= {quote_name(name): f"new._key.{quote_name(name)}" for name in keys}
        values |= {
            quote_name(since): "new._now.since",
            quote_name(to): "new._now.to",
            quote_name(current): "new._now.current",
        }
        values |= {UNTIL: "new._now.until", ENDED: "new._now.ended"}
        first = values | {POSITION: "new._position", OP: "new._op", TAKEN: "new._missing"}
        if self.deletes == "mark":
            first |= {DELETED: f"new._rank = {cdc_timeline.END}"}
        (
            DeltaTable.forPath(rows.sparkSession, into.location)
            .alias("old")
            .merge(rows.alias("new"), " AND ".join([*same, place]))
            .whenMatchedDelete("new._gone")
            .whenMatchedUpdate(set=values)
            .whenNotMatchedInsert(values=first)
            .execute()
        )


def _timeline_rows(
    events: DataFrame, near: DataFrame, counts: ChangeCounts, before: tombstones.TombstoneIndex, into: TableWrite
) -> DataFrame:
    """Return the versions and ends of the keys of a batch, starting with the first change of each key."""
    first = str(counts.first)
    batch = events.withColumnRenamed("_commit_time", "_at")
    truncates = batch.where(F.col("_op") == "t").select("_position", "_op", "_at")
    ends = cdc_timeline.version_end_events(near)
    if before.newest is not None and before.newest >= first:
        of_keys = _tombstones(events, into).where(F.col("_op") == "d").join(_first_changes(events, counts), "_key")
        ends = ends.unionByName(of_keys.where(F.col("_position") >= F.col("_first")).select(*ends.columns))
    swept = before.truncated is not None and before.truncated >= first
    if swept:
        late = _tombstones(events, into).where((F.col("_op") == "t") & (F.col("_position") >= first))
        truncates = truncates.unionByName(late.select(*truncates.columns))
    if swept or counts.truncated is not None:
        keys = batch.where(F.col("_op") != "t").select("_key").union(near.select("_key")).distinct()
        ends = ends.unionByName(keys.crossJoin(F.broadcast(truncates)))
    ranked = ends.withColumn("_rank", F.lit(cdc_timeline.END))
    versions = batch.where(F.col("_op") != "t").select(*(name for name in _TIMELINE_COLUMNS if name != "_old"))
    return near.unionByName(versions, allowMissingColumns=True).unionByName(ranked, allowMissingColumns=True)


def _first_changes(events: DataFrame, counts: ChangeCounts) -> DataFrame:
    """Return the first log position and the first commit time of each key in this batch."""
    key_changes = events.where(F.col("_op") != "t").groupBy("_key")
    bounds = key_changes.agg(F.min("_position").alias("_first"), F.min("_commit_time").alias("_since"))
    return F.broadcast(bounds) if counts.keys <= _MAX_BROADCAST_KEYS else bounds


def _tombstones(events: DataFrame, into: TableWrite) -> DataFrame:
    """Return the tombstones of a table as ends of versions."""
    every = F.col(f"old.{tombstones.EVERY_KEY}")
    return (
        tombstones.read(events.sparkSession, into)
        .alias("old")
        .select(
            _stored_struct(struct_fields(events, "_key").names).alias("_key"),
            F.col(f"old.{POSITION}").alias("_position"),
            F.when(every, "t").otherwise("d").alias("_op"),
            F.col(f"old.{tombstones.DELETED_AT}").alias("_at"),
        )
    )


def _require_values(rows: DataFrame, into: TableWrite) -> bool:
    totals = rows.agg(F.count("*"), F.max("_lacks")).first()
    assert totals is not None  # noqa: S101 - an aggregate without a group has one row
    if totals[1]:
        raise missing_value_error(into)
    return bool(totals[0])


def _stored_struct(names: list[str]) -> Column:
    return F.struct(*(F.col(f"old.{quote_name(name)}").alias(name) for name in names))
