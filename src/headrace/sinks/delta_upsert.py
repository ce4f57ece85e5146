"""Keep one row per key in a Delta table, the newest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from delta.tables import DeltaTable
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.sinks.local_folder import require_writable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# MERGE takes the identity of a write only from these settings of the session, not from options.
_APP_ID = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"


@dataclass(frozen=True)
class DeltaUpsert:
    """Merge each micro-batch into a Delta table by key: a row replaces the one with its key, or is added.

    | field    | meaning                                                                                          |
    |----------|--------------------------------------------------------------------------------------------------|
    | path     | the table, below the lake unless absolute                                                        |
    | key      | the columns that tell rows apart; null is a value like any other                                 |
    | sequence | a column that grows with each change: an older row never replaces a newer one, and of several rows |
    |          | of one key in a batch the newest wins. Without it a key may occur once per batch                 |

    Exactly once, while:
      1. a batch that is run again has the same id; Spark keeps this through the offset log;
      2. the identity changes whenever the checkpoint is discarded: `Batch.app_id` holds the query id for this reason;
      3. one process writes the table, on storage without an exclusive rename (a local disk).
    """

    path: str
    key: Sequence[str]
    sequence: str | None = None
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND, OutputMode.UPDATE})

    @property
    def name(self) -> str:
        """Return `delta:PATH`."""
        return f"delta:{self.path}"

    def preflight(self, target: Target) -> None:
        """Prove that a local folder can be written."""
        require_writable(target.table(self.path))

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Nothing: the first write makes the table."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Merge the rows in one Delta commit that also records the batch."""
        location, session = batch.target.table(self.path), rows.sparkSession
        DeltaTable.createIfNotExists(session).location(location).addColumns(rows.schema).execute()
        newer = None if self.sequence is None else f"new.`{self.sequence}` >= old.`{self.sequence}`"
        # MERGE reads its source twice, and a batch must be computed once.
        kept = self._newest(rows).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with _identity(session, batch):
                (
                    DeltaTable.forPath(session, location)
                    .alias("old")
                    .merge(kept.alias("new"), " AND ".join(f"old.`{name}` <=> new.`{name}`" for name in self.key))
                    .whenMatchedUpdateAll(newer)
                    .whenNotMatchedInsertAll()
                    .execute()
                )
        finally:
            kept.unpersist()

    def _newest(self, rows: DataFrame) -> DataFrame:
        """Return one row per key: with a sequence, the newest."""
        if self.sequence is None:
            return rows
        whole = F.max_by(F.struct(*(F.col(f"`{name}`") for name in rows.columns)), F.col(f"`{self.sequence}`"))
        return (
            rows.groupBy(*(F.col(f"`{name}`") for name in self.key))
            .agg(whole.alias("_headrace_row"))
            .select("_headrace_row.*")
        )


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
