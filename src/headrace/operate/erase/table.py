"""Take a subject out of one Delta table, and out of everything that the table keeps of its past.

1. Its rows are deleted, in files that are written anew: no deletion vector is left behind.
2. Files with deletion vectors are written anew (`REORG ... PURGE`): they hold rows that were deleted or replaced.
3. Files that the present version does not need are removed (`VACUUM` with no retention), those of the change feed too.
4. A commit without rows marks the table, a checkpoint of the log is made there, and the log before it is removed: its
   statistics hold least and greatest values, its conditions keys. Which batches are in stands in the checkpoint.

Every step finds by itself whether it is done: a table that was left half-way is finished by doing all of them again.
Versions before the erasure cannot be read any more. The caller holds the table against all writers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from headrace.clients.storage import HadoopFileStore
from headrace.operate.erase import errors as refusals
from headrace.operate.erase.places import Column as TableColumn
from headrace.operate.erase.places import Table
from headrace.operate.erase.subject import Columns, Texts
from headrace.sinks.delta.log import snapshot, version
from headrace.sinks.delta.sql import quote_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame, SparkSession

MARK = "headrace.erased_at"
_SETTINGS = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.delete.deletionVectors.persistent": "false",
    # VACUUM lists folders in so many tasks, 10,000 by default: more than a minute for a table of ten files.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
_PARTITIONS = "spark.sql.shuffle.partitions"
# 00000000000000000012.json, .crc, .checkpoint.parquet, .checkpoint.UUID.parquet; 0...1.0...9.compacted.json
_OF_VERSION = re.compile(r"\.?(\d{20})\.(?:(\d{20})\.compacted\.)?.*")


@dataclass(frozen=True)
class Treated:
    """What was done to a table: rows that were deleted, its version before and after, files of the log that went."""

    rows: int
    before: int
    after: int
    log_files: int


def rows_of(session: SparkSession, table: Table, texts: Texts) -> DataFrame:
    """Return the present rows of the subject in a table."""
    return session.read.format("delta").load(table.location).where(_condition(table, texts))


def rows_of_others(session: SparkSession, table: Table) -> DataFrame:
    """Return the present rows of everybody else."""
    return session.read.format("delta").load(table.location).where(~_condition(table, Texts(())))


def erase_from(spark: SparkSession, table: Table, texts: Texts, rows: int, at: datetime) -> Treated:
    """Carry out all steps on one table that shows `rows` of the subject. Raises HR-535 when Delta refuses a step."""
    session = spark.newSession()
    # A new session has Spark's own 200 partitions for a shuffle of a few files.
    session.conf.set(_PARTITIONS, str(spark.conf.get(_PARTITIONS)))
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    before, place = version(session, table.location), f"delta.{quote_name(table.location)}"
    try:
        # 1. and 2. The rows, and those that deletion vectors hide.
        if rows:
            DeltaTable.forPath(session, table.location).delete(_condition(table, texts))
        if _may_have_vectors(session, table.location):
            session.sql(f"REORG TABLE {place} APPLY (PURGE)").collect()
        # 3. Files of the past.
        session.sql(f"VACUUM {place} RETAIN 0 HOURS").collect()
        # 4. The log of the past.
        session.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('{MARK}' = '{at:%Y-%m-%dT%H:%M:%SZ}')")
        return Treated(rows, before, *_cut(session, table.location))
    except (PySparkException, Py4JJavaError) as error:
        raise refusals.delta_refuses(table.path, error) from error


def publish_again(spark: SparkSession, location: str, versions: dict[str, int]) -> None:
    """Let the published versions of mirrors be those after the erasure: the ones before cannot be read any more."""
    if version(spark, location) < 0:
        return
    published = DeltaTable.forPath(spark, location)
    held = {row["path"]: row["version"] for row in published.toDF().select("path", "version").collect()}
    for path, number in versions.items():
        if held.get(path, number) < number:
            published.update(F.col("path") == path, {"version": F.lit(number)})


def _cut(session: SparkSession, location: str) -> tuple[int, int]:
    """Make a checkpoint of the log at its end and remove what is before. Return the version and the files removed."""
    jvm = session._jvm
    assert jvm is not None  # noqa: S101 - a classic session always has its JVM
    deltalog = jvm.org.apache.spark.sql.delta.DeltaLog
    now = snapshot(session, location)
    end, files, folder = int(now.version()), HadoopFileStore(session), f"{location}/_delta_log"
    deltalog.forTable(session._jsparkSession, location).checkpoint(now, jvm.scala.Option.empty())
    names = files.names(folder)
    if not any(name.startswith(f"{end:020d}.checkpoint") for name in names):
        raise refusals.no_checkpoint(location, end)
    # From the oldest on, as Delta does: whatever is left when this is cut off is a whole log.
    old = sorted(name for name in names if _is_before(name, end))
    for name in old:
        files.delete(f"{folder}/{name}")
    # What Delta holds in memory may read files again that are gone.
    deltalog.invalidateCache(session._jsparkSession, jvm.org.apache.hadoop.fs.Path(location))
    return end, len(old)


def _may_have_vectors(session: SparkSession, location: str) -> bool:
    """Whether files of the present version have deletion vectors; yes, where the log does not say."""
    now = snapshot(session, location)
    if "deletionVectors" not in now.protocol().toString():
        return False
    counted = now.numDeletionVectorsOpt()
    return not counted.isDefined() or int(counted.get()) > 0


def _is_before(name: str, end: int) -> bool:
    found = _OF_VERSION.fullmatch(name)
    return found is not None and int(found.group(2) or found.group(1)) < end


def _condition(table: Table, texts: Texts) -> Column:
    """Return the condition of a row to be one of the subject's."""
    columns = {column.name: column for column in table.columns}
    found = [_all_equal(way, columns) for way in table.known_by]
    payloads = [_as_text(column) for column in table.columns if column.is_text]
    for topic, pattern in table.payloads:
        matches = _any(each.cast("string").rlike(pattern) for each in payloads)
        found.append(matches if topic is None else F.col("topic").rlike(topic) & matches)
    if table.payloads and texts.values:
        found.append(
            _any(F.contains(each.cast("binary"), F.lit(bytearray(n))) for each in payloads for n in texts.needles)
        )
    # Neither true nor false is false: DELETE would leave such a row, and a count would not.
    return F.coalesce(_any(found), F.lit(False))


def _as_text(column: TableColumn) -> Column:
    return F.to_json(F.col(column.expression)) if column.type == "map" else F.col(column.expression)


def _all_equal(way: Columns, columns: dict[str, TableColumn]) -> Column:
    same = []
    for name, text in way.items():
        kind = columns[name].type
        wanted = F.lit(text) if kind == "string" else F.lit(text).try_cast(kind)
        same.append(F.col(columns[name].expression) == wanted)
    return reduce(lambda one, other: one & other, same)


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(lambda one, other: one | other, (F.coalesce(each, F.lit(False)) for each in conditions), F.lit(False))
