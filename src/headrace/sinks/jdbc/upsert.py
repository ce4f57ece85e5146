"""Upsert rows into a Postgres table by key, each batch in one transaction that also records the batch."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import ClassVar

import psycopg
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession

from headrace.clients.postgres import connect, database_of, error_message, is_transient, session
from headrace.errors import FlowError, ServiceUnavailable
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import BaseSink, Batch, CommittedBatches, TracksBatches
from headrace.flow.target import Database, Target
from headrace.sinks.jdbc.columns import jdbc_columns
from headrace.sinks.jdbc.ledger import Ledger
from headrace.sinks.jdbc.staging import (
    NOT_COMMITTED,
    StagingTable,
    rows_rejected,
    staging_table,
    transaction_unfinished,
)
from headrace.sinks.jdbc.table import LONGEST_NAME_BYTES, JdbcColumn, PostgresTable, column_list
from headrace.sinks.noop import compute

_SCHEMA = "public"

# The statements of a transaction follow each other immediately: a driver that was stopped between two of them loses its
# locks after the first timeout, and the next driver waits for them up to the second.
_SESSION = """
SET idle_in_transaction_session_timeout = '30s';
SET lock_timeout = '60s';
SET timezone = 'UTC';
SET work_mem = '64MB'
"""

_ALL_OR_NOTHING = "The batch is committed completely or not at all; the next attempt finds out which."


@dataclass(frozen=True)
class JdbcUpsert(BaseSink, TracksBatches):
    """Upsert each micro-batch into a Postgres table: a row replaces the row with its key, or is inserted.

    | field    | meaning                                                                                            |
    |----------|----------------------------------------------------------------------------------------------------|
    | database | a name under `databases` of the target                                                             |
    | table    | `table` in the schema public, or `schema.table`; the first batch creates it if it does not exist   |
    | key      | the columns that identify a row; never null. The table needs a unique constraint on them           |
    | sequence | a column that grows with each change: an older row never replaces a newer one, and of several rows |
    |          | of one key in a batch the newest wins. Without it a key may occur once per batch                   |

    Exactly once, while:
      1. the table and its ledger, `headrace_ledger` in the same schema, are backed up and restored together;
      2. the ledger row belongs to one checkpoint. Batches of another or of a restored checkpoint are rejected;
      3. commits are durable on the server (`fsync`, and synchronous replicas if one may take over).

    The transform need not be deterministic: a batch is committed completely or not at all, so the rows of two attempts
    never mix.
    """

    database: str
    table: str
    key: Sequence[str]
    sequence: str | None = None
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND, OutputMode.UPDATE})

    def __post_init__(self) -> None:
        problem = None
        if isinstance(self.key, str) or not self.key or len(set(self.key)) != len(self.key):
            problem = "`key` has to be a list of different columns, at least one."
        elif self.sequence in self.key:
            problem = "`sequence` orders the rows of one key, so it cannot be part of the key."
        elif self.table.count(".") > 1 or "\0" in self.table or "%" in self.table:
            problem = "`table` has to be `table` or `schema.table`, without a percent sign."
        elif not all(0 < len(part.encode()) <= LONGEST_NAME_BYTES for part in self.table.split(".")):
            problem = f"Names of tables and schemas have 1 to {LONGEST_NAME_BYTES} bytes."
        if problem:
            raise _invalid_sink(
                f"The sink for the Postgres table '{self.table}' is declared in a way that cannot be written.", problem
            )

    @property
    def name(self) -> str:
        """Return `jdbc:DATABASE/TABLE`."""
        return f"jdbc:{self.database}/{self.table}"

    def preflight(self, target: Target) -> None:
        """Log in, check that tables can be created in the schema, and that an existing table has the key."""
        with session(database_of(target, self.database)) as connection:
            self._table.require_schema(connection)
            oid = self._table.oid(connection)
            if oid is not None:
                self._table.require_key(connection, oid, self.key)

    def committed_batches(self, spark: SparkSession, flow: str, step: str, target: Target) -> CommittedBatches:
        """Return the last batch in the ledger; the identity of the table is its oid."""
        with session(database_of(target, self.database)) as connection:
            oid = self._table.oid(connection)
            entry = Ledger(self._table).entry(connection, flow, step)
        place = f"the Postgres table {self._table} of database '{self.database}'"
        return CommittedBatches(
            place, None if oid is None else str(oid), {} if entry is None else {entry.query_id: entry.batch_id}
        )

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write the rows unless the batch is already committed; returns when the transaction is committed.

        1. Claim the ledger: drivers with a lower fence are rejected from now on. Stop if the batch is committed.
        2. Write the rows from the executors to a staging table of this attempt, in parallel.
        3. In one transaction: lock the ledger row and decide again, upsert the staged rows, record the batch.
        4. If the outcome of the commit is unknown, read the ledger on a new connection.
        """
        columns = jdbc_columns(rows)
        self._require_columns(columns)
        database, table = database_of(batch.target, self.database), self._table
        with _translate_errors(batch), closing(_connect(database, batch)) as connection:
            oid = table.oid(connection)
            if not Ledger(table).claim(connection, batch, table_exists=oid is not None):
                # Compute the rows anyway: the query's state, watermark and metrics need all of them.
                compute(rows)
                return
            if oid is None:
                oid = table.create(connection, columns, self.key)
            table.require_key(connection, oid, self.key)
            values = table.conversions(connection, oid, columns)
            with staging_table(connection, table, columns, batch) as staged:
                staged.write(rows, database, batch)
                merged = False
                try:
                    with connection.transaction():
                        self._merge(connection, staged, [column.name for column in columns], values, batch)
                        merged = True
                except psycopg.Error as error:
                    if not merged or not is_transient(error):
                        raise
                    self._resolve_commit(database, batch, error)

    def _merge(
        self,
        connection: psycopg.Connection,
        staged: StagingTable,
        columns: Sequence[str],
        values: Sequence[sql.Composed],
        batch: Batch,
    ) -> None:
        """Upsert the staged rows into the table and record the batch, in the open transaction."""
        ledger = Ledger(self._table)
        if not ledger.is_due(connection, batch):
            return
        # Some servers confirm a commit before it is on disk. Settings for synchronous replicas stay as they are.
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
        )
        staged_rows = staged.rows(connection, batch)
        count = self._count_rows(connection, staged_rows, columns, batch)
        connection.execute(self._upsert(staged_rows, columns, values))
        ledger.record(connection, batch, count)

    def _count_rows(
        self, connection: psycopg.Connection, staged_rows: sql.Composed, columns: Sequence[str], batch: Batch
    ) -> int:
        """Return the number of staged rows; raise if a key column is null."""
        null_counts = [
            sql.SQL("count(*) FILTER (WHERE {} IS NULL)").format(sql.Identifier("s", f"c{columns.index(name)}"))
            for name in self.key
        ]
        query = sql.SQL("SELECT {} FROM {}").format(
            sql.SQL(", ").join([sql.SQL("count(*)"), *null_counts]), staged_rows
        )
        row = connection.execute(query).fetchone()
        assert row is not None  # noqa: S101 - an aggregate without groups has one row
        for name, missing in zip(self.key, row[1:], strict=True):
            if missing:
                raise rows_rejected(
                    batch, f"{missing} of {row[0]} rows have no value in '{name}', which is part of the key"
                )
        return int(row[0])

    def _upsert(
        self, staged_rows: sql.Composed, columns: Sequence[str], values: Sequence[sql.Composed]
    ) -> sql.Composed:
        """Return the INSERT ... ON CONFLICT statement for the staged rows."""
        converted = [
            sql.SQL("{} AS {}").format(value, sql.Identifier(name)) for value, name in zip(values, columns, strict=True)
        ]
        rest = [name for name in columns if name not in self.key]
        # Sorted by key: two flows that write the same rows wait for each other in order and never deadlock.
        order: list[sql.Composable] = [sql.Identifier(name) for name in self.key]
        distinct: sql.Composable = sql.SQL("")
        newer: sql.Composable = sql.SQL("")
        if self.sequence is not None:
            distinct = sql.SQL("DISTINCT ON ({})").format(column_list(self.key))
            # The other columns break ties of the sequence, so the result does not depend on the order of the rows.
            others = [name for name in rest if name != self.sequence]
            order += [sql.SQL("{} DESC NULLS LAST").format(sql.Identifier(name)) for name in (self.sequence, *others)]
            newer = sql.SQL("WHERE t.{0} IS NULL OR EXCLUDED.{0} >= t.{0}").format(sql.Identifier(self.sequence))
        changes = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in rest)
        return sql.SQL(
            "INSERT INTO {table} AS t ({columns}) "
            "SELECT {distinct} {columns} FROM (SELECT {converted} FROM {staged_rows}) AS converted ORDER BY {order} "
            "ON CONFLICT ({key}) DO {action}"
        ).format(
            table=self._table.identifier,
            columns=column_list(columns),
            distinct=distinct,
            converted=sql.SQL(", ").join(converted),
            staged_rows=staged_rows,
            order=sql.SQL(", ").join(order),
            key=column_list(self.key),
            action=sql.SQL("UPDATE SET {} {}").format(changes, newer) if rest else sql.SQL("NOTHING"),
        )

    def _resolve_commit(self, database: Database, batch: Batch, error: psycopg.Error) -> None:
        """Return if the batch was committed after all. Locking the ledger row waits for a commit in flight."""
        try:
            with closing(_connect(database, batch)) as connection, connection.transaction():
                is_in = not Ledger(self._table).is_due(connection, batch)
        except (psycopg.Error, ServiceUnavailable) as second:
            raise transaction_unfinished(batch, error_message(error), _ALL_OR_NOTHING) from second
        if not is_in:
            raise transaction_unfinished(batch, error_message(error), NOT_COMMITTED) from error

    @property
    def _table(self) -> PostgresTable:
        schema, _, name = self.table.rpartition(".")
        return PostgresTable(schema or _SCHEMA, name)

    def _require_columns(self, columns: Sequence[JdbcColumn]) -> None:
        types = {column.name: column.type for column in columns}
        for name in (*self.key, *([self.sequence] if self.sequence else [])):
            if name not in types:
                why = f"It is the sequence or part of the key, and the rows have: {', '.join(types)}."
            elif types[name] == "jsonb":
                why = "It is the sequence or part of the key, and arrays, maps and structs have no order."
            else:
                continue
            raise _invalid_sink(f"The rows for the Postgres table {self._table} have no usable column '{name}'.", why)


def _connect(database: Database, batch: Batch) -> psycopg.Connection:
    connection = connect(database, f"headrace {batch.flow} {batch.step}")
    connection.execute(_SESSION)
    return connection


@contextmanager
def _translate_errors(batch: Batch) -> Iterator[None]:
    """Map Postgres errors before the commit to Headrace errors."""
    try:
        yield
    except psycopg.Error as error:
        if is_transient(error):
            raise transaction_unfinished(batch, f"Postgres says: {error_message(error)}", NOT_COMMITTED) from error
        raise rows_rejected(batch, f"Postgres says: {error_message(error)}") from error


def _invalid_sink(what: str, why: str) -> FlowError:
    return FlowError(
        what,
        why=why,
        state="Nothing was written.",
        remedy="Correct the declaration of the sink, or the columns that the transform selects.",
        code="HR-217",
    )
