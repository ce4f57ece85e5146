"""Compute each batch and keep nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch
from headrace.flow.target import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Noop:
    """Compute every row of each batch and let go of it: what a flow costs without its sink, for measurements.

    Best effort: nothing is kept, and nothing is counted beyond what the query counts by itself.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.BEST_EFFORT
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset(OutputMode)

    @property
    def name(self) -> str:
        """Return `noop`."""
        return "noop"

    def preflight(self, target: Target) -> None:
        """Nothing can be missing."""

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Nothing to make."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Compute the batch, on the executors."""
        compute(rows)


def compute(rows: DataFrame) -> None:
    """Compute every row, once, and keep none: state, watermark and counters of the query come from its rows."""
    rows.write.format("noop").mode("overwrite").save()
