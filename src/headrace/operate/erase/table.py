"""Erase a subject from a Delta table, including all earlier versions.

1. Delete its rows by rewriting files, without deletion vectors.
2. Rewrite files with deletion vectors (`REORG ... PURGE`): they contain deleted or replaced rows.
3. Remove files that the present version does not need (`VACUUM` with no retention), including the change feed.
4. Mark the table in a commit without rows, write a checkpoint of the log there, and remove the log before it: its
   statistics contain minimum and maximum values, its conditions keys. The checkpoint has the committed batches.

Every step is idempotent: to finish a table after an interruption, run all steps again. Versions before the erasure
cannot be read any more. The caller locks the table against all writers.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import reduce

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from headrace.clients.spark.delta_log import (
    LOG_FOLDER,
    invalidate_delta_log_cache,
    snapshot,
    version,
    write_log_checkpoint,
)
from headrace.clients.sql import quote_name
from headrace.clients.storage import HadoopFileStore
from headrace.operate.erase import errors
from headrace.operate.erase.places import LakeTable, TableColumn
from headrace.operate.erase.subject import Columns, Texts
from headrace.sinks.delta.sql import set_table_properties

MARK = "headrace.erased_at"
_SETTINGS = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.delete.deletionVectors.persistent": "false",
    # The number of tasks in which VACUUM lists folders. With the default 10,000 ten files take more than a minute.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
_PARTITIONS = "spark.sql.shuffle.partitions"
# 00000000000000000012.json, .crc, .checkpoint.parquet, .checkpoint.UUID.parquet; 0...1.0...9.compacted.json
_LOG_FILE = re.compile(r"\.?(\d{20})\.(?:(\d{20})\.compacted\.)?.*")


@dataclass(frozen=True)
class TableErasure:
    """What was done to a table: deleted rows, its version before and after, removed files of the log."""

    rows: int
    before: int
    after: int
    log_files: int


def subject_rows(session: SparkSession, table: LakeTable, texts: Texts) -> DataFrame:
    """Return the present rows of the subject in a table."""
    return session.read.format("delta").load(table.location).where(_condition(table, texts))


def other_rows(session: SparkSession, table: LakeTable) -> DataFrame:
    """Return the present rows of other subjects."""
    return session.read.format("delta").load(table.location).where(~_condition(table, Texts(())))


def erase_rows(spark: SparkSession, table: LakeTable, texts: Texts, rows: int, erased_at: datetime) -> TableErasure:
    """Run all steps on a table with `rows` present rows of the subject. Raises HR-535 if Delta refuses a step."""
    session = spark.newSession()
    # A new session would shuffle a few files in 200 partitions.
    session.conf.set(_PARTITIONS, str(spark.conf.get(_PARTITIONS)))
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    before, place = version(session, table.location), f"delta.{quote_name(table.location)}"
    try:
        # 1. and 2. The rows, and those behind deletion vectors.
        if rows:
            DeltaTable.forPath(session, table.location).delete(_condition(table, texts))
        if snapshot(session, table.location).may_have_deletion_vectors:
            session.sql(f"REORG TABLE {place} APPLY (PURGE)").collect()
        # 3. Files of earlier versions.
        session.sql(f"VACUUM {place} RETAIN 0 HOURS").collect()
        # 4. The log of earlier versions.
        set_table_properties(session, table.location, {MARK: f"{erased_at:%Y-%m-%dT%H:%M:%SZ}"})
        return TableErasure(rows, before, *_truncate_log(session, table.location))
    except (PySparkException, Py4JJavaError) as error:
        raise errors.delta_refuses(table.path, error) from error


def republish_versions(spark: SparkSession, location: str, versions: dict[str, int]) -> None:
    """Publish the versions of mirrors after the erasure: earlier ones cannot be read any more."""
    if version(spark, location) < 0:
        return
    published = DeltaTable.forPath(spark, location)
    current = {row["path"]: row["version"] for row in published.toDF().select("path", "version").collect()}
    for path, number in versions.items():
        if current.get(path, number) < number:
            published.update(F.col("path") == path, {"version": F.lit(number)})


def _truncate_log(session: SparkSession, location: str) -> tuple[int, int]:
    """Write a checkpoint at the end of the log and remove earlier entries. Return the version and their number."""
    files, folder = HadoopFileStore(session), f"{location}/{LOG_FOLDER}"
    end_version = write_log_checkpoint(session, location)
    names = files.names(folder)
    if not any(name.startswith(f"{end_version:020d}.checkpoint") for name in names):
        raise errors.delta_checkpoint_missing(location, end_version)
    # Oldest first, as Delta does: after an interruption the rest is still a valid log.
    old_files = sorted(name for name in names if _is_before(name, end_version))
    for name in old_files:
        files.delete(f"{folder}/{name}")
    invalidate_delta_log_cache(session, location)
    return end_version, len(old_files)


def _is_before(name: str, end_version: int) -> bool:
    match = _LOG_FILE.fullmatch(name)
    return match is not None and int(match.group(2) or match.group(1)) < end_version


def _condition(table: LakeTable, texts: Texts) -> Column:
    """Return the condition that selects the subject's rows."""
    columns = {column.name: column for column in table.columns}
    conditions = [_all_equal(key_columns, columns) for key_columns in table.key_columns]
    payloads = [_as_text(column) for column in table.columns if column.is_text]
    for topic, pattern in table.payloads:
        matches = _any(payload.cast("string").rlike(pattern) for payload in payloads)
        conditions.append(matches if topic is None else F.col("topic").rlike(topic) & matches)
    if table.payloads and texts.values:
        conditions.append(
            _any(
                F.contains(payload.cast("binary"), F.lit(bytearray(n)))
                for payload in payloads
                for n in texts.search_bytes
            )
        )
    # Null counts as false: DELETE would skip such a row, but its negation would not count it.
    return F.coalesce(_any(conditions), F.lit(False))


def _as_text(column: TableColumn) -> Column:
    return F.to_json(F.col(column.expression)) if column.type == "map" else F.col(column.expression)


def _all_equal(key_columns: Columns, columns: dict[str, TableColumn]) -> Column:
    conditions = []
    for name, text in key_columns.items():
        kind = columns[name].type
        value = F.lit(text) if kind == "string" else F.lit(text).try_cast(kind)
        conditions.append(F.col(columns[name].expression) == value)
    return reduce(lambda left, right: left & right, conditions)


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(
        lambda left, right: left | right,
        (F.coalesce(condition, F.lit(False)) for condition in conditions),
        F.lit(False),
    )
