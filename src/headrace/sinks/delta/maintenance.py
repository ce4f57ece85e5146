"""Maintenance of a Delta table by the flow that writes it: compaction of small files, vacuum of old ones.

It runs between two batches of the flow: no other process commits to the table, so maintenance never conflicts with a
batch and needs no process of its own.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from headrace.clients.spark.delta_log import size, snapshot
from headrace.clients.spark.settings import session_settings
from headrace.errors import FlowError
from headrace.flow.duration import Duration
from headrace.flow.run_cache import CachedFact, RunCache
from headrace.sinks.delta.sql import set_table_properties

_MEGABYTE = 1024 * 1024
_MIN_RETENTION = Duration.parse("1 hour")
_FILE_RETENTION, _LOG_RETENTION = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
_DEFAULT_FILE_RETENTION = "interval 7 days"
_OPTIMIZE = {
    # Delta's default of 1 GB would be rewritten for one changed row.
    "spark.databricks.delta.optimize.maxFileSize": str(128 * _MEGABYTE),
    "spark.databricks.delta.optimize.minFileSize": str(64 * _MEGABYTE),
    # Clustered data of this size is not rewritten. Delta's default of 100 GB exceeds most tables: each run would
    # cluster the whole table again.
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(1024 * _MEGABYTE),
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.targetCubeSize": str(1536 * _MEGABYTE),
}
_VACUUM = {
    # Delta rejects less than a week, because of concurrent writers. There are none.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # Otherwise VACUUM ignores its argument and uses the table's own retention.
    "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
    # The number of tasks that list the table's folder; the default is 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}


class _Compaction(CachedFact):
    """The number of files of a table right after its last compaction: a further compaction would not reduce it."""

    files_after = 0


@dataclass(frozen=True)
class Maintenance:
    """Compaction and vacuum of a table.

    | field       | default    | meaning                                                                             |
    |-------------|------------|-------------------------------------------------------------------------------------|
    | small_files | 48         | OPTIMIZE a table that has this many files more than it needs; 0 means never         |
    | retention   | `7 days`   | VACUUM files that no version within this time needs; None means never               |
    | clean_every | `1 day`    | the interval of VACUUM                                                              |
    """

    small_files: int = 48
    retention: str | None = "7 days"
    clean_every: str = "1 day"

    def __post_init__(self) -> None:
        Duration.parse(self.clean_every)
        if self.retention is not None and Duration.parse(self.retention) < _MIN_RETENTION:
            raise FlowError(
                f"Old files of a table would be retained for {self.retention} only.",
                why="A batch that is under way, and every reader, needs the files of the version that it began with.",
                remedy="Retain them for an hour or more, or forever with None.",
                code="HR-249",
            )

    def compact(self, session: SparkSession, location: str, cache: RunCache) -> bool:
        """Compact the small files of a table if there are enough of them; return whether it did."""
        files, total_bytes = size(session, location) or (0, 0)
        needed, last = -(-total_bytes // (64 * _MEGABYTE)), cache.get(_Compaction, location)
        if not self.small_files or files - max(needed, last.files_after) < self.small_files:
            return False
        with session_settings(session, _OPTIMIZE):
            DeltaTable.forPath(session, location).optimize().executeCompaction()
        last.files_after = (size(session, location) or (0, 0))[0]
        return True

    def retention_property(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return `delta.deletedFileRetentionDuration` for a table with these properties.

        VACUUM treats a removed file that the log no longer lists, by default after a week, as one that was never part
        of the table. Delta limits the value to the retention of the log; older versions cannot be read anyway.
        """
        if self.retention is None:
            return {}
        days, rest = divmod(min(Duration.parse(self.retention).ms, _log_ms(properties)), 86_400_000)
        return {
            _FILE_RETENTION: f"interval {days * 86_400 + rest // 1000} seconds" if rest else f"interval {days} days"
        }

    def set_retention_property(self, session: SparkSession, location: str) -> None:
        """Set `delta.deletedFileRetentionDuration` of an existing table."""
        table = snapshot(session, location)
        properties = {name: table.table_property(name) for name in (_FILE_RETENTION, _LOG_RETENTION)}
        current = {name: value for name, value in properties.items() if value is not None}
        for name, value in self.retention_property(current).items():
            if current.get(name, _DEFAULT_FILE_RETENTION) != value:
                set_table_properties(session, location, {name: value})

    def vacuum(self, session: SparkSession, locations: Iterable[str]) -> None:
        """Vacuum tables: remove files that no retained version needs."""
        if self.retention is None:
            return
        hours = Duration.parse(self.retention).ms / 3_600_000
        with session_settings(session, _VACUUM):
            for location in locations:
                DeltaTable.forPath(session, location).vacuum(hours)


def _log_ms(properties: Mapping[str, str]) -> int:
    """Return the log retention of a table with these properties; a duration that cannot be parsed is unlimited."""
    try:
        return Duration.parse(properties.get(_LOG_RETENTION, "30 days").removeprefix("interval ")).ms
    except FlowError:
        return sys.maxsize
