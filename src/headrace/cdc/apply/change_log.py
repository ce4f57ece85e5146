"""Append changes to a change log: one row per change, never updated."""

from dataclasses import dataclass

from pyspark.sql import DataFrame, functions as F, types as T

from headrace.cdc.apply.latest_change import unreadable_value_error, with_unreadable_column
from headrace.cdc.apply.table import SMALL_BATCH_CONF, TableWrite, create_table, struct_fields
from headrace.clients.spark.settings import session_settings
from headrace.sinks.batch.persist import locally_checkpointed


@dataclass(frozen=True)
class ChangeLog:
    """Store every change: its operation, position and time, and the row before and after it.

    | column                         | holds                                                                           |
    |--------------------------------|---------------------------------------------------------------------------------|
    | `op`                           | `c`, `u`, `d`, `r` (snapshot) or `t` (truncate)                                 |
    | `position`                     | the place in the source's log, as text that sorts as the log                    |
    | `committed_at`, `transaction`  | when the source committed, and in which transaction                             |
    | `key`                          | the primary key; null for a truncate                                            |
    | `before`, `after`              | the row's columns, typed; null where there was or is no row                     |
    | `unavailable`                  | columns that did not change, and that the log left out of `after`               |
    | `topic`, `partition`, `offset` | the record                                                                      |

    `before` is what the source's log holds: all columns with a binlog or `REPLICA IDENTITY FULL`, else the key alone
    with a delete, and nothing with an update.

    The promise: every record of the topic is in the table once, by the identity of the batch. A change that the
    connector delivered twice, after a crash of its own, is two records and so two rows, which agree in all but
    `offset`; `position`, `key` and `op` identify a change. A record that moves a row to another key is two rows.
    """

    def columns(self, key: T.StructType, after: T.StructType) -> T.StructType:
        """Return the columns of the table."""
        columns = T.StructType().add("op", T.StringType()).add("position", T.StringType())
        columns = columns.add("committed_at", T.TimestampType()).add("transaction", T.StringType())
        columns = columns.add("key", key).add("before", after).add("after", after)
        columns = columns.add("unavailable", T.ArrayType(T.StringType())).add("topic", T.StringType())
        return columns.add("partition", T.IntegerType()).add("offset", T.LongType())

    def apply(self, changes: DataFrame, into: TableWrite) -> None:
        """Append the changes of one table in one batch. Called once per attempt."""
        session = changes.sparkSession
        with session_settings(session, SMALL_BATCH_CONF), locally_checkpointed(with_unreadable_column(changes)) as once:
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
    # The decoder adds `_before` on request. Without it the row before is null.
    unknown = F.lit(None).cast(changes.schema["_after"].dataType)
    return changes.select(
        F.col("_op").alias("op"),
        F.col("_position").alias("position"),
        F.col("_commit_time").alias("committed_at"),
        F.col("_transaction").alias("transaction"),
        F.col("_key").alias("key"),
        (F.col("_before") if "_before" in changes.columns else unknown).alias("before"),
        F.col("_after").alias("after"),
        F.col("_unavailable").alias("unavailable"),
        F.col("_topic").alias("topic"),
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
    )
