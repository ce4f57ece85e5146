"""The staging table of one attempt: the executors write into it in parallel, one transaction on the driver reads it.

Unlogged: rows are written once instead of twice, and a crash of the server empties the table. Two columns beside those
of the rows make the reading safe:

    headrace_task       the task that wrote a row
    headrace_attempt    the transaction that it did so in, filled in by Postgres

A task that Spark runs twice, after a failure that came too late or because it seemed slow, has its rows in the table
twice, under two transactions: one of them counts. A witness, a row of no task, is there before all others: without it
the table was emptied.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.errors import DataError, HeadraceError, PartUnavailable
from headrace.flow.sink import Batch
from headrace.flow.target import Database
from headrace.sinks.jdbc.columns import NUL, as_staged
from headrace.sinks.jdbc.table import Column, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NOT_IN = "Nothing of the batch is in the table."

_TASK, _ATTEMPT = "headrace_task", "headrace_attempt"
_WITNESS = -1

# Rows per round trip of an executor; Java's driver makes a few statements of them.
_ROWS_PER_TRIP = 5_000


@dataclass(frozen=True)
class Staging:
    """One staging table."""

    table: Table

    def write(self, rows: DataFrame, database: Database, batch: Batch) -> None:
        """Let the executors write the rows, each task in one transaction. Called once per attempt."""
        login = {"user": database.user, "password": database.password.reveal() if database.password else ""}
        try:
            (
                as_staged(rows, _TASK)
                .write.format("jdbc")
                .option("driver", "org.postgresql.Driver")
                .option("url", database.url)
                .options(**{name: text for name, text in login.items() if text})
                .option("dbtable", self.table.identifier.as_string())
                .option("batchsize", _ROWS_PER_TRIP)
                .option("isolationLevel", "READ_COMMITTED")
                # From here on options of the Java driver. Its errors quote rows unless it is told not to.
                .option("logServerErrorDetail", "false")
                .option("reWriteBatchedInserts", "true")
                .option("tcpKeepAlive", "true")
                .option("ApplicationName", f"headrace {batch.flow} {batch.step} rows")
                .mode("append")
                .save()
            )
        except (PySparkException, Py4JError) as error:
            meant = _meaning(batch, str(error))
            if meant is None:
                raise
            raise meant from error

    def rows(self, connection: psycopg.Connection, batch: Batch) -> sql.Composed:
        """Return the rows that count, under the name `s`: what stands behind FROM.

        Rows that a task writes later do not count. Raises HR-607 when the table was emptied.
        """
        query = sql.SQL("SELECT {0}, min({1}) FROM {2} GROUP BY {0}")
        try:
            found = connection.execute(
                query.format(sql.Identifier(_TASK), sql.Identifier(_ATTEMPT), self.table.identifier)
            ).fetchall()
        except psycopg.errors.UndefinedTable as error:
            raise unfinished(batch, "Another attempt removed the staging table of this one", NOT_IN) from error
        chosen = {int(task): int(attempt) for task, attempt in found}
        if chosen.pop(_WITNESS, None) is None:
            raise unfinished(batch, "Postgres crashed meanwhile and emptied the staging table", NOT_IN)
        # Literals, not arguments: beside arguments, a percent sign in the name of a column would be taken for one.
        return sql.SQL(
            "{table} s JOIN unnest({tasks}::int[], {attempts}::bigint[]) AS counts(task, attempt) "
            "ON s.{task} = counts.task AND s.{attempt} = counts.attempt"
        ).format(
            table=self.table.identifier,
            tasks=sql.Literal(list(chosen)),
            attempts=sql.Literal(list(chosen.values())),
            task=sql.Identifier(_TASK),
            attempt=sql.Identifier(_ATTEMPT),
        )


@contextmanager
def staging(connection: psycopg.Connection, table: Table, columns: Sequence[Column], batch: Batch) -> Iterator[Staging]:
    """Make the staging table of an attempt after removing those of dead ones; remove it in the end."""
    identity = hashlib.sha256(f"{table}\0{batch.flow}\0{batch.step}".encode()).hexdigest()[:16]
    prefix = f"headrace_staging_{identity}_"
    left = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, %s)"
    for (name,) in connection.execute(left, (table.schema, prefix)).fetchall():
        _drop(connection, Table(table.schema, name))
    made = Table(table.schema, f"{prefix}{secrets.token_hex(4)}")
    own = [sql.SQL("{} {}").format(sql.Identifier(f"c{n}"), sql.SQL(each.staged)) for n, each in enumerate(columns)]
    connection.execute(
        sql.SQL(
            "CREATE UNLOGGED TABLE {} ({}, {} int NOT NULL, {} bigint NOT NULL "
            "DEFAULT pg_current_xact_id()::text::bigint) WITH (autovacuum_enabled = false)"
        ).format(made.identifier, sql.SQL(", ").join(own), sql.Identifier(_TASK), sql.Identifier(_ATTEMPT))
    )
    try:
        witness = sql.SQL("INSERT INTO {} ({}) VALUES (%s)").format(made.identifier, sql.Identifier(_TASK))
        connection.execute(witness, (_WITNESS,))
        yield Staging(made)
    finally:
        _drop(connection, made)


def _drop(connection: psycopg.Connection, table: Table) -> None:
    """Remove a staging table if nobody works on it. What is left here, the next attempt removes."""
    with contextlib.suppress(psycopg.Error), connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '2s'")
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table.identifier))


def _meaning(batch: Batch, text: str) -> HeadraceError | None:
    """Return what the failure of a staging job means, or None when it is not about Postgres."""
    nul = re.search(f"{re.escape(NUL)}<(.*?)>", text)
    if nul:
        return refused(batch, f"A text in column '{nul[1]}' holds the character NUL, which no text in Postgres can")
    # The columns of a staging table are made for these very rows, so that only the way there can fail.
    causes = re.findall(r"PSQLException: (?!Batch entry)(.{1,200})", text)
    return unfinished(batch, f"An executor says: {causes[-1].rstrip('.')}", NOT_IN) if causes else None


def refused(batch: Batch, why: str) -> DataError:
    """HR-508: rows that Postgres will never take."""
    return DataError(
        f"Postgres refuses batch {batch.id} of flow '{batch.flow}'.",
        why=f"{why}.",
        state=NOT_IN,
        remedy="Correct the rows in the transform, or the table; the batch is run again when the flow starts.",
        code="HR-508",
    )


def unfinished(batch: Batch, why: str, state: str) -> PartUnavailable:
    """HR-607: a batch that has to be run again."""
    return PartUnavailable(
        f"The transaction for batch {batch.id} of flow '{batch.flow}' did not come to its end.",
        why=f"{why}.",
        state=state,
        remedy="Nothing: the batch is run again. If that repeats, look at the server.",
        code="HR-607",
    )
