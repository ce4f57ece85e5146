"""The base of all Delta sources."""

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from headrace.clients.spark.delta_log import LOG_FOLDER
from headrace.flow.source import Bound, Bounded, ReadsFolder
from headrace.flow.target import Target
from headrace.sources.arrival_rates import table_arrival_rates
from headrace.sources.local_folder import require_readable
from headrace.sources.validation import file_bound_options, file_bounds


class DeltaTableSource(Bounded, ReadsFolder):
    """A table below the lake, unless `path` is absolute, read in batches that are bounded by files or bytes.

    Subclasses declare the fields, each in its own order.
    """

    path: str
    max_files_per_trigger: int | None
    max_bytes_per_trigger: int | None

    @property
    def carries_payload(self) -> bool:
        """False: a table has columns, not a payload."""
        return False

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The two bounds of a batch."""
        return file_bounds(self.max_files_per_trigger, self.max_bytes_per_trigger)

    def arrival_rates(self, target: Target) -> dict[str, float]:
        """Return files and bytes per second of the last hour, from the table's log."""
        return table_arrival_rates(target.table(self.path))

    def location(self, target: Target) -> str:
        """Return the location of the table."""
        return target.table(self.path)

    def preflight(self, target: Target) -> None:
        """Check that a local table exists."""
        require_readable(target.table(self.path), within=LOG_FOLDER)

    def _reader(self, spark: SparkSession) -> DataStreamReader:
        """Return a stream reader with the bounds set."""
        bounds = file_bound_options(self.max_files_per_trigger, self.max_bytes_per_trigger)
        return spark.readStream.format("delta").options(**bounds)
