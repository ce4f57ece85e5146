"""Read the ledgers of invalid and late rows for summaries: without Spark if possible."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.clients.spark.delta_log import is_table
from headrace.clients.storage import is_local, local_path

LedgerRow = dict[str, object]


def can_read_without_spark(location: str) -> bool:
    """Whether a table can be read without Spark: it is local, and the package `deltalake` is installed."""
    return is_local(location) and find_spec("deltalake") is not None


def read_ledger(
    location: str,
    columns: Sequence[str],
    session: Callable[[], SparkSession],
    *,
    newest_by: Sequence[str] = (),
    limit: int | None = None,
) -> list[LedgerRow]:
    """Return the columns of a table; no rows if it does not exist. Missing columns are None.

    With `newest_by` the rows are sorted by those columns in descending order; `limit` is the number of rows.
    `session` is called only if the table cannot be read without Spark.
    """
    if is_local(location) and not is_table(location):
        return []
    read_table = _with_deltalake if can_read_without_spark(location) else _with_spark
    rows: list[LedgerRow] = read_table(location, columns, newest_by, limit, session).to_pylist()
    return [{name: row.get(name) for name in columns} for row in rows]


def _with_deltalake(
    location: str,
    columns: Sequence[str],
    newest_by: Sequence[str],
    limit: int | None,
    _session: Callable[[], SparkSession],
) -> pa.Table:
    from deltalake import DeltaTable, QueryBuilder  # noqa: PLC0415 - optional dependency

    table = DeltaTable(str(local_path(location)))
    present = {field.name for field in table.schema().fields}
    query = f"SELECT {_column_list(columns, present)} FROM recorded"  # noqa: S608 - column names, all constants
    if newest_by:
        query += " ORDER BY " + ", ".join(f'"{name}" DESC' for name in newest_by)
    if limit is not None:
        query += f" LIMIT {limit}"
    # Not to_pyarrow_table(): its threads sometimes abort the interpreter at exit.
    return pa.table(QueryBuilder().register("recorded", table).execute(query).read_all())


def _column_list(columns: Sequence[str], present: set[str]) -> str:
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
        # Without a local disk this is the sign of a missing table.
        return pa.table({})
    if newest_by:
        frame = frame.orderBy(*(F.desc(name) for name in newest_by))
    if limit is not None:
        frame = frame.limit(limit)
    return frame.select(*(name for name in columns if name in frame.columns)).toArrow()
