"""A table of a Postgres database: whether it is there, whether rows fit into it, and making it. Nothing of Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from headrace.errors import DataError

# Postgres cuts longer names off without a word.
LONGEST_NAME_BYTES = 63

# Types of an existing column that take a text only when they are asked to.
_CAST_FROM_TEXT = ("uuid", "jsonb")

_DECIMAL = re.compile(r"numeric\((\d+),(\d+)\)")

_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod),
       attnotnull AND NOT (atthasdef OR attidentity <> ''), attgenerated <> ''
FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
"""

# What ON CONFLICT can stand on: a whole, immediate index over plain columns.
_UNIQUE = """
SELECT array_agg(a.attname::text)
FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS part(number, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = part.number
WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid
  AND i.indpred IS NULL AND i.indexprs IS NULL AND part.place <= i.indnkeyatts
GROUP BY i.indexrelid
"""


@dataclass(frozen=True)
class Column:
    """One column of rows on their way into a table.

    | field  | example                   | meaning                                                               |
    |--------|---------------------------|-----------------------------------------------------------------------|
    | name   | at                        | its name in the rows and in the table                                 |
    | type   | timestamp with time zone  | its type in a table that the sink makes                               |
    | fits   | integer, or wider         | a pattern of the types that an existing column may have without loss  |
    | staged | bigint                    | its type in the staging table                                         |
    | value  | to_timestamp({staged} ..) | how the staged value becomes the one of the table                     |
    """

    name: str
    type: str
    fits: str
    staged: str
    value: str = "{staged}"

    def takes(self, type_: str) -> bool:
        """Whether a column of this type, in a table that is there, can hold every value of the rows."""
        if re.fullmatch(self.fits, type_):
            return True
        mine, theirs = _DECIMAL.fullmatch(self.type), _DECIMAL.fullmatch(type_)
        if mine is None or theirs is None:
            return False
        digits, scale, more_digits, more_scale = (int(text) for each in (mine, theirs) for text in each.groups())
        return more_scale >= scale and more_digits - more_scale >= digits - scale


@dataclass(frozen=True)
class Table:
    """A table by its schema and its name."""

    schema: str
    name: str

    @property
    def identifier(self) -> sql.Identifier:
        """The name as it stands in a statement."""
        return sql.Identifier(self.schema, self.name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    def oid(self, connection: psycopg.Connection) -> int | None:
        """Return the number of the table, which another one of the same name would not have, or None without one."""
        row = connection.execute(
            "SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')",
            (self.schema, self.name),
        ).fetchone()
        return None if row is None else int(row[0])

    def require_schema(self, connection: psycopg.Connection) -> None:
        """Raise unless the schema is there and this role may make tables in it: a staging table per attempt."""
        row = connection.execute(
            "SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %s", (self.schema,)
        ).fetchone()
        if row is None:
            raise self._misfit(f"There is no schema '{self.schema}'.", f"Make it: CREATE SCHEMA {self.schema}.")
        if not row[0]:
            raise self._misfit(
                f"The role may not make tables in the schema '{self.schema}', and each batch needs one for staging.",
                f"Grant it: GRANT CREATE, USAGE ON SCHEMA {self.schema} TO the role.",
            )

    def make(self, connection: psycopg.Connection, columns: Sequence[Column], key: Sequence[str]) -> int:
        """Make the table with its primary key, unless somebody else was faster; return its number."""
        defined = [sql.SQL("{} {}").format(sql.Identifier(each.name), sql.SQL(each.type)) for each in columns]
        statement = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY ({}))").format(
            self.identifier, sql.SQL(", ").join(defined), names(key)
        )
        with alone(connection, str(self)):
            connection.execute(statement)
            oid = self.oid(connection)
        assert oid is not None  # noqa: S101 - made just now
        return oid

    def require_key(self, connection: psycopg.Connection, oid: int, key: Sequence[str]) -> None:
        """Raise unless the key is unique in the table: without that, Postgres cannot tell which row a row replaces."""
        found = [set(row[0]) for row in connection.execute(_UNIQUE, (oid,))]
        if set(key) not in found:
            columns = ", ".join(key)
            have = "; ".join(", ".join(sorted(each)) for each in found) or "none"
            raise self._misfit(
                f"It has no unique constraint over ({columns}) that holds at once. Those it has: {have}.",
                f"Add one: ALTER TABLE {self} ADD UNIQUE ({columns}); or correct `key` of the sink.",
            )

    def fitted(self, connection: psycopg.Connection, oid: int, columns: Sequence[Column]) -> list[sql.Composed]:
        """Return, per column, the expression of its value over the staging table `s`; raise where one would not fit.

        The staged columns are `c0`, `c1` and so on.
        """
        found = {row[0]: row[1:] for row in connection.execute(_COLUMNS, (oid,))}
        wrong = []
        values = []
        for number, column in enumerate(columns):
            if column.name not in found:
                wrong.append(f"it has no column '{column.name}'")
                continue
            type_, _needed, generated = found[column.name]
            if generated:
                wrong.append(f"'{column.name}' is computed by Postgres itself")
            elif not column.takes(type_):
                wrong.append(f"'{column.name}' is {type_}, and the rows have {column.type}")
            template = f"{{staged}}::{type_}" if type_ in _CAST_FROM_TEXT else column.value
            values.append(sql.SQL(template).format(staged=sql.Identifier("s", f"c{number}")))
        given = {column.name for column in columns}
        wrong += [
            f"'{name}' must not be null, and the rows have no such column"
            for name, (_type, needed, _generated) in found.items()
            if needed and name not in given
        ]
        if wrong:
            raise self._misfit(
                f"{'; '.join(wrong)}.".capitalize(), "Alter the table, or select and cast columns in the transform."
            )
        return values

    def _misfit(self, why: str, remedy: str) -> DataError:
        return DataError(
            f"The Postgres table {self} cannot take the rows.",
            why=why,
            state="Nothing was written.",
            remedy=remedy,
            code="HR-509",
        )


@contextmanager
def alone(connection: psycopg.Connection, what: str) -> Iterator[None]:
    """Run one transaction at a time that makes `what`: two `CREATE TABLE IF NOT EXISTS` at once can both fail."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"headrace {what}",))
        yield


def names(columns: Sequence[str]) -> sql.Composed:
    """Return column names as a list in a statement."""
    return sql.SQL(", ").join(map(sql.Identifier, columns))
