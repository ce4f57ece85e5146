"""Record which versions of the tables belong together: a small table that every batch writes last.

    LAKE/INTO/_published      one row per table: `table`, `path`, `version`, `batch`, `cleaned`

A reader that uses the versions in one version of this table reads every mirror as of the same batch. A batch that
failed half-way has changed some tables and published nothing, so readers still use the earlier versions.
"""

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from headrace.clients.spark.delta_log import version
from headrace.clients.spark.settings import session_settings
from headrace.flow.run_cache import CachedFact
from headrace.flow.sink import Batch
from headrace.sinks.delta.sql import idempotent_write

_COLUMNS = "table string, path string, version bigint, batch bigint, cleaned timestamp"


@dataclass(frozen=True)
class PublishedTable:
    """One table: its name, path and version, the batch that wrote this version, and the time of the last VACUUM."""

    table: str
    path: str
    version: int
    batch: int
    cleaned: dt.datetime | None = None


@dataclass
class _CachedRows(CachedFact):
    """The rows of `_published` at one of its versions, which never changes: the next batch need not read them."""

    version: int = -1
    rows: dict[str, PublishedTable] = field(default_factory=dict)


def publish(session: SparkSession, location: str, tables: Iterable[PublishedTable], batch: Batch) -> None:
    """Record the versions of the tables of a batch. This commit is the last one of the batch and completes it."""
    rows = read_published(session, location, batch) | {table.table: table for table in tables}
    values = [(table.table, table.path, table.version, table.batch, table.cleaned) for _, table in sorted(rows.items())]
    with session_settings(session, idempotent_write(batch.app_id, batch.id)):
        session.createDataFrame(values, _COLUMNS).coalesce(1).write.format("delta").mode("overwrite").save(location)
    cached = batch.cache.get(_CachedRows, location)
    cached.version, cached.rows = version(session, location), rows


def read_published(session: SparkSession, location: str, batch: Batch) -> dict[str, PublishedTable]:
    """Return the published tables by name."""
    now = version(session, location)
    if now < 0:
        return {}
    cached = batch.cache.get(_CachedRows, location)
    if cached.version == now:
        return cached.rows
    stored = session.read.format("delta").load(location).select("table", "path", "version", "batch", "cleaned")
    # Spark returns times without a zone, in the zone of the machine.
    return {
        row[0]: PublishedTable(row[0], row[1], row[2], row[3], row[4] and row[4].astimezone(dt.UTC))
        for row in stored.collect()
    }
