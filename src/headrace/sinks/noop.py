"""Compute each batch and discard its rows."""

from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame

from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import BaseSink, Batch


@dataclass(frozen=True)
class Noop(BaseSink):
    """Compute every row of each batch and discard it, to measure what a flow costs without its sink.

    Best effort: nothing is stored, and nothing is counted beyond the metrics of the query.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.BEST_EFFORT
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset(OutputMode)

    @property
    def name(self) -> str:
        """Return `noop`."""
        return "noop"

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Compute the batch on the executors."""
        compute(rows)


def compute(rows: DataFrame) -> None:
    """Compute every row once and discard it. The query's state, watermark and metrics need all rows."""
    rows.write.format("noop").mode("overwrite").save()
