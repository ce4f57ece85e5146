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

    Exactly once, on the conditions of `DeltaTableSink`.
    """

    key: Sequence[str]
    sequence: str | None = None
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND, OutputMode.UPDATE})

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Merge the rows in one Delta commit that also records the batch."""
        location, session = batch.target.table(self.path), rows.sparkSession
        DeltaTable.createIfNotExists(session).location(location).addColumns(rows.schema).execute()
        newer = None if self.sequence is None else f"new.`{self.sequence}` >= old.`{self.sequence}`"
        # MERGE reads its source twice, and a batch must be computed once.
        with kept(self.newest(rows)) as once, _identity(session, batch):
            (
                DeltaTable.forPath(session, location)
                .alias("old")
                .merge(once.alias("new"), " AND ".join(f"old.`{name}` <=> new.`{name}`" for name in self.key))
                .whenMatchedUpdateAll(newer)
                .whenNotMatchedInsertAll()
                .execute()
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
