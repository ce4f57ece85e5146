"""The tables in which bad and late rows are filed, read for summaries: at once where that can be, else with Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.clients.storage import is_local, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, object]


def is_read_without_spark(location: str) -> bool:
    """Whether a table can be read in this process: it is on this machine, and the package `deltalake` is there."""
    return is_local(location) and find_spec("deltalake") is not None


def filed_rows(
    location: str,
    columns: Sequence[str],
    session: Callable[[], SparkSession],
    *,
    newest_by: Sequence[str] = (),
    limit: int | None = None,
) -> list[Row]:
    """Return the given columns of a table; none when it is not there. A column that it lacks holds None.

    With `newest_by` the rows come sorted by those columns, the last one first; `limit` is how many of them.
    `session` is asked for Spark only when the table cannot be read without it.
    """
    if is_local(location) and not (local_path(location) / "_delta_log").is_dir():
        return []
    read = _with_deltalake if is_read_without_spark(location) else _with_spark
    rows: list[Row] = read(location, columns, newest_by, limit, session).to_pylist()
    return [{name: row.get(name) for name in columns} for row in rows]


def _with_deltalake(
    location: str,
    columns: Sequence[str],
    newest_by: Sequence[str],
    limit: int | None,
    _session: Callable[[], SparkSession],
) -> pa.Table:
    from deltalake import DeltaTable, QueryBuilder  # noqa: PLC0415 - an extra: not every installation has it

    table = DeltaTable(str(local_path(location)))
    present = {field.name for field in table.schema().fields}
    query = f"SELECT {_listed(columns, present)} FROM filed"  # noqa: S608 - names of columns, all of them ours
    if newest_by:
        query += " ORDER BY " + ", ".join(f'"{name}" DESC' for name in newest_by)
    if limit is not None:
        query += f" LIMIT {limit}"
    # Not to_pyarrow_table(): its threads sometimes abort the interpreter at its exit.
    return pa.table(QueryBuilder().register("filed", table).execute(query).read_all())


def _listed(columns: Sequence[str], present: set[str]) -> str:
    return ", ".join(f'"{name}"' for name in columns if name in present)


def _with_spark(
    location: str,
    columns: Sequence[str],
    newest_by: Sequence[str],
    limit: int | None,
    session: Callable[[], SparkSession],
) -> pa.Table:
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - Spark is slow to import
    from pyspark.sql import functions as F  # noqa: PLC0415

    try:
        frame = session().read.format("delta").load(location)
    except AnalysisException:
        # Elsewhere than on a disk this is how a table that is not there shows.
        return pa.table({})
    if newest_by:
        frame = frame.orderBy(*(F.desc(name) for name in newest_by))
    if limit is not None:
        frame = frame.limit(limit)
    return frame.select(*(name for name in columns if name in frame.columns)).toArrow()
