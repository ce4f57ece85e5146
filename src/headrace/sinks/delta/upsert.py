"""Keep one row per key in a Delta table, the newest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC
from typing import TYPE_CHECKING, Any, ClassVar

from delta.tables import DeltaTable
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, IntegralType, TimestampNTZType, TimestampType

from headrace.errors import FlowError
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch
from headrace.sinks.batch.persist import kept
from headrace.sinks.delta.table import DeltaTableSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# MERGE takes the identity of a write only from these settings of the session, not from options.
_APP_ID = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"


@dataclass(frozen=True)
class DeltaUpsert(DeltaTableSink):
    """Merge each micro-batch into a Delta table by key: a row replaces the one with its key, or is added.

    | field    | meaning                                                                                          |
    |----------|--------------------------------------------------------------------------------------------------|
    | key      | the columns that tell rows apart; null is a value like any other                                 |
    | sequence | a column that grows with each change: an older row never replaces a newer one, and of several rows |
    |          | of one key in a batch the newest wins. Without it a key may occur once per batch                 |
    | cluster_by | columns by which OPTIMIZE lays rows together; declared when the table is made                  |
    | prune_by | a column of the key with times, dates or whole numbers. A batch reads only files that may hold values |
    |          | between its lowest and its highest one: what it costs does not grow with the age of the table    |

    Exactly once, on the conditions of `DeltaTableSink`.
    """

    key: Sequence[str]
    sequence: str | None = None
    cluster_by: Sequence[str] = ()
    prune_by: str | None = field(default=None, kw_only=True)
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND, OutputMode.UPDATE})

    def __post_init__(self) -> None:
        """Refuse to look for rows by a column that their key does not have."""
        if self.prune_by is not None and self.prune_by not in self.key:
            raise self._not_pruned(
                "is not in its key",
                "A row may replace one with another value there, which would not be looked for, and be in twice.",
            )

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Merge the rows in one Delta commit that also records the batch."""
        self.made(rows.sparkSession, rows.schema, batch)
        self.merge(rows, batch)

    def made(self, session: SparkSession, schema: StructType, batch: Batch) -> DeltaTable:
        """Return the table, made for rows of this schema where it is not there yet."""
        table = DeltaTable.createIfNotExists(session).location(batch.target.table(self.path)).addColumns(schema)
        for name, value in self.properties.items():
            table = table.property(name, value)
        return (table.clusterBy(*self.cluster_by) if self.cluster_by else table).execute()

    def merge(self, rows: DataFrame, batch: Batch, *, within: str = "") -> None:
        """Merge the rows. `within` is a condition that holds for every row of the table whose key they have."""
        location, session = batch.target.table(self.path), rows.sparkSession
        newer = None if self.sequence is None else f"new.`{self.sequence}` >= old.`{self.sequence}`"
        same = [f"old.`{name}` <=> new.`{name}`" for name in self.key]
        # MERGE reads its source twice, and a batch must be computed once.
        with kept(self.newest(rows)) as once, _identity(session, batch):
            bounds = within or self._bounds(once)
            if bounds:
                same.append(bounds)
            (
                DeltaTable.forPath(session, location)
                .alias("old")
                .merge(once.alias("new"), " AND ".join(same))
                .whenMatchedUpdateAll(newer)
                .whenNotMatchedInsertAll()
                .execute()
            )
        # Changes no row: a crash before it leaves small files for the next time.
        self.look_after(session, batch.target)

    def _bounds(self, rows: DataFrame) -> str:
        """Return a condition that holds for every row of the table whose key one of the rows has, or an empty one."""
        if self.prune_by is None:
            return ""
        column, kind = F.col(f"`{self.prune_by}`"), rows.schema[self.prune_by].dataType
        lowest, highest, null = rows.agg(F.min(column), F.max(column), F.bool_or(column.isNull())).collect()[0]
        old, found = f"old.`{self.prune_by}`", []
        if lowest is not None:
            first, last = literal(lowest, kind), literal(highest, kind)
            if first is None or last is None:
                raise self._not_pruned(
                    f"is a {kind.simpleString()}", "Only times, dates and whole numbers are looked up."
                )
            found.append(f"({old} >= {first} AND {old} <= {last})")
        if null:
            found.append(f"{old} IS NULL")
        return f"({' OR '.join(found)})" if found else "false"

    def _not_pruned(self, what: str, why: str) -> FlowError:
        return FlowError(
            f"{self.name} is to be pruned by '{self.prune_by}', which {what}.",
            why=why,
            state="Nothing was written.",
            remedy=f"Name another one of {', '.join(self.key)} as `prune_by`, or leave it out.",
            code="HR-569",
        )

    def newest(self, rows: DataFrame) -> DataFrame:
        """Return what a merge takes of rows: with a sequence the newest of each key. Repairs ask for it, too."""
        if self.sequence is None:
            return rows
        sequence = F.col(f"`{self.sequence}`")
        # max_by passes over rows whose order is null; this order never is, and a row without a sequence is the oldest.
        order = F.struct(sequence.isNotNull(), sequence)
        whole = F.max_by(F.struct(*(F.col(f"`{name}`") for name in rows.columns)), order).alias("_headrace_row")
        return rows.groupBy(*(F.col(f"`{name}`") for name in self.key)).agg(whole).select("_headrace_row.*")


def literal(value: Any, kind: DataType) -> str | None:
    """Return a time, a date or a whole number as SQL writes it, and None for anything else.

    Delta looks at the statistics of files for literals only, not for casts.
    """
    match kind:
        case TimestampType():
            # Spark hands times over without a zone, in that of the machine; `astimezone` reads them so.
            return f"TIMESTAMP '{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00:00'"
        case TimestampNTZType():
            return f"TIMESTAMP_NTZ '{value:%Y-%m-%d %H:%M:%S.%f}'"
        case DateType():
            return f"DATE '{value}'"
        case IntegralType():
            return str(value)
        case _:
            return None


@contextmanager
def _identity(session: SparkSession, batch: Batch) -> Iterator[None]:
    """Set the identity of the write, and take it back: the next write of this session may be another sink's."""
    session.conf.set(_APP_ID, batch.app_id)
    session.conf.set(_VERSION, str(batch.id))
    try:
        yield
    finally:
        session.conf.unset(_APP_ID)
        session.conf.unset(_VERSION)
