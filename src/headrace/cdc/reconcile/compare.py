"""A mirror compared with its source, row for row and value for value, and repaired.

1. The source is read in one snapshot, together with its place in the log; the mirror at one version.
2. Both sides are summed in chunks of keys. Only the chunks whose sums differ are compared row by row.
3. Rows that differ are looked at again, until they are equal or the patience ends: the mirror may be on its way.

So a row is reported when it was never seen equal. A repair writes the source's values in one commit. A row that the
mirror lacked gets the position of a snapshot's row, which every change comes after; one that differed keeps its own.
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from delta.tables import DeltaTable
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.cdc.apply.history import UNTIL
from headrace.cdc.apply.table import POSITION
from headrace.cdc.capture.source_table import SourceColumn, SourceTable
from headrace.cdc.decode.envelope import require_key
from headrace.cdc.reconcile.source_rows import Snapshot, Text, snapshot
from headrace.cdc.reconcile.texts import comparable, expected, held, is_compared, restored
from headrace.errors import DataError
from headrace.flow.target import Database
from headrace.sinks.delta.sql import quoted
from headrace.sinks.delta.table import DELETED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# A difference in one row means the reading of one chunk: of a million rows, four thousand.
_CHUNKS = 256
# Between two looks at rows that differ.
_PAUSE_SECONDS = 2.0

Kind = Literal["missing", "extra", "different"]
Values = tuple[Text, ...]
_IDENTITY = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")


@dataclass(frozen=True)
class Difference:
    """A row that differs: `missing` from the mirror, `extra` in it, or `different` in some columns."""

    key: dict[str, str | None]
    kind: Kind
    columns: tuple[str, ...]
    source: Values | None
    # Of the mirror's row, where there is one.
    position: str | None

    def as_dict(self) -> dict[str, object]:
        """The difference as `--json` prints it: names, and no values but the key's."""
        return {"key": self.key, "kind": self.kind, "columns": list(self.columns)}


@dataclass(frozen=True)
class Compared:
    """What a comparison found.

    | field       | meaning                                                                     |
    |-------------|-----------------------------------------------------------------------------|
    | position    | the place in the source's log at the last look                              |
    | version     | the version of the mirror at the last look                                  |
    | rows        | rows of the source at the first look                                        |
    | lacking     | columns of the source that the mirror has not                               |
    | untold      | columns whose type has no text that both sides can tell: not compared       |
    """

    table: SourceTable
    location: str
    position: str
    version: int
    rows: int
    differences: tuple[Difference, ...]
    lacking: tuple[str, ...]
    untold: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether the mirror holds what its source holds."""
        return not self.differences and not self.lacking

    def as_dict(self) -> dict[str, object]:
        """The comparison as `--json` prints it."""
        return {
            "table": str(self.table),
            "equal": self.equal,
            "position": self.position,
            "version": self.version,
            "rows": self.rows,
            "differences": [each.as_dict() for each in self.differences],
            "lacking": list(self.lacking),
            "not_compared": list(self.untold),
        }


@dataclass(frozen=True)
class _Row:
    key: str
    values: Values
    compared: Values
    position: str | None = None


def compare(
    spark: SparkSession, database: Database, table: SourceTable, location: str, *, patience: float = 0.0
) -> Compared:
    """Compare a mirror with its source. `patience` is how many seconds rows that differ are looked at again.

    Raises HR-245 for a table without a primary key, and HR-526 where there is no mirror.
    """
    require_key(table)
    pair = _Pair.of(spark, table, location)
    until = time.monotonic() + patience
    suspects: dict[str, Difference] | None = None
    rows = 0
    while True:
        with snapshot(database) as source:
            version = _version(spark, location)
            if suspects is None:
                rows, chosen = pair.differing(source, version)
            else:
                chosen = frozenset(suspects).__contains__
            suspects = pair.differences(source, version, chosen)
            position = source.position
        if not suspects or time.monotonic() >= until:
            break
        time.sleep(min(_PAUSE_SECONDS, max(until - time.monotonic(), 0)))
    return Compared(table, location, position, version, rows, tuple(suspects.values()), pair.lacking, pair.untold)


def repair(spark: SparkSession, found: Compared) -> None:
    """Write the source's values of the rows that differ, in one commit that a second attempt passes over.

    The caller holds the table against other writers. A row that was changed since it was compared is left alone.
    """
    if not found.differences:
        return
    pair = _Pair.of(spark, found.table, found.location)
    session = spark.newSession()
    sums = hashlib.sha256(json.dumps([each.as_dict() for each in found.differences]).encode()).hexdigest()
    identity = (f"headrace-reconcile/{found.table}/{found.position}/{sums[:16]}", "0")
    for name, value in zip(_IDENTITY, identity, strict=True):
        session.conf.set(name, value)
    # A column may be named `${...}`: that is no setting.
    session.conf.set("spark.sql.variable.substitute", "false")
    rows = pair.typed(session, found)
    keys = [f"old.{quoted(name)} = new.{quoted(name)}" for name in found.table.key]
    values: dict[str, str | Column] = {quoted(each.name): f"new.{quoted(each.name)}" for each in pair.columns}
    first = values | {POSITION: "new._first"}
    as_compared = f"old.{POSITION} <=> new._position"
    if pair.is_soft:
        values, first = values | {DELETED: "false"}, first | {DELETED: "false"}
    (
        DeltaTable.forPath(session, found.location)
        .alias("old")
        .merge(rows.alias("new"), " AND ".join(keys))
        .whenMatchedDelete(f"new._kind = 'extra' AND {as_compared}")
        .whenMatchedUpdate(f"new._kind = 'different' AND {as_compared}", values)
        .whenNotMatchedInsert("new._kind = 'missing'", first)
        .execute()
    )


@dataclass(frozen=True)
class _Pair:
    """A source table and its mirror, with the columns that both have."""

    spark: SparkSession
    table: SourceTable
    location: str
    columns: tuple[SourceColumn, ...]
    kinds: tuple[T.DataType, ...]
    lacking: tuple[str, ...]
    untold: tuple[str, ...]
    is_soft: bool

    @classmethod
    def of(cls, spark: SparkSession, table: SourceTable, location: str) -> _Pair:
        if not DeltaTable.isDeltaTable(spark, location):
            raise DataError(
                f"There is no mirror of table {table} at {location}.",
                why="No Delta table lies there.",
                state="Nothing was compared or changed.",
                remedy="Correct `--into`, or run the flow that captures the table.",
                code="HR-526",
            )
        fields = {each.name: each.dataType for each in DeltaTable.forPath(spark, location).toDF().schema}
        if POSITION not in fields or UNTIL in fields:
            raise DataError(
                f"What is kept of table {table} at {location} is no mirror.",
                why="A history and a log hold more than the rows that are there now.",
                state="Nothing was compared or changed.",
                remedy="Correct `--into`, or compare the mirror of the table.",
                code="HR-526",
            )
        both = tuple(each for each in table.columns if each.name in fields and is_compared(each))
        return cls(
            spark,
            table,
            location,
            both,
            tuple(fields[each.name] for each in both),
            tuple(each.name for each in table.columns if each.name not in fields),
            tuple(each.name for each in table.columns if not is_compared(each)),
            DELETED in fields,
        )

    def differing(self, source: Snapshot, version: int) -> tuple[int, Callable[[str], bool]]:
        """Sum both sides in chunks. Return the source's number of rows, and whether a key's chunk differs."""
        ours, theirs = _sums(self._source(source)), _sums(self._mirror(version))
        differing = {chunk for chunk in range(_CHUNKS) if ours.get(chunk) != theirs.get(chunk)}
        return sum(count for count, _ in ours.values()), lambda key: _chunk(key) in differing

    def differences(self, source: Snapshot, version: int, chosen: Callable[[str], bool]) -> dict[str, Difference]:
        """Compare the rows of the chosen keys."""
        ours = {row.key: row for row in self._source(source) if chosen(row.key)}
        theirs = {row.key: row for row in self._mirror(version) if chosen(row.key)}
        found: dict[str, Difference] = {}
        for key in sorted({*ours, *theirs}):
            one, other = ours.get(key), theirs.get(key)
            if one is None or other is None:
                some = one or other
                assert some is not None  # noqa: S101 - the key came from one of them
                kind: Kind = "missing" if other is None else "extra"
                found[key] = self._difference(kind, some, one, other, ())
            elif one.compared != other.compared:
                pairs = zip(self.columns, one.compared, other.compared, strict=True)
                names = tuple(column.name for column, mine, yours in pairs if mine != yours)
                found[key] = self._difference("different", one, one, other, names)
        return found

    def _difference(
        self, kind: Kind, some: _Row, one: _Row | None, other: _Row | None, names: tuple[str, ...]
    ) -> Difference:
        texts = dict(zip((each.name for each in self.columns), some.values, strict=True))
        key = {name: None if texts[name] is None else str(texts[name]) for name in self.table.key}
        return Difference(key, kind, names, one.values if one else None, other.position if other else None)

    def _source(self, source: Snapshot) -> Iterator[_Row]:
        writes = [expected(column, self.table.family) for column in self.columns]
        for row in source.rows(self.table, self.columns):
            yield self._row(tuple(write(text) for write, text in zip(writes, row, strict=True)), None)

    def _mirror(self, version: int) -> Iterator[_Row]:
        rows = self.spark.read.format("delta").option("versionAsOf", str(version)).load(self.location)
        if self.is_soft:
            rows = rows.where(~F.coalesce(F.col(DELETED), F.lit(False)))
        pairs = zip(self.columns, self.kinds, strict=True)
        texts = rows.select(*(held(F.col(quoted(each.name)), kind) for each, kind in pairs), POSITION)
        for row in texts.toLocalIterator():
            yield self._row(tuple(row)[:-1], row[-1])

    def _row(self, values: Values, position: str | None) -> _Row:
        compared = tuple(comparable(text, kind) for text, kind in zip(values, self.kinds, strict=True))
        names = [each.name for each in self.columns]
        key = json.dumps([compared[names.index(name)] for name in self.table.key])
        return _Row(key, values, compared, position)

    def typed(self, session: SparkSession, found: Compared) -> DataFrame:
        """Return the rows to write, typed, with what is to be done with each."""
        names = [each.name for each in self.columns]
        # A row that was never a change: before all of them in Postgres, at its own place in a binlog.
        first = f"-{found.position[1:]}" if self.table.family == "postgres" else found.position
        texts = []
        for each in found.differences:
            values = each.source or tuple(each.key.get(name) for name in names)
            texts.append((each.kind, each.position, first, *(_flat(text) for text in values)))
        fields = ["_kind", "_position", "_first", *(f"t{n}" for n in range(len(names)))]
        frame = session.createDataFrame(texts, T.StructType([T.StructField(name, T.StringType()) for name in fields]))
        columns = [restored(F.col(f"t{n}"), kind).alias(names[n]) for n, kind in enumerate(self.kinds)]
        return frame.select("_kind", "_position", "_first", *columns)


def _version(spark: SparkSession, location: str) -> int:
    row = DeltaTable.forPath(spark, location).history(1).select("version").first()
    assert row is not None  # noqa: S101 - a table has a version
    return int(row[0])


def _chunk(key: str) -> int:
    return zlib.crc32(key.encode()) % _CHUNKS


def _sums(rows: Iterable[_Row]) -> dict[int, tuple[int, int]]:
    """Return the number of rows and the sum of their digests per chunk: no order of rows is asked of either side."""
    sums: dict[int, tuple[int, int]] = {}
    for row in rows:
        chunk = _chunk(row.key)
        count, total = sums.get(chunk, (0, 0))
        digest = hashlib.sha256(json.dumps([row.key, row.compared]).encode()).digest()
        sums[chunk] = (count + 1, (total + int.from_bytes(digest, "big")) % 2**256)
    return sums


def _flat(text: Text) -> str | None:
    return json.dumps(text) if isinstance(text, list) else text
