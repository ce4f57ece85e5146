"""Read the tables of a source database from its catalogue, and its current log position."""

import re
from collections.abc import Iterable
from itertools import groupby

from psycopg import Connection

from headrace.cdc.capture.declaration import TableSelection
from headrace.cdc.capture.source_table import Family, SourceColumn, SourceTable
from headrace.clients import mysql, postgres
from headrace.errors import DataError, did_you_mean
from headrace.flow.target import Database

_IDENTITIES = {"d": "default", "f": "full", "i": "index", "n": "nothing"}

# A domain is read as its base type, through any number of domains. Partitions are part of their table. The log has no
# virtual generated columns.
_POSTGRES = """
WITH RECURSIVE below(domain, type, modifier) AS (
    SELECT oid, typbasetype, typtypmod FROM pg_type WHERE typtype = 'd'
    UNION ALL
    SELECT below.domain, deeper.typbasetype, deeper.typtypmod
    FROM below JOIN pg_type deeper ON deeper.oid = below.type AND deeper.typtype = 'd'
), domains AS (
    SELECT below.* FROM below JOIN pg_type base ON base.oid = below.type AND base.typtype <> 'd'
)
SELECT n.nspname, c.relname, c.relreplident::text, a.attname,
       CASE WHEN t.typtype = 'e' THEN 'enum' WHEN item.typtype = 'e' THEN 'enum[]'
            ELSE format_type(t.oid, coalesce(domains.modifier, a.atttypmod)) END,
       NOT a.attnotnull,
       array_position(key.indkey::int2[], a.attnum)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> 'v'
LEFT JOIN domains ON domains.domain = a.atttypid
JOIN pg_type t ON t.oid = coalesce(domains.type, a.atttypid)
LEFT JOIN pg_type item ON item.oid = t.typelem AND t.typcategory = 'A'
LEFT JOIN pg_index key ON key.indrelid = c.oid AND key.indisprimary
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%'
ORDER BY n.nspname, c.relname, a.attnum
"""

_MYSQL = """
SELECT c.TABLE_SCHEMA, c.TABLE_NAME, IF(@@binlog_row_image = 'FULL', 'f', 'd'), c.COLUMN_NAME, c.COLUMN_TYPE,
       c.IS_NULLABLE = 'YES', k.ORDINAL_POSITION
FROM information_schema.COLUMNS c
JOIN information_schema.TABLES t
  ON t.TABLE_SCHEMA = c.TABLE_SCHEMA AND t.TABLE_NAME = c.TABLE_NAME AND t.TABLE_TYPE = 'BASE TABLE'
LEFT JOIN information_schema.KEY_COLUMN_USAGE k
  ON k.TABLE_SCHEMA = c.TABLE_SCHEMA AND k.TABLE_NAME = c.TABLE_NAME AND k.COLUMN_NAME = c.COLUMN_NAME
 AND k.CONSTRAINT_NAME = 'PRIMARY'
WHERE c.TABLE_SCHEMA NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema')
ORDER BY c.TABLE_SCHEMA, c.TABLE_NAME, c.ORDINAL_POSITION
"""

# Schema, table, identity, column, type, whether it is nullable, index in the key or None.
_Row = tuple[str, str, str, str, str, bool | int, int | None]


def database_family(database: Database) -> Family:
    """Return the kind of log of a database, by its address."""
    return "mysql" if mysql.is_mysql(database) else "postgres"


def read_tables(database: Database, selection: TableSelection) -> tuple[SourceTable, ...]:
    """Return the selected tables in the order of their names.

    Raises HR-520 if a listed table does not exist. A pattern may match nothing yet. Called at the start of a capture,
    and again when a topic contains an unknown column or table.
    """
    kind = database_family(database)
    rows: list[_Row]
    if kind == "mysql":
        with mysql.session(database) as cursor:
            cursor.execute(_MYSQL)
            rows = list(cursor.fetchall())
    else:
        with postgres.session(database) as connection:
            rows = list(connection.execute(_POSTGRES))
    tables = tuple(_tables(rows, kind))
    names = [str(table) for table in tables]
    for name in selection.names:
        if name not in names:
            raise DataError(
                f"There is no table '{name}' in the source database.",
                why=f"The catalogue lists {len(names)} tables that this user can see.{did_you_mean(name, names)}",
                state="Nothing was captured.",
                remedy="Correct the name in the capture, or create the table.",
                code="HR-520",
            )
    return tuple(table for table in tables if selection.includes(table.schema, table.name))


def position_now(database: Database) -> str:
    """Return the current log position of a database, as text that sorts like the log and like `_position`."""
    if database_family(database) == "mysql":
        with mysql.session(database) as cursor:
            place = mysql.binlog_position(cursor)
        if place is None:
            raise DataError(
                "The source database writes no binlog.",
                why="The server reports no binlog position: log_bin is off.",
                state="Nothing was captured.",
                remedy="Set log_bin, binlog_format=ROW and binlog_row_image=FULL on the server and restart it.",
                code="HR-521",
            )
        return binlog_position(*place)
    with postgres.session(database) as connection:
        return wal_position(connection)


def wal_position(connection: Connection) -> str:
    """Return the current log position of Postgres."""
    lsn = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    return lsn_position(int(lsn[0]) if lsn else 0)


def lsn_position(lsn: int) -> str:
    """Write a position of Postgres as text that sorts like the log."""
    return f"{lsn:020d}"


def binlog_position(file: str, pos: int, row: int = 0) -> str:
    """Write a position of a binlog as text that sorts like the log. Files are numbered: `binlog.000002`."""
    number = re.search(r"\d+$", file)
    return f"{int(number.group()) if number else 0:010d}{pos:020d}{row:010d}"


def _tables(rows: Iterable[_Row], kind: Family) -> Iterable[SourceTable]:
    for (schema, name, identity), columns in groupby(rows, key=lambda row: row[:3]):
        listed = list(columns)
        key = sorted((row for row in listed if row[6] is not None), key=lambda row: row[6] or 0)
        yield SourceTable(
            schema,
            name,
            tuple(SourceColumn(row[3], row[4], bool(row[5])) for row in listed),
            tuple(row[3] for row in key),
            kind,
            _IDENTITIES[identity],
        )
