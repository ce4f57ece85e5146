"""The offsets of a Delta stream, and the files of each version of the table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from headrace.clients.sql import quote_name
from headrace.errors import DataError
from headrace.sources.errors import source_not_replayable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ACTION = "STRUCT<path: STRING, dataChange: BOOLEAN>"


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


@dataclass(frozen=True)
class VersionFiles:
    """The names of the files that one version added, removed, or wrote as change data, in the order of the log."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changes: tuple[str, ...]


def parse_offsets(
    spark: SparkSession, source: str, table: str, start: str, end: str
) -> tuple[DeltaOffset, DeltaOffset]:
    """Parse the two ends of a range; raise HR-511 if the table was replaced, or an end is in the initial snapshot."""
    first, last = DeltaOffset.read(start), DeltaOffset.read(end)
    if first.of_snapshot or last.of_snapshot:
        raise source_not_replayable(source, "The batch read a part of the table as it was at the flow's first start.")
    try:
        detail = spark.sql(f"DESCRIBE DETAIL delta.{quote_name(table)}").first()
    except AnalysisException as error:
        raise source_not_replayable(source, f"There is no Delta table at {table}.") from error
    if detail is None or detail["id"] != last.table_id:
        raise source_not_replayable(
            source, f"The table at {table} is not the one that was read; that one was {last.table_id}."
        )
    return first, last


def version_files(spark: SparkSession, source: str, table: str, number: int) -> VersionFiles:
    """Read the log entry of one version."""
    path = f"{table}/_delta_log/{number:020d}.json"
    schema = f"add {_ACTION}, remove {_ACTION}, cdc {_ACTION}"
    try:
        # One partition preserves the order of the lines, which is the order of the index.
        entries = spark.read.schema(schema).json(path).coalesce(1).collect()
    except AnalysisException as error:
        raise _log_removed(source, number) from error

    def names(action: str) -> tuple[str, ...]:
        actions = [entry[action] for entry in entries if entry[action] is not None]
        return tuple(logged["path"].rpartition("/")[2] for logged in actions if action == "cdc" or logged["dataChange"])

    return VersionFiles(names("add"), names("remove"), names("cdc"))


def _log_removed(source: str, number: int) -> DataError:
    return source_not_replayable(source, f"Its log no longer holds version {number}.")
