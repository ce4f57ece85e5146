"""Replace a Delta table with the whole result, batch by batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.sinks.local_folder import require_writable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class DeltaOverwrite:
    """Replace the table with each micro-batch, which in complete mode is the whole result. Readers see one or the next.

    Exactly once, while:
      1. a batch that is run again has the same id; Spark keeps this through the offset log;
      2. the identity changes whenever the checkpoint is discarded: `Batch.app_id` holds the query id for this reason;
      3. one process writes the table, on storage without an exclusive rename (a local disk).
    """

    path: str
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.COMPLETE})

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
        """Replace all rows in one Delta commit that also records the batch."""
        (
            rows.write.format("delta")
            .mode("overwrite")
            .option("txnAppId", batch.app_id)
            .option("txnVersion", str(batch.id))
            .save(batch.target.table(self.path))
        )
