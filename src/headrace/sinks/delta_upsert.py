"""Keep one row per key in a Delta table, the newest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from delta.tables import DeltaTable
from pyspark.sql import functions as F

from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch
from headrace.sinks.delta_table import DeltaTableSink
from headrace.sinks.kept import kept

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

    Exactly once, on the conditions of `DeltaTableSink`.
    """

    key: Sequence[str]
    sequence: str | None = None
    cluster_by: Sequence[str] = ()
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND, OutputMode.UPDATE})

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
        if within:
            same.append(within)
        # MERGE reads its source twice, and a batch must be computed once.
        with kept(self.newest(rows)) as once, _identity(session, batch):
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

    def newest(self, rows: DataFrame) -> DataFrame:
        """Return what a merge takes of rows: with a sequence the newest of each key. Repairs ask for it, too."""
        if self.sequence is None:
            return rows
        sequence = F.col(f"`{self.sequence}`")
        # max_by passes over rows whose order is null; this order never is, and a row without a sequence is the oldest.
        order = F.struct(sequence.isNotNull(), sequence)
        whole = F.max_by(F.struct(*(F.col(f"`{name}`") for name in rows.columns)), order).alias("_headrace_row")
        return rows.groupBy(*(F.col(f"`{name}`") for name in self.key)).agg(whole).select("_headrace_row.*")


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
