"""Print each batch to standard error."""

import sys
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame

from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import BaseSink, Batch


@dataclass(frozen=True)
class Console(BaseSink):
    """Print the first `rows` rows of each batch and the row count to standard error.

    Best effort: a retried batch is printed again. Standard output stays free for the JSON that commands print.
    """

    rows: int = 20
    guarantee: ClassVar[Guarantee] = Guarantee.BEST_EFFORT
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset(OutputMode)

    @property
    def name(self) -> str:
        """Return `console`."""
        return "console"

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Print the batch. Collects every row, because a partial read would leave state uncommitted."""
        collected = rows.collect()
        if not collected:
            return
        sys.stderr.write(f"{batch.flow}, batch {batch.id}: {len(collected)} rows\n")
        for row in collected[: self.rows]:
            sys.stderr.write("  " + "  ".join(f"{key}={value}" for key, value in row.asDict().items()) + "\n")
        if len(collected) > self.rows:
            sys.stderr.write(f"  ... and {len(collected) - self.rows} more\n")
        sys.stderr.flush()
