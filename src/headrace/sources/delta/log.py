"""What a stream over a Delta table has read: its offsets, and the files that each version of the table names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from headrace.errors import DataError
from headrace.sources.errors import not_again

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ACTION = "STRUCT<path: STRING, dataChange: BOOLEAN>"


@dataclass(frozen=True)
class Offset:
    """How far a stream has come: the files of `version` up to `index` are read, and of all versions before it.

    An index of -1 says that nothing of the version is read. `of_snapshot` says that the index counts the files of the
    whole table as it was at the first start, in an order that only the stream knows.
    """

    table_id: str
    version: int
    index: int
    of_snapshot: bool

    @classmethod
    def read(cls, text: str) -> Offset:
        """Read an offset as Delta's source writes it into the offset log."""
        read = json.loads(text)
        return cls(
            str(read["reservoirId"]), int(read["reservoirVersion"]), int(read["index"]), bool(read["isStartingVersion"])
        )


@dataclass(frozen=True)
class Version:
    """The names of the files that one version of a table added, removed, or wrote as changes, in the log's order."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changes: tuple[str, ...]


def offsets(spark: SparkSession, source: str, table: str, start: str, end: str) -> tuple[Offset, Offset]:
    """Return the two ends of a range, or raise when the table is not the one that was read, or the range is unknown."""
    first, last = Offset.read(start), Offset.read(end)
    if first.of_snapshot or last.of_snapshot:
        raise not_again(source, "The batch read a part of the table as it was at the flow's first start.")
    quoted = table.replace("`", "``")
    try:
        detail = spark.sql(f"DESCRIBE DETAIL delta.`{quoted}`").first()
    except AnalysisException as error:
        raise not_again(source, f"There is no Delta table at {table}.") from error
    if detail is None or detail["id"] != last.table_id:
        raise not_again(source, f"The table at {table} is not the one that was read; that one was {last.table_id}.")
    return first, last


def version(spark: SparkSession, source: str, table: str, number: int) -> Version:
    """Read the log's entry of one version."""
    path = f"{table}/_delta_log/{number:020d}.json"
    schema = f"add {_ACTION}, remove {_ACTION}, cdc {_ACTION}"
    try:
        # One partition keeps the lines in their order, which is the order of the index.
        entries = spark.read.schema(schema).json(path).coalesce(1).collect()
    except AnalysisException as error:
        raise _forgotten(source, number) from error

    def names(action: str) -> tuple[str, ...]:
        found = [entry[action] for entry in entries if entry[action] is not None]
        return tuple(each["path"].rpartition("/")[2] for each in found if action == "cdc" or each["dataChange"])

    return Version(names("add"), names("remove"), names("cdc"))


def _forgotten(source: str, number: int) -> DataError:
    return not_again(source, f"Its log no longer holds version {number}.")
