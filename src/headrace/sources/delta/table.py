"""What every source that begins at a Delta table has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.flow.source import Bound
from headrace.flow.target import Target
from headrace.sources.arrivals import arriving_in_table
from headrace.sources.bounds import file_bounds, file_options
from headrace.sources.local_folder import require_readable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader


class DeltaTableSource:
    """A table below the lake, unless `path` is absolute, read in batches of at most so many files or bytes.

    The fields are declared by the sources themselves, each in the order in which its declaration reads best.
    """

    path: str
    max_files_per_trigger: int | None
    max_bytes_per_trigger: int | None

    @property
    def carries_payload(self) -> bool:
        """A table has columns."""
        return False

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The two bounds of a batch."""
        return file_bounds(self.max_files_per_trigger, self.max_bytes_per_trigger)

    def arrivals(self, target: Target) -> dict[str, float]:
        """Return the files and bytes a second of the last hour, by the table's log."""
        return arriving_in_table(target.table(self.path))

    def preflight(self, target: Target) -> None:
        """Prove that a local table is there."""
        require_readable(target.table(self.path), within="_delta_log")

    def _reader(self, spark: SparkSession) -> DataStreamReader:
        """Return the reader of a stream, with its bounds set."""
        bounds = file_options(self.max_files_per_trigger, self.max_bytes_per_trigger)
        return spark.readStream.format("delta").options(**bounds)
