"""Print each batch."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch
from headrace.flow.target import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Console:
    """Print the rows of each batch to standard error, at most `rows` of them, and how many there were.

    Best effort: a batch that is run again is printed again. Standard error, so that the JSON that a command prints
    on standard output stays readable for machines.
    """

    rows: int = 20
    guarantee: ClassVar[Guarantee] = Guarantee.BEST_EFFORT
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset(OutputMode)

    @property
    def name(self) -> str:
        """Return `console`."""
        return "console"

    def preflight(self, target: Target) -> None:
        """Nothing can be missing."""

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Nothing to make."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Print the batch. It collects every row, because a partial read would leave state uncommitted."""
        found = rows.collect()
        if not found:
            return
        sys.stderr.write(f"{batch.flow}, batch {batch.id}: {len(found)} rows\n")
        for row in found[: self.rows]:
            sys.stderr.write("  " + "  ".join(f"{key}={value}" for key, value in row.asDict().items()) + "\n")
        if len(found) > self.rows:
            sys.stderr.write(f"  ... and {len(found) - self.rows} more\n")
        sys.stderr.flush()
