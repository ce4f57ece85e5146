"""The ledger of a Postgres table: one row per flow and step that writes to it, updated in the batch's transaction.

It is the table `headrace_ledger` in the schema of the target table. The row is created before the first batch, so that
it can be locked: while a driver holds the lock, no other transaction of this flow is open.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from headrace.flow.sink import Batch
from headrace.sinks.batch.errors import ErrorTemplate, must_write
from headrace.sinks.batch.ledger import NO_BATCH, LedgerEntry, RefusalReason, decide
from headrace.sinks.jdbc.table import PostgresTable, advisory_lock

LEDGER_TABLE = "headrace_ledger"

_CREATE = """
CREATE TABLE IF NOT EXISTS {ledger} (
    table_name text NOT NULL,
    flow text NOT NULL,
    step text NOT NULL,
    query_id text NOT NULL,
    batch_id bigint NOT NULL,
    offsets text NOT NULL,
    fence bigint NOT NULL,
    rows bigint NOT NULL,
    written_at timestamptz NOT NULL,
    PRIMARY KEY (table_name, flow, step)
)
"""
_WHERE = "WHERE table_name = %(table)s AND flow = %(flow)s AND step = %(step)s"
_READ = f"SELECT query_id, batch_id, offsets, fence FROM {{ledger}} {_WHERE}"  # noqa: S608 - names are quoted
_FIRST = """
INSERT INTO {ledger} VALUES (%(table)s, %(flow)s, %(step)s, %(query_id)s, %(batch_id)s, '', %(fence)s, 0,
    clock_timestamp())
ON CONFLICT DO NOTHING
"""
_CLAIM = f"UPDATE {{ledger}} SET query_id = %(query_id)s, fence = %(fence)s {_WHERE}"  # noqa: S608
_RECORD = f"""
UPDATE {{ledger}} SET batch_id = %(batch_id)s, offsets = %(offsets)s, rows = %(rows)s, written_at = clock_timestamp()
{_WHERE}
"""  # noqa: S608


_MISMATCH = ErrorTemplate(
    "Flow '{batch.flow}' cannot write batch {batch.id} into the table {table}.",
    why="",
    state="Nothing was written.",
    remedy="Restore the database or a checkpoint so that both end at the same batch, or start the flow under a "
    "new name with another table. A flow that wrote to another sink before needs a new name too.",
    code="HR-316",
)
_TABLE_MISSING = replace(_MISMATCH, why="The table no longer exists, and {batch.id} batches were written into it.")
LEDGER_ERRORS: Mapping[RefusalReason, ErrorTemplate] = {
    RefusalReason.OTHER_CHECKPOINT: ErrorTemplate(
        "Flow '{batch.flow}' cannot write batch {batch.id}.",
        why="The ledger of the table {table} counts the batches of another checkpoint ({last.query_id}, up to "
        "{last.batch_id}); this one is {batch.query_id}.",
        state="Nothing was written. The table holds the rows of the other checkpoint.",
        remedy="Restore the checkpoint that the ledger belongs to, or give the sink another table. Where the table may "
        f"take all rows again, delete the line of the flow in {{table.schema}}.{LEDGER_TABLE}.",
        code="HR-315",
    ),
    RefusalReason.LOWER_FENCE: ErrorTemplate(
        "Flow '{batch.flow}' may no longer write to the table {table}.",
        why="A later driver has taken over: its fence is {last.fence}, the one of this driver {batch.fence}.",
        state="Nothing was written. The later driver continues with the batch.",
        remedy="Stop this driver. Where no other one runs, its lease was set back with the checkpoint: restore it, or "
        f"set `fence` to {{batch.fence}} in the flow's line of {{table.schema}}.{LEDGER_TABLE}.",
        code="HR-317",
    ),
    RefusalReason.NO_ENTRY: replace(
        _MISMATCH, why="The ledger has no record of this flow, and {batch.id} batches were written before."
    ),
    RefusalReason.OTHER_OFFSETS: replace(_MISMATCH, why="The batch was already committed with other offsets."),
    RefusalReason.SET_BACK: replace(
        _MISMATCH, why="The last batch in the table is {last.batch_id}: the checkpoint was set back."
    ),
    RefusalReason.GAP: replace(
        _MISMATCH, why="The last batch in the table is {last.batch_id}: those between are missing."
    ),
}


@dataclass(frozen=True)
class Ledger:
    """The ledger of one table."""

    table: PostgresTable

    def entry(self, connection: psycopg.Connection, flow: str, step: str) -> LedgerEntry | None:
        """Return the entry of a flow and step without locking it, or None before the first committed batch."""
        if PostgresTable(self.table.schema, LEDGER_TABLE).oid(connection) is None:
            return None
        entry = self._read(connection, flow, step, "")
        return entry if entry is not None and entry.batch_id > NO_BATCH else None

    def claim(self, connection: psycopg.Connection, batch: Batch, *, table_exists: bool) -> bool:
        """Claim the ledger for an attempt; return whether the batch still has to be written.

        Afterwards an attempt with a lower fence is rejected. `table_exists` says whether the target table exists.
        Raises HR-315 to HR-317 if the ledger does not match the batch.
        """
        ledger = PostgresTable(self.table.schema, LEDGER_TABLE)
        if ledger.oid(connection) is None:
            with advisory_lock(connection, str(ledger)):
                connection.execute(self._statement(_CREATE))
        with connection.transaction():
            if batch.id == 0:
                connection.execute(self._statement(_FIRST), self._fields(batch, batch_id=NO_BATCH))
            due = self.is_due(connection, batch)
            if due and batch.id > 0 and not table_exists:
                raise _TABLE_MISSING.error(batch=batch, table=self.table)
            connection.execute(self._statement(_CLAIM), self._fields(batch))
        return due

    def is_due(self, connection: psycopg.Connection, batch: Batch) -> bool:
        """Lock the entry until the transaction ends; return whether the batch is next, False if it is committed.

        Waits for the transaction of an earlier attempt to commit or roll back. Raises as `claim` does.
        """
        entry = self._read(connection, batch.flow, batch.step, "FOR UPDATE")
        return must_write(decide(entry, batch, claimed=True), LEDGER_ERRORS, batch=batch, last=entry, table=self.table)

    def record(self, connection: psycopg.Connection, batch: Batch, rows: int) -> None:
        """Record the batch as committed. Called in the transaction of its rows, after `is_due`."""
        connection.execute(self._statement(_RECORD), self._fields(batch, rows=rows))

    def _read(self, connection: psycopg.Connection, flow: str, step: str, lock: str) -> LedgerEntry | None:
        with connection.cursor(row_factory=class_row(LedgerEntry)) as cursor:
            fields = {"table": self.table.name, "flow": flow, "step": step}
            return cursor.execute(self._statement(f"{_READ} {lock}"), fields).fetchone()

    def _statement(self, text: str) -> sql.Composed:
        return sql.SQL(text).format(ledger=sql.Identifier(self.table.schema, LEDGER_TABLE))

    def _fields(self, batch: Batch, **more: int) -> dict[str, str | int]:
        return {
            "table": self.table.name,
            "flow": batch.flow,
            "step": batch.step,
            "query_id": batch.query_id,
            "batch_id": batch.id,
            "offsets": batch.offsets,
            "fence": batch.fence,
            **more,
        }
