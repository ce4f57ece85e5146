"""Replace rows of a mirror by key with `replaceWhere`: a MERGE without the join, for changes newer than the table.

One commit removes the rows of a batch's keys and adds those that the batch ends in. Which row is newer need not be
asked for most keys: their changes are later in the source's log than every change that the table shows. Transactions
that overlap end in another order than they write: a few changes of a batch are then earlier in the log than the last
ones of the batch before. Those of that batch are still known; for what is earlier than them the table is asked, by key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession, functions as F, types as T

from headrace.cdc.apply.key_ranges import Range, merge_ranges
from headrace.cdc.apply.table import POSITION, TableWrite, struct_fields
from headrace.clients.spark.delta_log import snapshot, version
from headrace.clients.sql import quote_name, typed_literal
from headrace.flow.run_cache import CachedFact

Key = tuple[int | str, ...]
# Which table it is, and its version.
TableState = tuple[str, int]

_KEY_TYPES = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.StringType)
# So many keys are a condition of half a megabyte, which is read in a moment.
_MOST_KEYS = 50_000
# A batch with more changes than these for which the table has to be asked is one that is read again: a MERGE asks once.
_MOST_OVERLAPPING = 1_000
# Ranges are worth code of their own when they hold at most this share of what one range would.
_MOST_INSIDE = 0.5


class KeyPosition(NamedTuple):
    """The last change of a key: its place in the source's log, and what it does."""

    position: str
    op: str


@dataclass(frozen=True)
class RecentChanges:
    """Changes that a table has: every one of those later than `since`, by key."""

    since: str
    changes: Mapping[Key, KeyPosition] = field(repr=False)


@dataclass
class _CachedPositions(CachedFact):
    """The greatest position of the rows of a table at one of its versions, which never changes."""

    state: TableState | None = None
    newest: str = ""
    recent: RecentChanges | None = None


def newest_position(session: SparkSession, into: TableWrite) -> str:
    """Return the greatest position that a row of the table has.

    Reads the positions of a table once, and again after another's commit.
    """
    now = table_state(session, into)
    cached = into.cache.get(_CachedPositions, into.location)
    if cached.state != now:
        row = session.read.format("delta").load(into.location).agg(F.max(POSITION)).first()
        cached.state, cached.newest, cached.recent = now, (row and row[0]) or "", None
    return cached.newest


def collect_changes(rows: DataFrame) -> dict[Key, KeyPosition] | None:
    """Return reduced changes by key; None where a key holds a null, which no condition names."""
    rows_ = rows.select("_key.*", "_position", "_op").collect()
    changes: dict[Key, KeyPosition] = {tuple(row)[:-2]: KeyPosition(row[-2], row[-1]) for row in rows_}
    return None if any(part is None for key in changes for part in key) else changes


def stale_keys(
    session: SparkSession, key: T.StructType, changes: Mapping[Key, KeyPosition], newest_known: str, into: TableWrite
) -> set[Key] | None:
    """Return the keys of changes that are older than their row, or than their tombstone.

    `known` is the greatest position of a row or a tombstone: later changes are newer than both. Returns None where the
    table would have to be asked for too many.
    """
    recent = into.cache.get(_CachedPositions, into.location).recent or RecentChanges(newest_known, {})
    late = {row_key: change for row_key, change in changes.items() if change.position <= newest_known}
    stale = {
        row_key
        for row_key, change in late.items()
        if row_key in recent.changes and _is_older(change, recent.changes[row_key])
    }
    asked = {row_key: change for row_key, change in late.items() if change.position <= recent.since}
    if len(asked) > _MOST_OVERLAPPING:
        return None
    if asked:
        named = key_condition(key, list(asked))
        row_positions = _newest_positions(session, into.location, key, named)
        tombstone_positions = (
            _newest_positions(session, into.tombstones, key, named) if version(session, into.tombstones) >= 0 else {}
        )
        for row_key, change in asked.items():
            has = (
                KeyPosition(row_positions.get(row_key, ""), "u"),
                KeyPosition(tombstone_positions.get(row_key, ""), "d"),
            )
            if any(_is_older(change, stored_change) for stored_change in has):
                stale.add(row_key)
    return stale


def _newest_positions(session: SparkSession, location: str, key: T.StructType, named: str) -> dict[Key, str]:
    """Return the greatest position of each key that a condition names. A tombstone for every key has no key."""
    rows = session.read.format("delta").load(location).where(named)
    positions = rows.groupBy(*map(quote_name, key.names)).agg(F.max(POSITION)).collect()
    return {tuple(row)[:-1]: row[-1] for row in positions}


def _is_older(change: KeyPosition, has: KeyPosition) -> bool:
    # A row of a snapshot is what the source held at its position: a change at that position came after it. The other
    # way round, a row of a snapshot does not replace that change; and it may follow a delete at its position.
    same_is_older = change.op == "r" and has.op != "d"
    return change.position < has.position or (same_is_older and change.position == has.position)


def without_keys(rows: DataFrame, keys: set[Key]) -> DataFrame:
    """Return reduced changes without those of some keys."""
    if not keys:
        return rows
    schema = T.StructType([T.StructField("_key", struct_fields(rows, "_key"))])
    excluded = rows.sparkSession.createDataFrame([(row_key,) for row_key in keys], schema)
    return rows.join(F.broadcast(excluded), "_key", "left_anti")


def cache_positions(
    session: SparkSession, into: TableWrite, before: TableState, last: str, recent: RecentChanges | None
) -> None:
    """Keep what is known of the positions, after one commit of a batch's changes; `last` is their greatest position.

    `before` is what the table was right before it. What is known of another state does not hold for this one, and more
    than one commit may be another's: the next batch looks for itself.
    """
    cached = into.cache.get(_CachedPositions, into.location)
    cached.newest, cached.recent = max(cached.newest, last), recent
    revalidate_cache(session, into, before)


def revalidate_cache(session: SparkSession, into: TableWrite, before: TableState) -> None:
    """Use the cached positions for the current version, after one commit that only moves rows from file to file."""
    cached, (table, at) = into.cache.get(_CachedPositions, into.location), table_state(session, into)
    is_next = cached.state == before and before in ((table, at), (table, at - 1))
    cached.state = (table, at) if is_next else None


def table_state(session: SparkSession, into: TableWrite) -> TableState:
    """Return which table is there, and its version."""
    now = snapshot(session, into.location)
    return now.table_id, now.version


def keys_fit_condition(key: T.StructType, keys: int) -> bool:
    """Return whether a condition can name the keys of a batch."""
    return keys <= _MOST_KEYS and all(type(field_.dataType) in _KEY_TYPES for field_ in key)


def supports_replace(session: SparkSession, into: TableWrite, columns: Sequence[str]) -> bool:
    """Return whether a table is one whose rows may be replaced.

    It has these columns and no other: one that its source dropped keeps its values. And it has no change feed, in which
    an update would appear as a delete and an insert.
    """
    now = snapshot(session, into.location)
    return now.table_property("delta.enableChangeDataFeed") != "true" and set(now.schema.names) == set(columns)


def replace_rows(new: DataFrame, key: T.StructType, keys: Sequence[Key], into: TableWrite) -> None:
    """Replace the rows that have some keys by new ones, in one commit."""
    if keys:
        write = new.write.format("delta").mode("overwrite").option("replaceWhere", key_condition(key, keys))
        write.save(into.location)


def key_condition(key: T.StructType, keys: Sequence[Key]) -> str:
    """Return the condition that a row has one of these keys.

    Delta leaves files out by the least and the greatest value of a list. Ranges leave out more where keys lie apart.
    But Spark writes the ends of a range into the Java code of a query, while it keeps a list outside: with ranges the
    code is another one for every batch, which the JVM interprets at first. So they are there where few rows are left.
    """
    columns, kinds = [quote_name(name) for name in key.names], [column.dataType for column in key]
    first = sorted({row_key[0] for row_key in keys})
    named = list[str]()
    if ranges := _selective_ranges([row_key for row_key in first if isinstance(row_key, int)]):
        ends = ((typed_literal(low, kinds[0]), typed_literal(high, kinds[0])) for low, high in ranges)
        named.append(f"({' OR '.join(f'{columns[0]} BETWEEN {low} AND {high}' for low, high in ends)})")
    elif len(key) > 1:
        named.append(f"{columns[0]} IN ({', '.join(typed_literal(row_key, kinds[0]) for row_key in first)})")
    literals = [_sql_row(list(map(typed_literal, row_key, kinds))) for row_key in keys]
    named.append(f"{_sql_row(columns)} IN ({', '.join(literals)})")
    return " AND ".join(named)


def _selective_ranges(numbers: Sequence[int]) -> list[Range]:
    """Return the ranges of sorted numbers, where they leave out most of what lies between the first and the last."""
    starts = [at for at, number in enumerate(numbers) if not at or number != numbers[at - 1] + 1]
    if len(starts) < 2:
        return []
    ranges = merge_ranges([(numbers[at], numbers[end - 1]) for at, end in pairwise([*starts, len(numbers)])])
    inside = [int(high) - int(low) + 1 for low, high in ranges]  # type: ignore[arg-type]
    return ranges if sum(inside) < (numbers[-1] - numbers[0]) * _MOST_INSIDE else []


def _sql_row(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
