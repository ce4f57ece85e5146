"""The change data feed of a Delta table as a source: inserts, updates and deletes."""

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from headrace.flow.target import Target
from headrace.sources.delta.offsets import DeltaOffset, files_of_version, parse_offsets
from headrace.sources.delta.table import DeltaTableSource
from headrace.sources.errors import source_not_replayable
from headrace.sources.validation import require_bounds, require_version


@dataclass(frozen=True)
class DeltaChangesSource(DeltaTableSource):
    """Read the changes of each version of a Delta table, below the lake unless `path` is absolute.

    Each change is read exactly once, while:
      1. the table has `delta.enableChangeDataFeed` set from `starting_version` on. A version without it stops the flow;
      2. the table retains its log and its files for longer than the flow is ever down (by default 30 and 7 days).

    Rows have the columns of the table and three more: `_change_type` is `insert`, `update_preimage`,
    `update_postimage` or `delete`; `_commit_version` orders changes; `_commit_timestamp` is the commit time. The
    changes of one version have no order. A version with more files than the bound is split between batches, which
    cannot be replayed then.

    | field                 | meaning                                                                          |
    |-----------------------|----------------------------------------------------------------------------------|
    | path                  | the table                                                                        |
    | starting_version      | the first version whose changes are read; used only at the first start, without  |
    |                       | a checkpoint                                                                     |
    | max_files_per_trigger | the maximum number of files per batch                                            |
    | max_bytes_per_trigger | the soft maximum of bytes per batch                                              |

    One of the two bounds is required (HRC-110); with both, the first that is reached ends the batch.
    """

    path: str
    starting_version: int
    max_files_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None

    def __post_init__(self) -> None:
        require_bounds(self.name, self.bounds)
        require_version(self.name, self.starting_version)

    @property
    def name(self) -> str:
        """Return `delta-changes:PATH`."""
        return f"delta-changes:{self.path}"

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the streaming DataFrame of the table's changes."""
        reader = self._reader(spark).option("readChangeFeed", "true")
        return reader.option("startingVersion", str(self.starting_version)).load(target.table(self.path))

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Return the changes between two offsets; raise HR-511 if one of them lies within a version."""
        table = target.table(self.path)
        ends = parse_offsets(spark, self.name, table, start, end)
        first, after = (self._next_version(spark, table, offset) for offset in ends)
        changes = spark.read.format("delta").option("readChangeFeed", "true")
        if first >= after:
            return changes.option("startingVersion", str(self.starting_version)).load(table).limit(0)
        return changes.option("startingVersion", str(first)).option("endingVersion", str(after - 1)).load(table)

    def _next_version(self, spark: SparkSession, table: str, offset: DeltaOffset) -> int:
        """Return the first version that is completely unread at an offset."""
        if offset.index < 0:
            return offset.version
        logged = files_of_version(spark, self.name, table, offset.version)
        # If a version wrote change data files, the stream reads and counts only those.
        files = logged.changes or logged.added + logged.removed
        if offset.index + 1 < len(files):
            raise source_not_replayable(
                self.name, f"The batch begins or ends within version {offset.version} of the table."
            )
        return offset.version + 1
