"""Check whether a source table has a row with a key. An erasure starts with this."""

from collections.abc import Mapping

from psycopg import sql

from headrace.cdc.capture.catalogue import database_family
from headrace.cdc.capture.source_table import SourceTable
from headrace.clients import mysql, postgres
from headrace.clients.sql import quote_name
from headrace.flow.target import Database


def row_exists(database: Database, table: SourceTable, key: Mapping[str, str]) -> bool:
    """Whether a row has the key. Keys are compared as texts: `42` is no row of a table whose keys are words.

    Raises as the client of the database does, when it does not answer or refuses.
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
