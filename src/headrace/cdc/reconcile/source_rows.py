"""Read the rows of source tables as text, in one snapshot with its log position, and look up a row by its key."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import psycopg
from psycopg import sql
from pymysql.cursors import Cursor, SSCursor

from headrace.cdc.capture.catalogue import binlog_position, database_family, wal_position
from headrace.cdc.capture.source_table import SourceColumn, SourceTable
from headrace.clients import mysql, postgres
from headrace.clients.sql import quote_name
from headrace.flow.target import Database

# A value, or one per element of an array, which may contain arrays.
Text = str | None | list["Text"]

# The formats of texts, independent of the server's settings.
_POSTGRES_FORMS = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
}
# Rows per round trip: a few megabytes of ordinary rows.
_AT_A_TIME = 5_000


class SourceSnapshot(Protocol):
    """A database at one position of its log, as long as the snapshot is open."""

    @property
    def position(self) -> str:
        """The log position: the snapshot contains everything before it."""

    def rows(self, table: SourceTable, columns: Sequence[SourceColumn]) -> Iterator[tuple[Text, ...]]:
        """Return the rows of a table in any order."""


@contextmanager
def open_snapshot(database: Database) -> Iterator[SourceSnapshot]:
    """Open a read-only snapshot. It takes no lock, but the server cannot remove old rows meanwhile: close it soon."""
    if database_family(database) == "mysql":
        with mysql.session(database) as cursor:
            cursor.execute("SET time_zone = '+00:00', NAMES utf8mb4")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            yield _Binlog(_binlog_position(cursor), cursor)
        return
    with postgres.session(database) as connection:
        for name, value in _POSTGRES_FORMS.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        with connection.transaction():
            yield _Postgres(wal_position(connection), connection)


@dataclass(frozen=True)
class _Postgres:
    position: str
    connection: psycopg.Connection

    def rows(self, table: SourceTable, columns: Sequence[SourceColumn]) -> Iterator[tuple[Text, ...]]:
        expressions = sql.SQL(", ").join(
            sql.SQL("{}::text[]" if column.type.endswith("[]") else "{}::text").format(sql.Identifier(column.name))
            for column in columns
        )
        query = sql.SQL("SELECT {} FROM {}").format(expressions, sql.Identifier(table.schema, table.name))
        with self.connection.cursor(name="headrace_rows") as cursor:
            cursor.itersize = _AT_A_TIME
            cursor.execute(query)
            yield from cursor


@dataclass(frozen=True)
class _Binlog:
    position: str
    cursor: Cursor

    def rows(self, table: SourceTable, columns: Sequence[SourceColumn]) -> Iterator[tuple[Text, ...]]:
        expressions = ", ".join(_column_as_text_sql(column) for column in columns)
        with self.cursor.connection.cursor(SSCursor) as cursor:
            cursor.execute(f"SELECT {expressions} FROM {quote_name(table.schema)}.{quote_name(table.name)}")  # noqa: S608 - quoted
            while rows := cursor.fetchmany(_AT_A_TIME):
                yield from rows


def _binlog_position(cursor: Cursor) -> str:
    """Return the position of the snapshot if the server has it (MariaDB), else the position right after it."""
    cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
    status = {str(name).lower(): str(value) for name, value in cursor.fetchall()}
    if status.get("binlog_snapshot_file"):
        return binlog_position(status["binlog_snapshot_file"], int(status["binlog_snapshot_position"]))
    return binlog_position(*(mysql.binlog_position(cursor) or ("0", 0)))


def _column_as_text_sql(column: SourceColumn) -> str:
    """Return the expression that writes a column as text."""
    name, kind = quote_name(column.name), column.type.lower()
    if re.match(r"(tiny|medium|long)?blob|(var)?binary", kind):
        return f"LOWER(HEX({name}))"
    if kind.startswith("bit"):
        return f"BIN({name} + 0)"
    if kind.endswith("zerofill"):
        return f"CAST({name} + 0 AS CHAR)"
    # As a double: a float is written with six digits otherwise.
    return f"CAST({name} + 0e0 AS CHAR)" if kind.startswith("float") else f"CAST({name} AS CHAR)"


def row_exists(database: Database, table: SourceTable, key: Mapping[str, str]) -> bool:
    """Whether a row has the key. Keys are compared as texts: `42` is not an error for a table with text keys.

    Raises the errors of the client if the database does not answer or rejects the query.
    """
    if database_family(database) == "mysql":
        where = " AND ".join(f"CAST({quote_name(column)} AS CHAR) = %s" for column in key)
        with mysql.session(database) as cursor:
            cursor.execute(
                f"SELECT 1 FROM {quote_name(table.schema)}.{quote_name(table.name)} WHERE {where} LIMIT 1",  # noqa: S608 - quoted
                tuple(key.values()),
            )
            return cursor.fetchone() is not None
    same = sql.SQL(" AND ").join(sql.SQL("{}::text = %s").format(sql.Identifier(column)) for column in key)
    place = sql.Identifier(table.schema, table.name)
    with postgres.session(database) as connection:
        query = sql.SQL("SELECT 1 FROM {} WHERE {} LIMIT 1").format(place, same)
        return connection.execute(query, tuple(key.values())).fetchone() is not None
