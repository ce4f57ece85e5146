"""Append changes to a change log: one row per change, never updated."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, functions as F, types as T

from headrace.cdc.apply.latest_change import ensure_unreadable_column, unreadable_value_error
from headrace.cdc.apply.table import SMALL_BATCH_CONF, TableWrite, create_table, struct_fields
from headrace.clients.spark.settings import session_settings
from headrace.sinks.batch.persist import locally_checkpointed

# The columns of the table: the column of the change, and its type. The types of the rows are those of the source.
_COLUMNS: Mapping[str, tuple[str, T.DataType]] = {
    "op": ("_op", T.StringType()),
    "position": ("_position", T.StringType()),
    "committed_at": ("_commit_time", T.TimestampType()),
    "transaction": ("_transaction", T.StringType()),
    "key": ("_key", T.NullType()),
    "before": ("_before", T.NullType()),
    "after": ("_after", T.NullType()),
    "unavailable": ("_unavailable", T.ArrayType(T.StringType())),
    "topic": ("_topic", T.StringType()),
    "partition": ("_partition", T.IntegerType()),
    "offset": ("_offset", T.LongType()),
}


@dataclass(frozen=True)
class ChangeLog:
    """Store every change: its operation, position and time, and the row before and after it.

    | column                         | contains                                                                        |
    |--------------------------------|---------------------------------------------------------------------------------|
    | `op`                           | `c`, `u`, `d`, `r` (snapshot) or `t` (truncate)                                 |
    | `position`                     | the position in the source's log, as text that sorts like the log               |
    | `committed_at`, `transaction`  | the commit time at the source, and the id of the transaction                    |
    | `key`                          | the primary key; null for a truncate                                            |
    | `before`, `after`              | the row's columns, typed; null before an insert and after a delete              |
    | `unavailable`                  | unchanged columns that the log omits from `after`                               |
    | `topic`, `partition`, `offset` | the record                                                                      |

    `before` depends on the source's log: all columns with a binlog or `REPLICA IDENTITY FULL`; otherwise only the key
    for a delete, and null for an update.

    Every record of the topic is in the table exactly once. A change that the connector delivers twice after a crash is
    two records, and so two rows that differ only in `offset`; `position`, `key` and `op` identify a change. A record
    that moves a row to another key is two rows.
    """

    def columns(self, key: T.StructType, after: T.StructType) -> T.StructType:
        """Return the columns of the table."""
        types = {"key": key, "before": after, "after": after}
        return T.StructType([T.StructField(name, types.get(name, kind)) for name, (_, kind) in _COLUMNS.items()])

    def apply(self, changes: DataFrame, into: TableWrite) -> None:
        """Append the changes of one table in one batch. Called once per attempt."""
        session = changes.sparkSession
        with (
            session_settings(session, SMALL_BATCH_CONF),
            locally_checkpointed(ensure_unreadable_column(changes)) as once,
        ):
            totals = once.agg(F.count("*"), F.max(F.try_element_at("_unreadable", F.lit(1)))).first()
            assert totals is not None  # noqa: S101 - an aggregate without a group has one row
            if totals[1] is not None:
                raise unreadable_value_error(into, totals[1])
            if not totals[0]:
                return
            create_table(
                session, into.location, self.columns(struct_fields(once, "_key"), struct_fields(once, "_after")), []
            )
            with into.commit(session):
                _change_rows(once).write.format("delta").mode("append").save(into.location)


def _change_rows(changes: DataFrame) -> DataFrame:
    if "_before" not in changes.columns:
        # The decoder adds `_before` on request. Without it the row before is null.
        changes = changes.withColumn("_before", F.lit(None).cast(changes.schema["_after"].dataType))
    return changes.select(*(F.col(change).alias(name) for name, (change, _) in _COLUMNS.items()))
