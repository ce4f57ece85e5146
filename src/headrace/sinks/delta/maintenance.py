"""The upkeep of a Delta table by the flow that writes it: small files joined, old files removed.

All of it is done between two batches of the flow: nobody else commits to the table, so that no upkeep ever conflicts
with a batch, and none needs a process of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta.tables import DeltaTable

from headrace.errors import FlowError
from headrace.flow.duration import Duration
from headrace.sinks.delta.log import size, snapshot
from headrace.sinks.delta.sql import quoted, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MEGABYTE = 1024 * 1024
_LEAST_KEPT = Duration.parse("1 hour")
_REMEMBERED, _LOG = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
_USUAL = "interval 7 days"
_OPTIMIZE = {
    # Delta's own gigabyte would be read and written whole for one changed row.
    "spark.databricks.delta.optimize.maxFileSize": str(128 * _MEGABYTE),
    "spark.databricks.delta.optimize.minFileSize": str(64 * _MEGABYTE),
    # What has been sorted by key stays as it is once so much of it lies together. Delta's own 100 GB are more than most
    # tables: each round would sort all of it again.
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(1024 * _MEGABYTE),
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.targetCubeSize": str(1536 * _MEGABYTE),
}
_VACUUM = {
    # Delta refuses less than a week, in case that somebody else writes. Nobody does.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # It would pass over the time that it is given, and take the table's own.
    "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
    # It lists the folder of a table in so many tasks: 10,000 unless told otherwise.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}


@dataclass(frozen=True)
class Maintenance:
    """How the files of a table are kept in shape.

    | field       | default    | meaning                                                                             |
    |-------------|------------|-------------------------------------------------------------------------------------|
    | small_files | 48         | OPTIMIZE a table that has so many files more than it needs; 0 is never              |
    | keep        | `7 days`   | VACUUM removes files that no version since then needs; None is never                |
    | clean_every | `1 day`    | how often that is done                                                              |
    """

    small_files: int = 48
    keep: str | None = "7 days"
    clean_every: str = "1 day"

    def __post_init__(self) -> None:
        Duration.parse(self.clean_every)
        if self.keep is not None and Duration.parse(self.keep) < _LEAST_KEPT:
            raise FlowError(
                f"Old files of a table would be kept for {self.keep} only.",
                why="A batch that is under way, and every reader, needs the files of the version that it began with.",
                state="Nothing was started.",
                remedy="Keep them for an hour or more, or for ever with keep=None.",
                code="HR-249",
            )

    def compact(self, session: SparkSession, location: str) -> bool:
        """Join the small files of a table, where there are enough of them. Says whether it did."""
        files, held = size(session, location) or (0, 0)
        needed = -(-held // (64 * _MEGABYTE))
        if not self.small_files or files - max(needed, _settled.get(location, 0)) < self.small_files:
            return False
        with settings(session, _OPTIMIZE):
            DeltaTable.forPath(session, location).optimize().executeCompaction()
        _settled[location] = (size(session, location) or (0, 0))[0]
        return True

    def remembering(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return the property by which a table with these ones remembers long enough which files it has removed.

        VACUUM takes a file that the table has forgotten, after a week unless told otherwise, for one that was never in.
        Delta lets no table remember for longer than it keeps its log: what is older than that nobody can read anyway.
        """
        if self.keep is None:
            return {}
        days, rest = divmod(min(Duration.parse(self.keep).ms, _log_ms(properties)), 86_400_000)
        return {_REMEMBERED: f"interval {days * 86_400 + rest // 1000} seconds" if rest else f"interval {days} days"}

    def let_remember(self, session: SparkSession, location: str) -> None:
        """Give a table that is there the property by which it remembers long enough."""
        told = snapshot(session, location).metadata().configuration()
        has = {name: told.apply(name) for name in (_REMEMBERED, _LOG) if told.contains(name)}
        for name, value in self.remembering(has).items():
            if has.get(name, _USUAL) != value:
                session.sql(f"ALTER TABLE delta.{quoted(location)} SET TBLPROPERTIES ('{name}' = '{value}')")

    def vacuum(self, session: SparkSession, locations: Iterable[str]) -> None:
        """Remove the files of tables that no version needs which is still kept."""
        if self.keep is None:
            return
        hours = Duration.parse(self.keep).ms / 3_600_000
        with settings(session, _VACUUM):
            for each in locations:
                DeltaTable.forPath(session, each).vacuum(hours)


def _log_ms(properties: Mapping[str, str]) -> int:
    """Return how long a table with these properties keeps its log. One that only Spark can read counts as for ever."""
    try:
        return Duration.parse(properties.get(_LOG, "30 days").removeprefix("interval ")).ms
    except FlowError:
        return sys.maxsize


# How many files a table had right after it was compacted: those did not get fewer by it.
_settled: dict[str, int] = {}
