"""A Postgres table: check that it exists and matches the rows, or create it. Does not use Spark."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from headrace.errors import DataError

# Postgres silently truncates longer names.
LONGEST_NAME_BYTES = 63

# Types of an existing column that need an explicit cast from text.
_CAST_FROM_TEXT = ("uuid", "jsonb")

_DECIMAL = re.compile(r"numeric\((\d+),(\d+)\)")

_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod),
       attnotnull AND NOT (atthasdef OR attidentity <> ''), attgenerated <> ''
FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
"""

# Indexes that ON CONFLICT can use: unique, immediate, not partial, over plain columns.
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
class JdbcColumn:
    """One column of the rows to write.

    | field  | example                   | meaning                                                               |
    |--------|---------------------------|-----------------------------------------------------------------------|
    | name   | at                        | its name in the rows and in the table                                 |
    | type   | timestamp with time zone  | its type in a table that the sink creates                             |
    | fits   | integer, or wider         | a regex of the types that an existing column may have without loss    |
    | staged | bigint                    | its type in the staging table                                         |
    | value  | to_timestamp({staged} ..) | the expression that converts the staged value                         |
    """

    name: str
    type: str
    fits: str
    staged: str
    value: str = "{staged}"

    def takes(self, type_: str) -> bool:
        """Whether an existing column of this type can store every value of the rows."""
        if re.fullmatch(self.fits, type_):
            return True
        declared, existing = _DECIMAL.fullmatch(self.type), _DECIMAL.fullmatch(type_)
        if declared is None or existing is None:
            return False
        digits, scale, more_digits, more_scale = (
            int(text) for match in (declared, existing) for text in match.groups()
        )
        return more_scale >= scale and more_digits - more_scale >= digits - scale


@dataclass(frozen=True)
class PostgresTable:
    """A table by its schema and its name."""

    schema: str
    name: str

    @property
    def identifier(self) -> sql.Identifier:
        """The quoted name for SQL statements."""
        return sql.Identifier(self.schema, self.name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    def oid(self, connection: psycopg.Connection) -> int | None:
        """Return the oid of the table, or None if it does not exist. A recreated table has another oid."""
        row = connection.execute(
            "SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')",
            (self.schema, self.name),
        ).fetchone()
        return None if row is None else int(row[0])

    def require_schema(self, connection: psycopg.Connection) -> None:
        """Raise unless the schema exists and the role may create tables in it: each attempt needs a staging table."""
        row = connection.execute(
            "SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %s", (self.schema,)
        ).fetchone()
        if row is None:
            raise self._mismatch_error(f"There is no schema '{self.schema}'.", f"Make it: CREATE SCHEMA {self.schema}.")
        if not row[0]:
            raise self._mismatch_error(
                f"The role may not make tables in the schema '{self.schema}', and each batch needs one for staging.",
                f"Grant it: GRANT CREATE, USAGE ON SCHEMA {self.schema} TO the role.",
            )

    def create(self, connection: psycopg.Connection, columns: Sequence[JdbcColumn], key: Sequence[str]) -> int:
        """Create the table with its primary key if it does not exist; return its oid."""
        definitions = [sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type)) for column in columns]
        statement = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY ({}))").format(
            self.identifier, sql.SQL(", ").join(definitions), column_list(key)
        )
        with advisory_lock(connection, str(self)):
            connection.execute(statement)
            oid = self.oid(connection)
        assert oid is not None  # noqa: S101 - made just now
        return oid

    def require_key(self, connection: psycopg.Connection, oid: int, key: Sequence[str]) -> None:
        """Raise unless the table has a unique constraint on the key, which ON CONFLICT needs."""
        unique_keys = [set(row[0]) for row in connection.execute(_UNIQUE, (oid,))]
        if set(key) not in unique_keys:
            columns = ", ".join(key)
            existing = "; ".join(", ".join(sorted(unique_key)) for unique_key in unique_keys) or "none"
            raise self._mismatch_error(
                f"It has no unique constraint over ({columns}) that is not deferrable. Its unique keys: {existing}.",
                f"Add one: ALTER TABLE {self} ADD UNIQUE ({columns}); or correct `key` of the sink.",
            )

    def conversions(
        self, connection: psycopg.Connection, oid: int, columns: Sequence[JdbcColumn]
    ) -> list[sql.Composed]:
        """Return, per column, the expression that converts its staged value; raise if a column does not match.

        The staging table has the alias `s` and the columns `c0`, `c1` and so on.
        """
        existing = {row[0]: row[1:] for row in connection.execute(_COLUMNS, (oid,))}
        problems = []
        values = []
        for number, column in enumerate(columns):
            if column.name not in existing:
                problems.append(f"it has no column '{column.name}'")
                continue
            type_, _needed, generated = existing[column.name]
            if generated:
                problems.append(f"'{column.name}' is computed by Postgres itself")
            elif not column.takes(type_):
                problems.append(f"'{column.name}' is {type_}, and the rows have {column.type}")
            template = f"{{staged}}::{type_}" if type_ in _CAST_FROM_TEXT else column.value
            values.append(sql.SQL(template).format(staged=sql.Identifier("s", f"c{number}")))
        declared = {column.name for column in columns}
        problems += [
            f"'{name}' must not be null, and the rows have no such column"
            for name, (_type, required, _generated) in existing.items()
            if required and name not in declared
        ]
        if problems:
            raise self._mismatch_error(
                f"{'; '.join(problems)}.".capitalize(), "Alter the table, or select and cast columns in the transform."
            )
        return values

    def _mismatch_error(self, why: str, remedy: str) -> DataError:
        return DataError(
            f"The Postgres table {self} cannot take the rows.",
            why=why,
            state="Nothing was written.",
            remedy=remedy,
            code="HR-509",
        )


@contextmanager
def advisory_lock(connection: psycopg.Connection, what: str) -> Iterator[None]:
    """Open a transaction that holds an advisory lock: two concurrent `CREATE TABLE IF NOT EXISTS` can both fail."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"headrace {what}",))
        yield


def column_list(columns: Sequence[str]) -> sql.Composed:
    """Return quoted column names, separated by commas."""
    return sql.SQL(", ").join(map(sql.Identifier, columns))
