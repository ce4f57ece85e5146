"""Read the ledgers of invalid and late rows for summaries."""

from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession, functions as F

from headrace.clients.spark.delta_log import is_table
from headrace.clients.storage import is_local

LedgerRow = dict[str, object]


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
    `session` is not called for a local table that does not exist.
    """
    if not is_table(location, None if is_local(location) else session()):
        return []
    ledger = session().read.format("delta").load(location)
    if newest_by:
        ledger = ledger.orderBy(*(F.desc(name) for name in newest_by))
    if limit is not None:
        ledger = ledger.limit(limit)
    rows: list[LedgerRow] = ledger.select(*(name for name in columns if name in ledger.columns)).toArrow().to_pylist()
    return [{name: row.get(name) for name in columns} for row in rows]
