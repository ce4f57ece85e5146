"""The rows that are appended to a Delta table, as a source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.clients.storage import files_for
from headrace.errors import PartUnavailable
from headrace.flow.target import Target
from headrace.sources.bounds import require_bounds, require_version
from headrace.sources.delta.log import offsets, version
from headrace.sources.delta.table import DeltaTableSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class DeltaSource(DeltaTableSource):
    """Read a Delta table, then what is appended to it, below the lake unless `path` is absolute.

    Each row is read exactly once, while:
      1. the table is only appended to. An update or a delete stops the flow; `DeltaChangesSource` reads such tables.
         OPTIMIZE moves rows and changes none: it is passed over;
      2. the table keeps its log and its files for longer than the flow is ever down (by default 30 days and 7). What is
         gone stops the flow: rows are never skipped unsaid.

    Rows carry the columns of the table. A batch of appended rows can be read again. One of the table as it was at the
    first start cannot: there `starting_version` helps.

    | field                 | meaning                                                                          |
    |-----------------------|----------------------------------------------------------------------------------|
    | path                  | the table                                                                        |
    | max_files_per_trigger | the most files of one batch                                                      |
    | max_bytes_per_trigger | the bytes after which a batch takes no further file                              |
    | starting_version      | the first version that is read; None reads the whole table first. Only the first |
    |                       | start reads it, a checkpoint goes before                                         |
    | awaited               | another flow makes the table: one that is not there yet is waited for, and does  |
    |                       | not keep the application from starting                                           |

    One of the two bounds is required (HRC-110); with both, the first that is reached ends the batch.
    """

    path: str
    max_files_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    starting_version: int | None = None
    awaited: bool = False

    def __post_init__(self) -> None:
        require_bounds(self.name, self.bounds)
        if self.starting_version is not None:
            require_version(self.name, self.starting_version)

    @property
    def name(self) -> str:
        """Return `delta:PATH`."""
        return f"delta:{self.path}"

    def preflight(self, target: Target) -> None:
        """Prove that a local table is there, unless another flow has yet to make it."""
        if not self.awaited:
            super().preflight(target)

    def beginning(self, end: str) -> str | None:
        """Return the offset that a flow began at, given any later one, or None where it began with the whole table."""
        if self.starting_version is None:
            return None
        began = {"reservoirVersion": self.starting_version, "index": -1, "isStartingVersion": False}
        return json.dumps({**json.loads(end), **began})

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the endless frame of the table."""
        if self.awaited:
            self._require_there(spark, target)
        reader = self._reader(spark)
        if self.starting_version is not None:
            reader = reader.option("startingVersion", str(self.starting_version))
        return reader.load(target.table(self.path))

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Return the rows of the files that were appended between two offsets, from the versions that added them."""
        table = target.table(self.path)
        first, last = offsets(spark, self.name, table, start, end)
        parts = []
        # Nothing is read of the last version at an index of -1, and it may not have been written yet.
        for number in range(first.version, last.version + (last.index >= 0)):
            after = first.index if number == first.version else -1
            added = version(spark, self.name, table, number).added
            files = added[after + 1 : last.index + 1] if number == last.version else added[after + 1 :]
            if files:
                # As of its own version: a later OPTIMIZE takes a file out of the table.
                rows = spark.read.format("delta").option("versionAsOf", str(number)).load(table)
                parts.append(rows.where(F.col("_metadata.file_name").isin(*files)))
        if not parts:
            return spark.read.format("delta").load(table).limit(0)
        return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)

    def _require_there(self, spark: SparkSession, target: Target) -> None:
        table = target.table(self.path)
        if any(name.endswith(".json") for name in files_for(table, spark).names(f"{table}/_delta_log")):
            return
        raise PartUnavailable(
            f"The Delta table {table} is not there yet.",
            why="The flow that makes it has not committed a batch.",
            state="Nothing was read.",
            remedy="Nothing, if that flow runs: this one goes on by itself. Else start that one.",
            code="HR-572",
        )
