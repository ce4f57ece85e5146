"""The appended rows of a Delta table as a source."""

import json
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession, functions as F

from headrace.clients.spark.delta_log import is_table
from headrace.errors import TableNotCreated
from headrace.flow.source import HasStartOffset
from headrace.flow.target import Target
from headrace.sources.delta.offsets import files_of_version, parse_offsets
from headrace.sources.delta.table import DeltaTableSource
from headrace.sources.validation import require_bounds, require_version


@dataclass(frozen=True)
class DeltaSource(DeltaTableSource, HasStartOffset):
    """Read a Delta table and then the rows that are appended to it, below the lake unless `path` is absolute.

    Each row is read exactly once, while:
      1. the table is append-only. An update or a delete stops the flow; `DeltaChangesSource` reads such tables.
         OPTIMIZE changes no rows and is ignored;
      2. the table retains its log and its files for longer than the flow is ever down (by default 30 and 7 days).
         Missing files stop the flow: rows are never skipped silently.

    Rows have the columns of the table. A batch of appended rows can be replayed. A batch of the initial snapshot
    cannot; set `starting_version` to avoid it.

    | field                 | meaning                                                                          |
    |-----------------------|----------------------------------------------------------------------------------|
    | path                  | the table                                                                        |
    | max_files_per_trigger | the maximum number of files per batch                                            |
    | max_bytes_per_trigger | the soft maximum of bytes per batch                                              |
    | starting_version      | the first version that is read; None reads an initial snapshot. Used only at the |
    |                       | first start, without a checkpoint                                                |
    | wait_for_table        | whether to wait for a table that another flow creates; a missing table does not  |
    |                       | keep the application from starting                                               |

    One of the two bounds is required (HRC-110); with both, the first that is reached ends the batch.
    """

    path: str
    max_files_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    starting_version: int | None = None
    wait_for_table: bool = False

    def __post_init__(self) -> None:
        require_bounds(self.name, self.bounds)
        if self.starting_version is not None:
            require_version(self.name, self.starting_version)

    @property
    def name(self) -> str:
        """Return `delta:PATH`."""
        return f"delta:{self.path}"

    def preflight(self, target: Target) -> None:
        """Check that a local table exists, unless `wait_for_table` is set."""
        if not self.wait_for_table:
            super().preflight(target)

    def start_offset(self, end: str) -> str | None:
        """Return the offset at which a flow started, from any later one; None if it started with a snapshot."""
        if self.starting_version is None:
            return None
        began = {"reservoirVersion": self.starting_version, "index": -1, "isStartingVersion": False}
        return json.dumps({**json.loads(end), **began})

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the streaming DataFrame of the table."""
        table, reader = target.table(self.path), self._reader(spark)
        if self.wait_for_table and not is_table(table, spark):
            raise TableNotCreated(
                f"The Delta table {table} does not exist yet.",
                why="The flow that creates it has not committed a batch.",
                state="Nothing was read.",
                remedy="Nothing, if that flow is running: this one continues automatically. Otherwise start that one.",
            )
        if self.starting_version is not None:
            reader = reader.option("startingVersion", str(self.starting_version))
        return reader.load(table)

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Return the rows of the files that were appended between two offsets, from the versions that added them."""
        table = target.table(self.path)
        first, last = parse_offsets(spark, self.name, table, start, end)
        parts = []
        # At an index of -1 nothing of the last version is read, and it may not exist yet.
        for number in range(first.version, last.version + (last.index >= 0)):
            after = first.index if number == first.version else -1
            added = files_of_version(spark, self.name, table, number).added
            files = added[after + 1 : last.index + 1] if number == last.version else added[after + 1 :]
            if files:
                # Read at its own version: a later OPTIMIZE removes files from the table.
                rows = spark.read.format("delta").option("versionAsOf", str(number)).load(table)
                parts.append(rows.where(F.col("_metadata.file_name").isin(*files)))
        if not parts:
            return spark.read.format("delta").load(table).limit(0)
        return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)
