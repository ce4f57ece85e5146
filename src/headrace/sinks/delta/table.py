"""The base of all sinks that write a Delta table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from headrace.clients.spark.delta_log import snapshot
from headrace.flow.guarantee import Guarantee
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch, CommittedBatches, TracksBatches, WritesFolder
from headrace.flow.target import Target
from headrace.sinks.delta.policy import TablePolicy
from headrace.sinks.delta.sql import idempotent_options
from headrace.sinks.local_folder import require_writable

# Marks a row that is deleted at its source, in tables that keep such rows.
DELETED = "_headrace_deleted"


@dataclass(frozen=True)
class DeltaTableSink(WritesFolder, TracksBatches):
    """A table below the lake, unless `path` is absolute, that records each batch in the commit of its rows.

    Exactly once, while:
      1. a retried batch has the same id; Spark ensures this with the offset log;
      2. the txnAppId changes when the checkpoint is discarded. A new checkpoint counts from 0, and Delta skips batch
         ids that it already has for a txnAppId: silent loss. Therefore `Batch.app_id` contains the query id;
      3. one process writes the table, on storage without an exclusive rename (a local disk).

    `policy` sets the table's properties, compaction and vacuum.
    """

    path: str
    policy: TablePolicy | None = field(default=None, kw_only=True)
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    @property
    def name(self) -> str:
        """Return `delta:PATH`."""
        return f"delta:{self.path}"

    def folder(self, target: Target) -> str:
        """Return the location of the table."""
        return target.table(self.path)

    def committed_batches(self, spark: SparkSession, flow: str, step: str, target: Target) -> CommittedBatches:
        """Return the table id and the batches that the Delta log records."""
        place, current = f"the Delta table {self.folder(target)}", snapshot(spark, self.folder(target))
        if current.version < 0:
            return CommittedBatches(place, None, {})
        end = f":{flow}:{step}"
        last = {
            app_id.removesuffix(end): batch
            for app_id, batch in current.recorded_batches.items()
            if app_id.endswith(end)
        }
        return CommittedBatches(place, current.table_id, last)

    def preflight(self, target: Target) -> None:
        """Check that a local folder is writable."""
        require_writable(target.table(self.path))

    def prepare(self, spark: SparkSession, target: Target, cache: RunCache) -> None:
        """Set the properties of an existing table. The first write creates a missing one."""
        if self.policy is not None:
            self.policy.apply(spark, self.folder(target))

    def writer(self, rows: DataFrame, batch: Batch) -> DataFrameWriter:
        """Return a writer whose commit also records the batch. It creates a missing table with its properties."""
        options = {**idempotent_options(batch.app_id, batch.id), **self.properties}
        return rows.write.format("delta").options(**options)

    @property
    def properties(self) -> Mapping[str, str]:
        """The table properties for the first write."""
        return {} if self.policy is None else self.policy.table_properties

    def run_maintenance(self, session: SparkSession, batch: Batch) -> None:
        """Run the maintenance that is due. Called by each sink after it has written a batch."""
        if self.policy is not None:
            self.policy.run_maintenance(session, self.folder(batch.target), batch.cache)
