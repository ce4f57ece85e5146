"""What every sink that ends in a Delta table has in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from headrace.flow.guarantee import Guarantee
from headrace.flow.target import Target
from headrace.sinks.local_folder import require_writable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class DeltaTableSink:
    """A table below the lake, unless `path` is absolute, that records each batch in the commit that holds its rows.

    Exactly once, while:
      1. a batch that is run again has the same id; Spark keeps this through the offset log;
      2. the identity changes whenever the checkpoint is discarded. A new checkpoint counts from 0, and Delta skips
         ids that it has seen under one identity: silent loss. `Batch.app_id` holds the query id for this reason;
      3. one process writes the table, on storage without an exclusive rename (a local disk).
    """

    path: str
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    @property
    def name(self) -> str:
        """Return `delta:PATH`."""
        return f"delta:{self.path}"

    def preflight(self, target: Target) -> None:
        """Prove that a local folder can be written."""
        require_writable(target.table(self.path))

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Nothing: the first write makes the table."""
