"""Rows made from nothing, at a rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.flow.target import Target
from headrace.sources.bounds import require_positive
from headrace.sources.errors import not_again

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class RateSource:
    """Make rows at a rate, for load and for trying things out.

    Rows carry `value`, which counts from 0 without gaps, and `timestamp`, when the row was due. A batch holds the rows
    of the whole seconds since the batch before, so its bound is the rate. A restart goes on with the next value, and
    its first batch holds the rows of all the time that the flow was down. A new checkpoint begins with none.

    | field           | meaning                                        |
    |-----------------|------------------------------------------------|
    | rows_per_second | how many rows become due in a second           |
    | partitions      | how many tasks make them; one row is in one    |
    """

    rows_per_second: int
    partitions: int = 1

    def __post_init__(self) -> None:
        require_positive(self.name, "rows_per_second", self.rows_per_second)
        require_positive(self.name, "partitions", self.partitions)

    @property
    def name(self) -> str:
        """Return `rate:ROWS`."""
        return f"rate:{self.rows_per_second}"

    @property
    def carries_payload(self) -> bool:
        """Rows are made with columns."""
        return False

    @property
    def read_once(self) -> str:
        """Why an old batch cannot be read again."""
        return "Its rows are made when they are due, and kept nowhere."

    def preflight(self, target: Target) -> None:
        """Nothing: nothing outside is asked for."""

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the endless frame."""
        return (
            spark.readStream.format("rate")
            .option("rowsPerSecond", str(self.rows_per_second))
            .option("numPartitions", str(self.partitions))
            .load()
        )

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Raise: nothing is kept."""
        raise not_again(self.name, self.read_once)
