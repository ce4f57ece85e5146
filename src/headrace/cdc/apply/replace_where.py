"""Replace rows of a mirror by key with `replaceWhere`: a MERGE without the join, for changes newer than the table.

One commit removes the rows of a batch's keys and adds their new rows. For most keys no comparison is needed: their
changes are later in the source's log than every change in the table. But overlapping transactions commit in another
order than they write, so a few changes of a batch are earlier in the log than the last changes of the previous batch.
The changes of the previous batch are cached. For still earlier changes the positions are read from the table, by key.
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
# A condition with this many keys is half a megabyte of text, which Spark parses quickly.
_MOST_KEYS = 50_000
# If more positions than these have to be read from the table, a topic is being read again: then a MERGE is cheaper.
_MOST_OVERLAPPING = 1_000
# Several ranges are used if they contain at most this share of the values in the single range around them.
_MOST_INSIDE = 0.5


class KeyPosition(NamedTuple):
    """The last change of a key: its position in the source's log, and its operation."""

    position: str
    op: str


@dataclass(frozen=True)
class RecentChanges:
    """All changes of a table with a position after `since`, by key."""

    since: str
    changes: Mapping[Key, KeyPosition] = field(repr=False)


@dataclass
class _CachedPositions(CachedFact):
    """The greatest position of the rows of a table at one of its versions, which never changes."""

    state: TableState | None = None
    newest: str = ""
    recent: RecentChanges | None = None


def newest_position(session: SparkSession, into: TableWrite) -> str:
    """Return the greatest position of the rows of a table.

    Reads the table once per run, and again after a commit of another writer.
    """
    now = table_id_and_version(session, into)
    cached = into.cache.get(_CachedPositions, into.location)
    if cached.state != now:
        row = session.read.format("delta").load(into.location).agg(F.max(POSITION)).first()
        cached.state, cached.newest, cached.recent = now, (row and row[0]) or "", None
    return cached.newest


def collect_changes(rows: DataFrame) -> dict[Key, KeyPosition] | None:
    """Return reduced changes by key, or None if a key contains a null: `IN` matches no null."""
    rows_ = rows.select("_key.*", "_position", "_op").collect()
    changes: dict[Key, KeyPosition] = {tuple(row)[:-2]: KeyPosition(row[-2], row[-1]) for row in rows_}
    return None if any(part is None for key in changes for part in key) else changes


def stale_keys(
    session: SparkSession, key: T.StructType, changes: Mapping[Key, KeyPosition], newest_known: str, into: TableWrite
) -> set[Key] | None:
    """Return the keys of changes that are older than their row or their tombstone.

    `newest_known` is the greatest position of a row or a tombstone: later changes are newer than both. Returns None if
    too many positions would have to be read from the table.
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
    """Return the greatest position of each key that meets a condition. A tombstone for every key has no key."""
    rows = session.read.format("delta").load(location).where(named)
    positions = rows.groupBy(*map(quote_name, key.names)).agg(F.max(POSITION)).collect()
    return {tuple(row)[:-1]: row[-1] for row in positions}


def _is_older(change: KeyPosition, has: KeyPosition) -> bool:
    # A snapshot row is the state of the source at its position: a change at that position happened after it, and the
    # snapshot row does not replace that change. But it may follow a delete at its position.
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
    """Cache the positions after one commit of a batch's changes; `last` is the greatest position of the batch.

    `before` is the state of the table right before the commit. If the cache is of another state, or there was more than
    one commit, another writer may have changed the table: then the next batch reads the positions.
    """
    cached = into.cache.get(_CachedPositions, into.location)
    cached.newest, cached.recent = max(cached.newest, last), recent
    revalidate_cache(session, into, before)


def revalidate_cache(session: SparkSession, into: TableWrite, before: TableState) -> None:
    """Use the cached positions for the current version, after one commit that only moves rows from file to file."""
    cached, (table, at) = into.cache.get(_CachedPositions, into.location), table_id_and_version(session, into)
    is_next = cached.state == before and before in ((table, at), (table, at - 1))
    cached.state = (table, at) if is_next else None


def table_id_and_version(session: SparkSession, into: TableWrite) -> TableState:
    """Return the id of the table, and its version."""
    now = snapshot(session, into.location)
    return now.table_id, now.version


def can_list_keys_in_condition(key: T.StructType, keys: int) -> bool:
    """Return whether a condition can list the keys of a batch."""
    return keys <= _MOST_KEYS and all(type(field_.dataType) in _KEY_TYPES for field_ in key)


def supports_replace(session: SparkSession, into: TableWrite, columns: Sequence[str]) -> bool:
    """Return whether the rows of a table may be replaced.

    The table must have exactly these columns: replacing would lose the values of a column that the source dropped. It
    must have no change data feed, in which an update would appear as a delete and an insert.
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

    Delta skips files by the minimum and maximum of a list. Ranges skip more files if the keys are far apart. But Spark
    writes the bounds of a range into the generated Java code, and keeps a list outside of it. With ranges every batch
    has new code, which the JVM interprets at first. So ranges are used only if they skip most of the files.
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
    """Return the ranges of sorted numbers, if they exclude most of the values between the first and the last."""
    starts = [at for at, number in enumerate(numbers) if not at or number != numbers[at - 1] + 1]
    if len(starts) < 2:
        return []
    ranges = merge_ranges([(numbers[at], numbers[end - 1]) for at, end in pairwise([*starts, len(numbers)])])
    inside = [int(high) - int(low) + 1 for low, high in ranges]  # type: ignore[arg-type]
    return ranges if sum(inside) < (numbers[-1] - numbers[0]) * _MOST_INSIDE else []


def _sql_row(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
