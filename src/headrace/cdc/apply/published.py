"""Which version of each table belongs together: a small table that is written last in every batch.

    LAKE/INTO/_published      one row per table: `table`, `path`, `version`, `batch`, `cleaned`

A reader who takes the versions of one state of this table reads every mirror as it was after one batch. A batch that
broke off half-way has changed some tables and published nothing: their earlier versions are what is read.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.sinks.delta.log import version
from headrace.sinks.delta.sql import identity, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flow.sink import Batch

_COLUMNS = "table string, path string, version bigint, batch bigint, cleaned timestamp"


@dataclass(frozen=True)
class Row:
    """One table: its name, its path, its version, the batch that this comes from, when old files were removed last."""

    table: str
    path: str
    version: int
    batch: int
    cleaned: dt.datetime | None = None


# The rows of a table of versions at one version of its own, which never changes: the next batch need not read them.
_seen: dict[str, tuple[tuple[str, int], dict[str, Row]]] = {}


def publish(session: SparkSession, location: str, tables: Iterable[Row], batch: Batch) -> None:
    """Record the versions that the tables of the batch now have. The commit is the batch's: once it is in, all is."""
    rows = published(session, location, batch) | {each.table: each for each in tables}
    told = [(each.table, each.path, each.version, each.batch, each.cleaned) for _, each in sorted(rows.items())]
    with settings(session, identity(batch.app_id, batch.id)):
        session.createDataFrame(told, _COLUMNS).coalesce(1).write.format("delta").mode("overwrite").save(location)
    _seen[location] = ((batch.app_id, version(session, location)), rows)


def published(session: SparkSession, location: str, batch: Batch) -> dict[str, Row]:
    """Return the last state, by the name of the table."""
    now = version(session, location)
    if now < 0:
        return {}
    at, seen = _seen.get(location, (None, {}))
    if at == (batch.app_id, now):
        return seen
    found = session.read.format("delta").load(location).select("table", "path", "version", "batch", "cleaned")
    # Spark gives times without a zone, in the zone of the machine.
    return {
        row[0]: Row(row[0], row[1], row[2], row[3], row[4] and row[4].astimezone(dt.UTC)) for row in found.collect()
    }
