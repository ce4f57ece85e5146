"""Rows of a mirror replaced by key: what a MERGE does for changes that are newer than the table, without its join.

One commit removes the rows of a batch's keys and adds those that the batch ends in. Which row is newer need not be
asked for most keys: their changes are later in the source's log than every change that the table shows. Transactions
that overlap end in another order than they write: a few changes of a batch are then earlier in the log than the last
ones of the batch before. Only their keys are looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.sinks.cdc_ranges import Range, cut
from headrace.sinks.cdc_table import POSITION, Into, fields, quoted, snapshot, text, version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Key = tuple[int | str, ...]
# Which table it is, and its version.
State = tuple[str, int]

# How SQL writes a number of each type: one of another type would be cast, and files no longer left out by it.
_SUFFIX: dict[type[T.DataType], str] = {T.ByteType: "Y", T.ShortType: "S", T.IntegerType: "", T.LongType: "L"}
# So many keys are a condition of half a megabyte, which is read in a moment.
_MOST_KEYS = 50_000
# A batch with more changes than these that are not newer than the table is one that is read again: a MERGE looks once.
_MOST_OVERLAPPING = 1_000
# A run of keys is a range where it is worth one.
_MOST_RUNS, _LEAST_RUN = 4, 16

# The greatest position of a table at one of its versions: a version never changes.
_seen: dict[str, tuple[State, str]] = {}


def newest(session: SparkSession, into: Into) -> str:
    """Return the greatest position that a row of the table has.

    Reads the positions of a table once, and again after another's commit.
    """
    now = state(session, into)
    seen = _seen.get(into.location)
    if seen is None or seen[0] != now:
        row = session.read.format("delta").load(into.location).agg(F.max(POSITION)).first()
        seen = _seen[into.location] = (now, (row and row[0]) or "")
    return seen[1]


def without_older(rows: DataFrame, into: Into, known: str) -> DataFrame | None:
    """Return reduced changes without those that are older than the row, or the tombstone, of their key.

    `known` is the greatest position of a row or a tombstone: later changes are newer than both. Returns None where too
    many changes are not later, or a key holds a null.
    """
    session, key = rows.sparkSession, fields(rows, "_key")
    overlapping = rows.where(F.col("_position") <= known).select("_key", "_position", "_op")
    found = [(tuple(row._key), row) for row in overlapping.limit(_MOST_OVERLAPPING + 1).collect()]
    if len(found) > _MOST_OVERLAPPING or _has_null([each for each, _ in found]):
        return None
    if not found:
        return rows
    named = condition(key, [each for each, _ in found])
    held = _positions(session, into.location, key, named)
    buried = _positions(session, into.tombstones, key, named) if version(session, into.tombstones) >= 0 else {}
    older = [
        (row._key,)
        for each, row in found
        if not _is_newer(row._position, row._op, held.get(each, "")) or row._position < buried.get(each, "")
    ]
    if not older:
        return rows
    told = session.createDataFrame(older, T.StructType([T.StructField("_key", key)]))
    return rows.join(F.broadcast(told), "_key", "left_anti")


def _positions(session: SparkSession, location: str, key: T.StructType, named: str) -> dict[Key, str]:
    """Return the greatest position of each key that a condition names. A tombstone for every key has no key."""
    rows = session.read.format("delta").load(location).where(named)
    found = rows.groupBy(*map(quoted, key.names)).agg(F.max(POSITION)).collect()
    return {tuple(row)[:-1]: row[-1] for row in found}


def _is_newer(position: str, op: str, held: str) -> bool:
    # A row of a snapshot is what the source held at its position: a change at that position came after it.
    return position > held or (position == held and op != "r")


def remember(session: SparkSession, into: Into, before: State, last: str = "") -> None:
    """Keep what is known of the positions, after one commit of this batch's changes, or of one that only moves rows.

    `before` is what the table was right before it. What is known of another state does not hold for this one, and more
    than one commit may be another's: the next batch looks for itself.
    """
    seen, (table, now) = _seen.pop(into.location, None), state(session, into)
    if seen is not None and seen[0] == before and before in ((table, now), (table, now - 1)):
        _seen[into.location] = ((table, now), max(seen[1], last))


def state(session: SparkSession, into: Into) -> State:
    """Return which table is there, and its version."""
    found = snapshot(session, into.location)
    return str(found.metadata().id()), int(found.version())


def can_be_named(key: T.StructType, keys: int) -> bool:
    """Return whether a condition can name the keys of a batch."""
    return keys <= _MOST_KEYS and all(type(each.dataType) in (*_SUFFIX, T.StringType) for each in key)


def takes_it(session: SparkSession, into: Into, columns: Sequence[str]) -> bool:
    """Return whether a table is one whose rows may be replaced.

    It has these columns and no other: one that its source dropped keeps its values. And it has no change feed, in which
    an update would be told as a delete and an insert.
    """
    now = snapshot(session, into.location)
    feed = now.metadata().configuration().get("delta.enableChangeDataFeed").contains("true")
    return not feed and set(now.schema().fieldNames()) == set(columns)


def replace(rows: DataFrame, new: DataFrame, into: Into) -> bool:
    """Replace the rows that have the keys of changes, in one commit. Says whether it did: a key may hold a null."""
    keys: list[Key] = [tuple(row) for row in rows.select("_key.*").collect()]
    if _has_null(keys):
        return False
    if keys:
        named = condition(fields(rows, "_key"), keys)
        write = new.write.format("delta").mode("overwrite").option("replaceWhere", named)
        write.save(into.location)
    return True


def condition(key: T.StructType, keys: Sequence[Key]) -> str:
    """Return the condition that a row has one of these keys. Files are left out by the ranges that it begins with.

    New rows mostly have numbers that follow each other: such a run is named by its ends. Every key that is named by
    itself is read by Spark's parser, and a condition of many ranges takes long to plan, so the longest few are taken.
    """
    columns, kinds = [quoted(name) for name in key.names], [type(each.dataType) for each in key]

    def between(ranges: Sequence[Range]) -> list[str]:
        return [
            f"{columns[0]} BETWEEN {_literal(low, kinds[0])} AND {_literal(high, kinds[0])}" for low, high in ranges
        ]

    first = sorted({each[0] for each in keys})
    within, taken = list[Range]([(first[0], first[-1])]), list[tuple[int, int]]()
    if isinstance(first[0], int):
        runs = _runs([each for each in first if isinstance(each, int)])
        within, taken = cut(runs), _longest(runs) if len(key) == 1 else []
    single = [each for each in keys if not any(low <= each[0] <= high for low, high in taken)]  # type: ignore[operator]
    told = [_row([_literal(part, kind) for part, kind in zip(each, kinds, strict=True)]) for each in single]
    named = between(taken) + ([f"{_row(columns)} IN ({', '.join(told)})"] if told else [])
    return f"({' OR '.join(between(within))}) AND ({' OR '.join(named)})"


def _has_null(keys: Sequence[Key]) -> bool:
    return any(part is None for each in keys for part in each)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return sorted numbers as runs of those that follow each other: the first and the last of each."""
    starts = [at for at, number in enumerate(numbers) if not at or number != numbers[at - 1] + 1]
    return [(numbers[at], numbers[end - 1]) for at, end in pairwise([*starts, len(numbers)])]


def _longest(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    longest = sorted(runs, key=lambda run: run[0] - run[1])[:_MOST_RUNS]
    return [run for run in longest if run[1] - run[0] >= _LEAST_RUN]


def _row(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"


def _literal(value: object, kind: type[T.DataType]) -> str:
    return text(value) if isinstance(value, str) else f"{value}{_SUFFIX[kind]}"
