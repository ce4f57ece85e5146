"""Append each batch to a Delta table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame

from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch
from headrace.sinks.delta.sql import idempotent_options
from headrace.sinks.delta.table import DeltaTableSink


@dataclass(frozen=True)
class DeltaAppend(DeltaTableSink):
    """Append each micro-batch to a Delta table. Exactly once, on the conditions of `DeltaTableSink`."""

    partition_by: Sequence[str] = ()
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND})

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Append the rows in one commit that also records the batch."""
        (
            rows.write.format("delta")
            .mode("append")
            .options(**idempotent_options(batch.app_id, batch.id))
            .options(**self.properties)
            .partitionBy(*self.partition_by)
            .save(batch.target.table(self.path))
        )
        self.run_maintenance(rows.sparkSession, batch)

    def replace(self, rows: DataFrame, where: str, batch: Batch) -> None:
        """Replace the rows that meet a condition, in one commit that also records the batch.

        Called by repairs, while the flow is stopped. All new rows have to meet the condition.
        """
        (
            rows.write.format("delta")
            .mode("overwrite")
            .option("replaceWhere", where)
            .options(**idempotent_options(batch.app_id, batch.id))
            .partitionBy(*self.partition_by)
            .save(batch.target.table(self.path))
        )
