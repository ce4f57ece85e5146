"""The offsets of a Delta stream."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pyspark.sql import SparkSession

from headrace.clients.spark.delta_log import VersionFiles, snapshot, version_files
from headrace.sources.errors import source_not_replayable


@dataclass(frozen=True)
class DeltaOffset:
    """The position of a stream: all earlier versions are read, and the files of `version` up to `index`.

    With an index of -1 nothing of the version is read. With `of_snapshot` the index counts the files of the initial
    snapshot at the first start, in an order that only the stream knows.
    """

    table_id: str
    version: int
    index: int
    of_snapshot: bool

    @classmethod
    def read(cls, text: str) -> DeltaOffset:
        """Parse an offset as Delta's source writes it to the offset log."""
        fields = json.loads(text)
        return cls(
            str(fields["reservoirId"]),
            int(fields["reservoirVersion"]),
            int(fields["index"]),
            bool(fields["isStartingVersion"]),
        )


def parse_offsets(
    spark: SparkSession, source: str, table: str, start: str, end: str
) -> tuple[DeltaOffset, DeltaOffset]:
    """Parse the two ends of a range; raise HR-511 if the table was replaced, or an end is in the initial snapshot."""
    first, last = DeltaOffset.read(start), DeltaOffset.read(end)
    if first.of_snapshot or last.of_snapshot:
        raise source_not_replayable(source, "The batch read a part of the table as it was at the flow's first start.")
    current = snapshot(spark, table)
    if current.version < 0:
        raise source_not_replayable(source, f"There is no Delta table at {table}.")
    if current.table_id != last.table_id:
        raise source_not_replayable(
            source, f"The table at {table} is not the one that was read; that one was {last.table_id}."
        )
    return first, last


def files_of_version(spark: SparkSession, source: str, table: str, number: int) -> VersionFiles:
    """Return the files of one version; raise HR-511 if the log no longer has it."""
    files = version_files(spark, table, number)
    if files is None:
        raise source_not_replayable(source, f"Its log no longer has version {number}.")
    return files
