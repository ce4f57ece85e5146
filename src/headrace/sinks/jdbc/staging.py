"""The staging table of one attempt: the executors write to it in parallel, one transaction on the driver reads it.

It is an unlogged table: rows are written once instead of twice, and a server crash empties it. Two extra columns make
reading it safe:

    headrace_task       the task that wrote a row
    headrace_attempt    the id of its transaction, filled in by Postgres

If Spark runs a task twice, after a failure or by speculative execution, its rows are in the table twice, with two
transaction ids: only one of them is read. A witness row without a task is written first: if it is missing, a crash has
emptied the table.
"""

import contextlib
import hashlib
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from headrace.errors import DataError, HeadraceError, ServiceUnavailable
from headrace.flow.sink import Batch
from headrace.flow.target import Database
from headrace.sinks.jdbc.columns import NUL, to_staged_rows
from headrace.sinks.jdbc.table import JdbcColumn, PostgresTable

NOT_COMMITTED = "Nothing of the batch is in the table."

_TASK, _ATTEMPT = "headrace_task", "headrace_attempt"
_WITNESS = -1

# Rows per round trip of an executor; the JDBC driver combines them into a few statements.
_ROWS_PER_TRIP = 5_000


@dataclass(frozen=True)
class StagingTable:
    """One staging table."""

    table: PostgresTable

    def write(self, rows: DataFrame, database: Database, batch: Batch) -> None:
        """Write the rows from the executors, one transaction per task. Called once per attempt."""
        login = {"user": database.user, "password": database.password.reveal() if database.password else ""}
        try:
            (
                to_staged_rows(rows, _TASK)
                .write.format("jdbc")
                .option("driver", "org.postgresql.Driver")
                .option("url", database.url)
                .options(**{name: text for name, text in login.items() if text})
                .option("dbtable", self.table.identifier.as_string())
                .option("batchsize", _ROWS_PER_TRIP)
                .option("isolationLevel", "READ_COMMITTED")
                # From here on options of the JDBC driver. By default its errors quote rows.
                .option("logServerErrorDetail", "false")
                .option("reWriteBatchedInserts", "true")
                .option("tcpKeepAlive", "true")
                .option("ApplicationName", f"headrace {batch.flow} {batch.step} rows")
                .mode("append")
                .save()
            )
        except (PySparkException, Py4JError) as error:
            staging_error = _staging_error(batch, str(error))
            if staging_error is None:
                raise
            raise staging_error from error

    def rows(self, connection: psycopg.Connection, batch: Batch) -> sql.Composed:
        """Return the FROM clause that reads one attempt of each task, under the alias `s`.

        Ignores rows that a task writes later. Raises HR-607 if the table was emptied.
        """
        query = sql.SQL("SELECT {0}, min({1}) FROM {2} GROUP BY {0}")
        try:
            tasks = connection.execute(
                query.format(sql.Identifier(_TASK), sql.Identifier(_ATTEMPT), self.table.identifier)
            ).fetchall()
        except psycopg.errors.UndefinedTable as error:
            raise transaction_unfinished(
                batch, "Another attempt removed the staging table of this one", NOT_COMMITTED
            ) from error
        attempts = {int(task): int(attempt) for task, attempt in tasks}
        if attempts.pop(_WITNESS, None) is None:
            raise transaction_unfinished(batch, "Postgres crashed and emptied the staging table", NOT_COMMITTED)
        # Literals, not parameters: with parameters, a percent sign in a column name would be read as a placeholder.
        return sql.SQL(
            "{table} s JOIN unnest({tasks}::int[], {attempts}::bigint[]) AS counts(task, attempt) "
            "ON s.{task} = counts.task AND s.{attempt} = counts.attempt"
        ).format(
            table=self.table.identifier,
            tasks=sql.Literal(list(attempts)),
            attempts=sql.Literal(list(attempts.values())),
            task=sql.Identifier(_TASK),
            attempt=sql.Identifier(_ATTEMPT),
        )


@contextmanager
def staging_table(
    connection: psycopg.Connection, table: PostgresTable, columns: Sequence[JdbcColumn], batch: Batch
) -> Iterator[StagingTable]:
    """Create the staging table of an attempt, after dropping those of dead attempts; drop it at the end."""
    identity = hashlib.sha256(f"{table}\0{batch.flow}\0{batch.step}".encode()).hexdigest()[:16]
    prefix = f"headrace_staging_{identity}_"
    leftovers = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, %s)"
    for (name,) in connection.execute(leftovers, (table.schema, prefix)).fetchall():
        _drop(connection, PostgresTable(table.schema, name))
    created = PostgresTable(table.schema, f"{prefix}{secrets.token_hex(4)}")
    definitions = [
        sql.SQL("{} {}").format(sql.Identifier(f"c{n}"), sql.SQL(column.staged)) for n, column in enumerate(columns)
    ]
    connection.execute(
        sql.SQL(
            "CREATE UNLOGGED TABLE {} ({}, {} int NOT NULL, {} bigint NOT NULL "
            "DEFAULT pg_current_xact_id()::text::bigint) WITH (autovacuum_enabled = false)"
        ).format(created.identifier, sql.SQL(", ").join(definitions), sql.Identifier(_TASK), sql.Identifier(_ATTEMPT))
    )
    try:
        witness = sql.SQL("INSERT INTO {} ({}) VALUES (%s)").format(created.identifier, sql.Identifier(_TASK))
        connection.execute(witness, (_WITNESS,))
        yield StagingTable(created)
    finally:
        _drop(connection, created)


def _drop(connection: psycopg.Connection, table: PostgresTable) -> None:
    """Drop a staging table unless it is in use. The next attempt drops what is left."""
    with contextlib.suppress(psycopg.Error), connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '2s'")
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table.identifier))


def _staging_error(batch: Batch, text: str) -> HeadraceError | None:
    """Map the failure of a staging job to an error, or None if Postgres did not cause it."""
    nul = re.search(f"{re.escape(NUL)}<(.*?)>", text)
    if nul:
        return rows_rejected(
            batch, f"A text in column '{nul[1]}' holds the character NUL, which no text in Postgres can"
        )
    # The columns of a staging table match the rows, so only the connection can fail.
    causes = re.findall(r"PSQLException: (?!Batch entry)(.{1,200})", text)
    return (
        transaction_unfinished(batch, f"An executor says: {causes[-1].rstrip('.')}", NOT_COMMITTED) if causes else None
    )


def rows_rejected(batch: Batch, why: str) -> DataError:
    """Return HR-508: Postgres rejects the rows, and a retry would fail too."""
    return DataError(
        f"Postgres rejects batch {batch.id} of flow '{batch.flow}'.",
        why=f"{why}.",
        state=NOT_COMMITTED,
        remedy="Correct the rows in the transform, or the table; the batch is run again when the flow starts.",
        code="HR-508",
    )


def transaction_unfinished(batch: Batch, why: str, state: str) -> ServiceUnavailable:
    """Return HR-607: the transaction did not finish, and the batch is retried."""
    return ServiceUnavailable(
        f"The transaction for batch {batch.id} of flow '{batch.flow}' did not finish.",
        why=f"{why}.",
        state=state,
        remedy="Nothing: the batch is run again. If that repeats, look at the server.",
        code="HR-607",
    )
