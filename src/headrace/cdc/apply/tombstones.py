"""Tombstones of deleted keys, so that no late change restores a row.

A tombstone is a key and the position of its delete. A truncate is one tombstone without a key, for every key.
Tombstones are appended in a separate commit. The batch is complete when both commits are done, else it is retried.
Duplicate tombstones are harmless.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession, functions as F, types as T

from headrace.cdc.apply.table import POSITION, TableWrite, create_table, struct_fields
from headrace.clients.spark.delta_log import version
from headrace.clients.sql import column_named
from headrace.flow.run_cache import CachedFact
from headrace.sinks.delta.sql import without_idempotent_write

DELETED_AT = "_headrace_deleted_at"
EVERY_KEY = "_headrace_every_key"


@dataclass(frozen=True)
class TombstoneIndex:
    """The greatest position of the tombstones of a table, and of its truncates; None without any."""

    newest: str | None
    truncated: str | None

    def updated(self, last: str | None, truncated: str | None) -> TombstoneIndex:
        """Return the index after a batch. A position that is too high only costs a lookup."""
        return TombstoneIndex(_greater_position(self.newest, last), _greater_position(self.truncated, truncated))


def _greater_position(position: str | None, other_position: str | None) -> str | None:
    return max((candidate for candidate in (position, other_position) if candidate is not None), default=None)


@dataclass
class _CachedIndex(CachedFact):
    """The index of a tombstone table at one of its versions, which never changes."""

    version: int = -1
    index: TombstoneIndex = TombstoneIndex(None, None)


def columns(key: T.StructType) -> T.StructType:
    """Return the columns of the table of tombstones."""
    columns = T.StructType([*key.fields, T.StructField(POSITION, T.StringType())])
    return columns.add(DELETED_AT, T.TimestampType()).add(EVERY_KEY, T.BooleanType())


def write_tombstones(deletes: DataFrame, into: TableWrite) -> None:
    """Append tombstones for reduced changes that are deletes or truncates."""
    session, key = deletes.sparkSession, struct_fields(deletes, "_key")
    create_table(session, into.tombstones, columns(key), key.names)
    rows = deletes.select(
        *(F.col("_key")[name].alias(name) for name in key.names),
        F.col("_position").alias(POSITION),
        F.col("_commit_time").alias(DELETED_AT),
        (F.col("_op") == "t").alias(EVERY_KEY),
    )
    # A batch rarely deletes many rows: write one file, not one per task.
    without_idempotent_write(rows.coalesce(1)).write.format("delta").mode("append").save(into.tombstones)


def tombstone_index(session: SparkSession, into: TableWrite) -> TombstoneIndex:
    """Return the greatest positions of a table's tombstones. Reads them once per version of their table."""
    at = version(session, into.tombstones)
    if at < 0:
        return TombstoneIndex(None, None)
    cached = into.cache.get(_CachedIndex, into.tombstones)
    if cached.version != at:
        last = read(session, into).agg(F.max(POSITION), F.max(F.when(F.col(EVERY_KEY), F.col(POSITION)))).first()
        cached.version, cached.index = at, TombstoneIndex(*last) if last else TombstoneIndex(None, None)
    return cached.index


def cache_index(session: SparkSession, into: TableWrite, index: TombstoneIndex) -> None:
    """Cache the index for the current version, so that the next batch need not read the table."""
    cached = into.cache.get(_CachedIndex, into.tombstones)
    cached.version, cached.index = version(session, into.tombstones), index


def drop_deleted_keys(rows: DataFrame, into: TableWrite, within: Column) -> DataFrame:
    """Return the changes that are not older than a tombstone of their key."""
    names = struct_fields(rows, "_key").names
    of_keys = read(rows.sparkSession, into).alias("old").where(~F.col(EVERY_KEY) & within)
    last = of_keys.groupBy(F.struct(*(column_named(name) for name in names)).alias("_key")).agg(
        F.max(POSITION).alias("deleted_at")
    )
    newer = rows.join(last, "_key", "left").where(
        F.col("deleted_at").isNull() | (F.col("_position") >= F.col("deleted_at"))
    )
    return newer.drop("deleted_at")


def read(session: SparkSession, into: TableWrite) -> DataFrame:
    """Return the tombstones of a table. Their table must exist."""
    return session.read.format("delta").load(into.tombstones)
