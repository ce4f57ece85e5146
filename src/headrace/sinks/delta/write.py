"""Append each batch to a Delta table, or replace the table with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame

from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch
from headrace.sinks.delta.table import DeltaTableSink


@dataclass(frozen=True)
class DeltaAppend(DeltaTableSink):
    """Append each micro-batch to a Delta table. Exactly once, on the conditions of `DeltaTableSink`."""

    partition_by: Sequence[str] = ()
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND})

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Append the rows in one commit that also records the batch."""
        writer = self.writer(rows, batch).mode("append").partitionBy(*self.partition_by)
        writer.save(self.folder(batch.target))
        self.run_maintenance(rows.sparkSession, batch)

    def replace(self, rows: DataFrame, where: str, batch: Batch) -> None:
        """Replace the rows that meet a condition, in one commit that also records the batch.

        Called by repairs, while the flow is stopped. All new rows have to meet the condition.
        """
        writer = self.writer(rows, batch).mode("overwrite").option("replaceWhere", where)
        writer.partitionBy(*self.partition_by).save(self.folder(batch.target))


@dataclass(frozen=True)
class DeltaOverwrite(DeltaTableSink):
    """Replace the table with each micro-batch, which in complete mode is the full result.

    Exactly once, on the conditions of `DeltaTableSink`.
    """

    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.COMPLETE})

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Replace all rows in one commit that also records the batch."""
        self.writer(rows, batch).mode("overwrite").save(self.folder(batch.target))
        self.run_maintenance(rows.sparkSession, batch)
