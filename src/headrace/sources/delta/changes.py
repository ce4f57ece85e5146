"""The changes of a Delta table, inserts, updates and deletes, as a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.flow.target import Target
from headrace.sources.bounds import require_bounds, require_version
from headrace.sources.delta.log import Offset, offsets, version
from headrace.sources.delta.table import DeltaTableSource
from headrace.sources.errors import not_again

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class DeltaChangesSource(DeltaTableSource):
    """Read what each version of a Delta table changed, below the lake unless `path` is absolute.

    Each change is read exactly once, while:
      1. the table has `delta.enableChangeDataFeed` set from `starting_version` on. A version without it stops the flow;
      2. the table keeps its log and its files for longer than the flow is ever down (by default 30 days and 7).

    Rows carry the columns of the table and three more: `_change_type` is `insert`, `update_preimage`,
    `update_postimage` or `delete`; `_commit_version` orders changes; `_commit_timestamp` is when it was committed.
    Within a version changes have no order. A version of more files than the bound can be split between batches, and
    then those batches cannot be read again.

    | field                 | meaning                                                                          |
    |-----------------------|----------------------------------------------------------------------------------|
    | path                  | the table                                                                        |
    | starting_version      | the first version whose changes are read; only the first start reads it, a       |
    |                       | checkpoint goes before                                                           |
    | max_files_per_trigger | the most files of one batch                                                      |
    | max_bytes_per_trigger | the bytes after which a batch takes no further file                              |

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
        """Return the endless frame of the table's changes."""
        reader = self._reader(spark).option("readChangeFeed", "true")
        return reader.option("startingVersion", str(self.starting_version)).load(target.table(self.path))

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Return the changes between two offsets, where both lie between two versions."""
        table = target.table(self.path)
        ends = offsets(spark, self.name, table, start, end)
        first, after = (self._next_version(spark, table, each) for each in ends)
        changes = spark.read.format("delta").option("readChangeFeed", "true")
        if first >= after:
            return changes.option("startingVersion", str(self.starting_version)).load(table).limit(0)
        return changes.option("startingVersion", str(first)).option("endingVersion", str(after - 1)).load(table)

    def _next_version(self, spark: SparkSession, table: str, offset: Offset) -> int:
        """Return the first version of which nothing is read at an offset."""
        if offset.index < 0:
            return offset.version
        written = version(spark, self.name, table, offset.version)
        # Where a version wrote its changes as files of their own, the stream reads and counts only those.
        files = written.changes or written.added + written.removed
        if offset.index + 1 < len(files):
            raise not_again(self.name, f"The batch begins or ends within version {offset.version} of the table.")
        return offset.version + 1
