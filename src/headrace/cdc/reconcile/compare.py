"""Compare a mirror with its source, row for row and value for value, and repair it.

1. The source is read in one snapshot with its log position, the mirror at one version.
2. Both sides compute a checksum per chunk of keys. Only chunks whose checksums differ are compared row by row.
3. Rows that differ are compared again until they are equal or `patience` ends: changes may still be on their way.

So a row is reported only if it was never equal. A repair writes the source's values in one commit. A row that was
missing in the mirror gets the position of a snapshot row, before every change; a row that differed keeps its position.
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession, functions as F, types as T

from headrace.cdc.apply.history import UNTIL
from headrace.cdc.apply.table import POSITION
from headrace.cdc.capture.source_table import SourceColumn, SourceTable
from headrace.cdc.decode.envelope import require_key
from headrace.cdc.reconcile.source_rows import SourceSnapshot, Text, open_snapshot
from headrace.cdc.reconcile.texts import comparable_text, is_compared, mirror_text, source_text, typed_value
from headrace.clients.spark.delta_log import snapshot
from headrace.clients.sql import column_named, quote_name
from headrace.errors import DataError
from headrace.flow.target import Database
from headrace.sinks.delta.sql import idempotent_write
from headrace.sinks.delta.table import DELETED

# If one row differs, its chunk is compared: four thousand of a million rows.
_CHUNKS = 256
# The pause between two comparisons of rows that differ.
_PAUSE_SECONDS = 2.0

DifferenceKind = Literal["missing", "extra", "different"]
Values = tuple[Text, ...]


@dataclass(frozen=True)
class Difference:
    """A row that differs: `missing` from the mirror, `extra` in it, or `different` in some columns."""

    key: Mapping[str, str | None]
    kind: DifferenceKind
    columns: tuple[str, ...]
    source: Values | None
    # The position of the mirror's row, if it exists.
    position: str | None

    def as_dict(self) -> dict[str, object]:
        """The difference as `--json` prints it: names, and no values but the key's."""
        return {"key": self.key, "kind": self.kind, "columns": list(self.columns)}


@dataclass(frozen=True)
class TableComparison:
    """The result of comparing a mirror with its source.

    | field              | meaning                                                              |
    |--------------------|----------------------------------------------------------------------|
    | position           | the source log position at the last comparison                       |
    | version            | the version of the mirror at the last comparison                     |
    | rows               | rows of the source at the first comparison                           |
    | missing_columns    | columns of the source that the mirror does not have                  |
    | uncompared_columns | columns whose type has no common text form                           |
    """

    table: SourceTable
    location: str
    position: str
    version: int
    rows: int
    differences: tuple[Difference, ...]
    missing_columns: tuple[str, ...]
    uncompared_columns: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether the mirror equals its source."""
        return not self.differences and not self.missing_columns

    def as_dict(self) -> dict[str, object]:
        """The comparison as `--json` prints it."""
        return {
            "table": str(self.table),
            "equal": self.equal,
            "position": self.position,
            "version": self.version,
            "rows": self.rows,
            "differences": [difference.as_dict() for difference in self.differences],
            "lacking": list(self.missing_columns),
            "not_compared": list(self.uncompared_columns),
        }


@dataclass(frozen=True)
class _Row:
    key: str
    values: Values
    compared: Values
    position: str | None = None


def compare(
    spark: SparkSession, database: Database, table: SourceTable, location: str, *, patience: float = 0.0
) -> TableComparison:
    """Compare a mirror with its source. Rows that differ are compared again for up to `patience` seconds.

    Raises HR-245 for a table without a primary key, and HR-526 if the mirror does not exist.
    """
    require_key(table)
    pair = _TableReconciliation.of(spark, table, location)
    until = time.monotonic() + patience
    suspects: dict[str, Difference] | None = None
    rows = 0
    while True:
        with open_snapshot(database) as source:
            version = snapshot(spark, location).version
            if suspects is None:
                rows, is_selected = pair.differing(source, version)
            else:
                is_selected = frozenset(suspects).__contains__
            suspects = pair.differences(source, version, is_selected)
            position = source.position
        if not suspects or time.monotonic() >= until:
            break
        time.sleep(min(_PAUSE_SECONDS, max(until - time.monotonic(), 0)))
    return TableComparison(
        table,
        location,
        position,
        version,
        rows,
        tuple(suspects.values()),
        pair.missing_columns,
        pair.uncompared_columns,
    )


def repair(spark: SparkSession, comparison: TableComparison) -> None:
    """Write the source's values of the rows that differ, in one commit that a second attempt passes over.

    The caller holds the table against other writers. A row that was changed since it was compared is left alone.
    """
    if not comparison.differences:
        return
    pair = _TableReconciliation.of(spark, comparison.table, comparison.location)
    session = spark.newSession()
    sums = hashlib.sha256(json.dumps([column.as_dict() for column in comparison.differences]).encode()).hexdigest()
    app_id = f"headrace-reconcile/{comparison.table}/{comparison.position}/{sums[:16]}"
    for name, value in idempotent_write(app_id, 0).items():
        session.conf.set(name, value)
    # A column may be named `${...}`: that is no setting.
    session.conf.set("spark.sql.variable.substitute", "false")
    rows = pair.typed(session, comparison)
    keys = [f"old.{quote_name(name)} = new.{quote_name(name)}" for name in comparison.table.key]
    values: dict[str, str | Column] = {
        quote_name(column.name): f"new.{quote_name(column.name)}" for column in pair.columns
    }
    first = values | {POSITION: "new._first"}
    as_compared = f"old.{POSITION} <=> new._position"
    if pair.is_soft:
        values, first = values | {DELETED: "false"}, first | {DELETED: "false"}
    (
        DeltaTable.forPath(session, comparison.location)
        .alias("old")
        .merge(rows.alias("new"), " AND ".join(keys))
        .whenMatchedDelete(f"new._kind = 'extra' AND {as_compared}")
        .whenMatchedUpdate(f"new._kind = 'different' AND {as_compared}", values)
        .whenNotMatchedInsert("new._kind = 'missing'", first)
        .execute()
    )


@dataclass(frozen=True)
class _TableReconciliation:
    """A source table and its mirror, with the columns that both have."""

    spark: SparkSession
    table: SourceTable
    location: str
    columns: tuple[SourceColumn, ...]
    kinds: tuple[T.DataType, ...]
    missing_columns: tuple[str, ...]
    uncompared_columns: tuple[str, ...]
    is_soft: bool

    @classmethod
    def of(cls, spark: SparkSession, table: SourceTable, location: str) -> _TableReconciliation:
        mirror = snapshot(spark, location)
        if mirror.version < 0:
            raise DataError(
                f"There is no mirror of table {table} at {location}.",
                why="No Delta table lies there.",
                state="Nothing was compared or changed.",
                remedy="Correct `--into`, or run the flow that captures the table.",
                code="HR-526",
            )
        fields = {column.name: column.dataType for column in mirror.schema}
        if POSITION not in fields or UNTIL in fields:
            raise DataError(
                f"The table of {table} at {location} is not a mirror.",
                why="A history and a change log contain more than the current rows.",
                state="Nothing was compared or changed.",
                remedy="Correct `--into`, or compare the mirror of the table.",
                code="HR-526",
            )
        both = tuple(column for column in table.columns if column.name in fields and is_compared(column))
        return cls(
            spark,
            table,
            location,
            both,
            tuple(fields[column.name] for column in both),
            tuple(column.name for column in table.columns if column.name not in fields),
            tuple(column.name for column in table.columns if not is_compared(column)),
            DELETED in fields,
        )

    def differing(self, source: SourceSnapshot, version: int) -> tuple[int, Callable[[str], bool]]:
        """Sum both sides in chunks. Return the source's number of rows, and whether a key's chunk differs."""
        ours, theirs = _sums(self._source(source)), _sums(self._mirror(version))
        differing = {chunk for chunk in range(_CHUNKS) if ours.get(chunk) != theirs.get(chunk)}
        return sum(count for count, _ in ours.values()), lambda key: _chunk(key) in differing

    def differences(
        self, source: SourceSnapshot, version: int, is_selected: Callable[[str], bool]
    ) -> dict[str, Difference]:
        """Compare the rows of the chosen keys."""
        ours = {row.key: row for row in self._source(source) if is_selected(row.key)}
        theirs = {row.key: row for row in self._mirror(version) if is_selected(row.key)}
        differences: dict[str, Difference] = {}
        for key in sorted({*ours, *theirs}):
            mine, other = ours.get(key), theirs.get(key)
            if mine is None or other is None:
                some = mine or other
                assert some is not None  # noqa: S101 - the key came from one of them
                kind: DifferenceKind = "missing" if other is None else "extra"
                differences[key] = self._difference(kind, some, mine, other, ())
            elif mine.compared != other.compared:
                pairs = zip(self.columns, mine.compared, other.compared, strict=True)
                names = tuple(
                    column.name for column, source_value, mirror_value in pairs if source_value != mirror_value
                )
                differences[key] = self._difference("different", mine, mine, other, names)
        return differences

    def _difference(
        self, kind: DifferenceKind, some: _Row, source: _Row | None, stored: _Row | None, names: tuple[str, ...]
    ) -> Difference:
        texts = dict(zip((column.name for column in self.columns), some.values, strict=True))
        key = {name: None if texts[name] is None else str(texts[name]) for name in self.table.key}
        return Difference(key, kind, names, source.values if source else None, stored.position if stored else None)

    def _source(self, source: SourceSnapshot) -> Iterator[_Row]:
        writes = [source_text(column, self.table.family) for column in self.columns]
        for row in source.rows(self.table, self.columns):
            yield self._row(tuple(write(text) for write, text in zip(writes, row, strict=True)), None)

    def _mirror(self, version: int) -> Iterator[_Row]:
        rows = self.spark.read.format("delta").option("versionAsOf", str(version)).load(self.location)
        if self.is_soft:
            rows = rows.where(~F.coalesce(F.col(DELETED), F.lit(False)))
        pairs = zip(self.columns, self.kinds, strict=True)
        texts = rows.select(*(mirror_text(column_named(column.name), kind) for column, kind in pairs), POSITION)
        for row in texts.toLocalIterator():
            yield self._row(tuple(row)[:-1], row[-1])

    def _row(self, values: Values, position: str | None) -> _Row:
        compared = tuple(comparable_text(text, kind) for text, kind in zip(values, self.kinds, strict=True))
        names = [column.name for column in self.columns]
        key = json.dumps([compared[names.index(name)] for name in self.table.key])
        return _Row(key, values, compared, position)

    def typed(self, session: SparkSession, comparison: TableComparison) -> DataFrame:
        """Return the rows to write, typed, with what is to be done with each."""
        names = [difference.name for difference in self.columns]
        # A row that was never a change: before all of them in Postgres, at its own place in a binlog.
        first = f"-{comparison.position[1:]}" if self.table.family == "postgres" else comparison.position
        texts = []
        for difference in comparison.differences:
            values = difference.source or tuple(difference.key.get(name) for name in names)
            texts.append(
                (
                    difference.kind,
                    difference.position,
                    first,
                    *(json.dumps(text) if isinstance(text, list) else text for text in values),
                )
            )
        fields = ["_kind", "_position", "_first", *(f"t{n}" for n in range(len(names)))]
        frame = session.createDataFrame(texts, T.StructType([T.StructField(name, T.StringType()) for name in fields]))
        columns = [typed_value(F.col(f"t{n}"), kind).alias(names[n]) for n, kind in enumerate(self.kinds)]
        return frame.select("_kind", "_position", "_first", *columns)


def _chunk(key: str) -> int:
    return zlib.crc32(key.encode()) % _CHUNKS


def _sums(rows: Iterable[_Row]) -> dict[int, tuple[int, int]]:
    """Return the number of rows and the sum of their digests per chunk, independent of their order."""
    sums: dict[int, tuple[int, int]] = {}
    for row in rows:
        chunk = _chunk(row.key)
        count, total = sums.get(chunk, (0, 0))
        digest = hashlib.sha256(json.dumps([row.key, row.compared]).encode()).digest()
        sums[chunk] = (count + 1, (total + int.from_bytes(digest, "big")) % 2**256)
    return sums
