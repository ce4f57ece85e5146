"""Generated rows at a fixed rate."""

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from headrace.flow.source import NotReplayable
from headrace.flow.target import Target
from headrace.sources.errors import source_not_replayable
from headrace.sources.validation import require_positive


@dataclass(frozen=True)
class RateSource(NotReplayable):
    """Generate rows at a fixed rate, for load tests and experiments.

    Rows have `value`, which counts from 0 without gaps, and `timestamp`, when the row was due. A batch contains the
    rows of the full seconds since the previous batch, so the rate bounds it. A restart continues with the next value,
    and its first batch contains the rows of the downtime. A new checkpoint starts without rows.

    | field           | meaning                                        |
    |-----------------|------------------------------------------------|
    | rows_per_second | the number of rows per second                  |
    | partitions      | the number of tasks that generate them         |
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
        """False: rows have columns, not a payload."""
        return False

    @property
    def not_replayable_reason(self) -> str:
        """Why an old batch cannot be read again."""
        return "Its rows are generated when they are due, and not stored."

    def preflight(self, target: Target) -> None:
        """Do nothing: there is nothing to check."""

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the streaming DataFrame."""
        return (
            spark.readStream.format("rate")
            .option("rowsPerSecond", str(self.rows_per_second))
            .option("numPartitions", str(self.partitions))
            .load()
        )

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Raise HR-511: rows are not stored."""
        raise source_not_replayable(self.name, self.not_replayable_reason)
