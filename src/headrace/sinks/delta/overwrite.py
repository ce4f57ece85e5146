"""Replace a Delta table with each batch."""

from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame

from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch
from headrace.sinks.delta.sql import idempotent_options
from headrace.sinks.delta.table import DeltaTableSink


@dataclass(frozen=True)
class DeltaOverwrite(DeltaTableSink):
    """Replace the table with each micro-batch, which in complete mode is the full result.

    Exactly once, on the conditions of `DeltaTableSink`.
    """

    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.COMPLETE})

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Replace all rows in one commit that also records the batch."""
        (
            rows.write.format("delta")
            .mode("overwrite")
            .options(**idempotent_options(batch.app_id, batch.id))
            .options(**self.properties)
            .save(batch.target.table(self.path))
        )
        self.run_maintenance(rows.sparkSession, batch)
