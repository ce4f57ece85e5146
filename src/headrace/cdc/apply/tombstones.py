"""Which keys of a mirror are gone, and since when: no late change brings one back.

A tombstone is a key and the position of its delete. A truncate is one tombstone for every key: it has no key. They are
appended in a commit of their own, beside the mirror's: the batch is done when both are in, and is run again otherwise.
A tombstone that is there twice says what one does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.cdc.apply.table import POSITION, Into, fields, make
from headrace.sinks.delta.log import version
from headrace.sinks.delta.sql import quoted, without_identity

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DELETED_AT = "_headrace_deleted_at"
EVERY_KEY = "_headrace_every_key"


@dataclass(frozen=True)
class Graves:
    """The greatest position of a tombstone, and of one for every key; None where there is none."""

    newest: str | None
    truncated: str | None

    def with_those_of(self, last: str | None, truncated: str | None) -> Graves:
        """Return what is known once a batch's tombstones are there; too great a position costs a look, no more."""
        return Graves(_greater(self.newest, last), _greater(self.truncated, truncated))


def _greater(one: str | None, other: str | None) -> str | None:
    return max((each for each in (one, other) if each is not None), default=None)


# What is known of the tombstones of a table at one of its versions: a version never changes.
_seen: dict[str, tuple[tuple[str, int], Graves]] = {}


def columns(key: T.StructType) -> T.StructType:
    """Return the columns of the table of tombstones."""
    columns = T.StructType([*key.fields, T.StructField(POSITION, T.StringType())])
    return columns.add(DELETED_AT, T.TimestampType()).add(EVERY_KEY, T.BooleanType())


def bury(gone: DataFrame, into: Into) -> None:
    """Append tombstones for reduced changes that are deletes or truncates."""
    session, key = gone.sparkSession, fields(gone, "_key")
    make(session, into.tombstones, columns(key), key.names)
    rows = gone.select(
        *(F.col("_key")[name].alias(name) for name in key.names),
        F.col("_position").alias(POSITION),
        F.col("_commit_time").alias(DELETED_AT),
        (F.col("_op") == "t").alias(EVERY_KEY),
    )
    # A batch rarely deletes much: one file, and not one per task.
    without_identity(rows.coalesce(1)).write.format("delta").mode("append").save(into.tombstones)


def known(session: SparkSession, into: Into) -> Graves:
    """Return the greatest positions of a table's tombstones. Reads them once per version of their table."""
    at = version(session, into.tombstones)
    if at < 0:
        return Graves(None, None)
    found = _seen.get(into.tombstones)
    if found is None or found[0] != (into.app_id, at):
        last = read(session, into).agg(F.max(POSITION), F.max(F.when(F.col(EVERY_KEY), F.col(POSITION)))).first()
        found = _seen[into.tombstones] = ((into.app_id, at), Graves(*last) if last else Graves(None, None))
    return found[1]


def remember(session: SparkSession, into: Into, graves: Graves) -> None:
    """Keep what is known of the tombstones as they now are, so that the next batch need not read them."""
    _seen[into.tombstones] = ((into.app_id, version(session, into.tombstones)), graves)


def without_gone(rows: DataFrame, into: Into, within: Column) -> DataFrame:
    """Return reduced changes without those that are older than a tombstone of their key."""
    names = rows.schema["_key"].dataType.fieldNames()  # type: ignore[attr-defined]
    of_keys = read(rows.sparkSession, into).alias("old").where(~F.col(EVERY_KEY) & within)
    last = of_keys.groupBy(F.struct(*(F.col(quoted(name)) for name in names)).alias("_key")).agg(
        F.max(POSITION).alias("gone")
    )
    kept = rows.join(last, "_key", "left").where(F.col("gone").isNull() | (F.col("_position") >= F.col("gone")))
    return kept.drop("gone")


def read(session: SparkSession, into: Into) -> DataFrame:
    """Return the tombstones of a table that has some."""
    return session.read.format("delta").load(into.tombstones)
