"""The base of all Delta sources."""

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from headrace.clients.spark.delta_log import LOG_FOLDER
from headrace.flow.target import Target
from headrace.sources.arrival_rates import table_arrival_rates
from headrace.sources.file_based import FileBasedSource, require_readable


class DeltaTableSource(FileBasedSource):
    """A Delta table that is read in batches bounded by files or bytes."""

    def arrival_rates(self, target: Target) -> dict[str, float]:
        """Return files and bytes per second of the last hour, from the table's log."""
        return table_arrival_rates(target.table(self.path))

    def preflight(self, target: Target) -> None:
        """Check that a local table exists."""
        require_readable(target.table(self.path), within=LOG_FOLDER)

    def _reader(self, spark: SparkSession) -> DataStreamReader:
        """Return a stream reader with the bounds set."""
        return spark.readStream.format("delta").options(**self._bound_options())
