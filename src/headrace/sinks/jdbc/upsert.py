"""Keep one row per key in a Postgres table, the newest, each batch in one transaction that also records it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import psycopg
from psycopg import sql

from headrace.clients.postgres import connect, database_of, is_passing, said, session
from headrace.errors import FlowError, PartUnavailable
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch, Held
from headrace.flow.target import Database, Target
from headrace.sinks.jdbc.columns import as_columns
from headrace.sinks.jdbc.ledger import Ledger
from headrace.sinks.jdbc.staging import NOT_IN, Staging, refused, staging, unfinished
from headrace.sinks.jdbc.table import LONGEST_NAME_BYTES, Column, Table, names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = "public"

# The statements of a transaction follow each other at once: a driver that was stopped between two of them lets go of
# its locks after the first of these times, and the next driver waits for them for the second.
_SESSION = """
SET idle_in_transaction_session_timeout = '30s';
SET lock_timeout = '60s';
SET timezone = 'UTC';
SET work_mem = '64MB'
"""

_ALL_OR_NOTHING = "The batch is in the table as a whole or not at all; the next attempt finds out which."


@dataclass(frozen=True)
class JdbcUpsert:
    """Write each micro-batch into a Postgres table by key: a row replaces the one with its key, or is added.

    | field    | meaning                                                                                            |
    |----------|----------------------------------------------------------------------------------------------------|
    | database | a name under `databases` of the target                                                             |
    | table    | `table` in the schema public, or `schema.table`; made with the first batch when it is not there    |
    | key      | the columns that tell rows apart; never null. The table needs a unique constraint over them        |
    | sequence | a column that grows with each change: an older row never replaces a newer one, and of several rows |
    |          | of one key in a batch the newest wins. Without it a key may occur once per batch                   |

    Exactly once, while:
      1. the table and its ledger, `headrace_ledger` in the same schema, are kept and restored together;
      2. the ledger's line belongs to one checkpoint. The batches of another, or of one that was set back, are refused;
      3. the server keeps what it has committed (`fsync`, and synchronous replicas where one may take over).

    The transform need not be deterministic: a batch is in as a whole or not at all, so the rows of two attempts at it
    never mix.
    """

    database: str
    table: str
    key: Sequence[str]
    sequence: str | None = None
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND, OutputMode.UPDATE})

    def __post_init__(self) -> None:
        wrong = None
        if isinstance(self.key, str) or not self.key or len(set(self.key)) != len(self.key):
            wrong = "`key` has to be a list of different columns, at least one."
        elif self.sequence in self.key:
            wrong = "`sequence` orders the rows of one key, so it cannot be part of the key."
        elif self.table.count(".") > 1 or "\0" in self.table or "%" in self.table:
            wrong = "`table` has to be `table` or `schema.table`, without a percent sign."
        elif not all(0 < len(part.encode()) <= LONGEST_NAME_BYTES for part in self.table.split(".")):
            wrong = f"Names of tables and schemas have 1 to {LONGEST_NAME_BYTES} bytes."
        if wrong:
            raise _unusable(
                f"The sink for the Postgres table '{self.table}' is declared in a way that cannot be written.", wrong
            )

    @property
    def name(self) -> str:
        """Return `jdbc:DATABASE/TABLE`."""
        return f"jdbc:{self.database}/{self.table}"

    def preflight(self, target: Target) -> None:
        """Log in, look whether tables may be made in the schema, and whether one that is there has the key."""
        with session(database_of(target, self.database)) as connection:
            self._table.require_schema(connection)
            oid = self._table.oid(connection)
            if oid is not None:
                self._table.require_key(connection, oid, self.key)

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Nothing: the table is made from the schema of the first batch."""

    def held(self, spark: SparkSession, flow: str, step: str, target: Target) -> Held:
        """Return the last batch in the ledger; the table is told apart by its number in the database."""
        with session(database_of(target, self.database)) as connection:
            oid = self._table.oid(connection)
            entry = Ledger(self._table).entry(connection, flow, step)
        place = f"the Postgres table {self._table} of database '{self.database}'"
        return Held(place, None if oid is None else str(oid), {} if entry is None else {entry.query_id: entry.batch_id})

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write the rows, unless an earlier attempt has; returns when the transaction is committed.

        1. Claim the ledger: drivers with a lower fence are refused from here on. A batch that is in ends here.
        2. Let the executors write the rows into a staging table of this attempt, in parallel.
        3. In one transaction: lock the ledger's line and decide again, merge the staged rows, record the batch.
        4. When the outcome of the commit is unknown, ask the ledger on a new connection.
        """
        columns = as_columns(rows)
        self._require_columns(columns)
        database, table = database_of(batch.target, self.database), self._table
        with _told(batch), closing(_opened(database, batch)) as connection:
            oid = table.oid(connection)
            if not Ledger(table).claim(connection, batch, is_there=oid is not None):
                # Computed all the same, without a target: the query's state, watermark and counters come from its rows.
                rows.write.format("noop").mode("overwrite").save()
                return
            if oid is None:
                oid = table.make(connection, columns, self.key)
            table.require_key(connection, oid, self.key)
            values = table.fitted(connection, oid, columns)
            with staging(connection, table, columns, batch) as staged:
                staged.write(rows, database, batch)
                merged = False
                try:
                    with connection.transaction():
                        self._merge(connection, staged, [column.name for column in columns], values, batch)
                        merged = True
                except psycopg.Error as error:
                    if not merged or not is_passing(error):
                        raise
                    self._find_out(database, batch, error)

    def _merge(
        self,
        connection: psycopg.Connection,
        staged: Staging,
        columns: Sequence[str],
        values: Sequence[sql.Composed],
        batch: Batch,
    ) -> None:
        """Bring the staged rows into the table and record the batch, in the open transaction."""
        ledger = Ledger(self._table)
        if not ledger.is_due(connection, batch):
            return
        # Some servers answer a commit before it is on disk. Replicas that are waited for stay so.
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
        )
        fresh = staged.rows(connection, batch)
        count = self._counted(connection, fresh, columns, batch)
        connection.execute(self._upsert(fresh, columns, values))
        ledger.record(connection, batch, count)

    def _counted(
        self, connection: psycopg.Connection, fresh: sql.Composed, columns: Sequence[str], batch: Batch
    ) -> int:
        """Return the number of rows; raise when one has no key."""
        without = [
            sql.SQL("count(*) FILTER (WHERE {} IS NULL)").format(sql.Identifier("s", f"c{columns.index(name)}"))
            for name in self.key
        ]
        query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join([sql.SQL("count(*)"), *without]), fresh)
        row = connection.execute(query).fetchone()
        assert row is not None  # noqa: S101 - an aggregate without groups has one row
        for name, missing in zip(self.key, row[1:], strict=True):
            if missing:
                raise refused(batch, f"{missing} of {row[0]} rows have no value in '{name}', which is part of the key")
        return int(row[0])

    def _upsert(self, fresh: sql.Composed, columns: Sequence[str], values: Sequence[sql.Composed]) -> sql.Composed:
        """Return the statement that brings the staged rows into the table."""
        converted = [
            sql.SQL("{} AS {}").format(value, sql.Identifier(name)) for value, name in zip(values, columns, strict=True)
        ]
        rest = [name for name in columns if name not in self.key]
        # In the order of the key: of two flows that write the same rows one waits for the other, and never both.
        order: list[sql.Composable] = [sql.Identifier(name) for name in self.key]
        distinct: sql.Composable = sql.SQL("")
        newer: sql.Composable = sql.SQL("")
        if self.sequence is not None:
            distinct = sql.SQL("DISTINCT ON ({})").format(names(self.key))
            # Other columns decide between rows of one sequence, so that any order of the rows gives the same result.
            others = [name for name in rest if name != self.sequence]
            order += [sql.SQL("{} DESC NULLS LAST").format(sql.Identifier(name)) for name in (self.sequence, *others)]
            newer = sql.SQL("WHERE t.{0} IS NULL OR EXCLUDED.{0} >= t.{0}").format(sql.Identifier(self.sequence))
        changes = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in rest)
        return sql.SQL(
            "INSERT INTO {table} AS t ({columns}) "
            "SELECT {distinct} {columns} FROM (SELECT {converted} FROM {fresh}) AS converted ORDER BY {order} "
            "ON CONFLICT ({key}) DO {action}"
        ).format(
            table=self._table.identifier,
            columns=names(columns),
            distinct=distinct,
            converted=sql.SQL(", ").join(converted),
            fresh=fresh,
            order=sql.SQL(", ").join(order),
            key=names(self.key),
            action=sql.SQL("UPDATE SET {} {}").format(changes, newer) if rest else sql.SQL("NOTHING"),
        )

    def _find_out(self, database: Database, batch: Batch, error: psycopg.Error) -> None:
        """Return when the batch is in after all. The lock of the ledger's line waits for a commit on its way."""
        try:
            with closing(_opened(database, batch)) as connection, connection.transaction():
                is_in = not Ledger(self._table).is_due(connection, batch)
        except (psycopg.Error, PartUnavailable) as second:
            raise unfinished(batch, said(error), _ALL_OR_NOTHING) from second
        if not is_in:
            raise unfinished(batch, said(error), NOT_IN) from error

    @property
    def _table(self) -> Table:
        schema, _, name = self.table.rpartition(".")
        return Table(schema or _SCHEMA, name)

    def _require_columns(self, columns: Sequence[Column]) -> None:
        have = {column.name: column.type for column in columns}
        for name in (*self.key, *([self.sequence] if self.sequence else [])):
            if name not in have:
                why = f"It is the sequence or part of the key, and the rows have: {', '.join(have)}."
            elif have[name] == "jsonb":
                why = "It is the sequence or part of the key, and arrays, maps and structs have no order."
            else:
                continue
            raise _unusable(f"The rows for the Postgres table {self._table} have no usable column '{name}'.", why)


def _opened(database: Database, batch: Batch) -> psycopg.Connection:
    connection = connect(database, f"headrace {batch.flow} {batch.step}")
    connection.execute(_SESSION)
    return connection


@contextmanager
def _told(batch: Batch) -> Iterator[None]:
    """Turn what Postgres says before a batch is in into an error of the tree."""
    try:
        yield
    except psycopg.Error as error:
        if is_passing(error):
            raise unfinished(batch, f"Postgres says: {said(error)}", NOT_IN) from error
        raise refused(batch, f"Postgres says: {said(error)}") from error


def _unusable(what: str, why: str) -> FlowError:
    return FlowError(
        what,
        why=why,
        state="Nothing was written.",
        remedy="Correct the declaration of the sink, or the columns that the transform selects.",
        code="HR-217",
    )
