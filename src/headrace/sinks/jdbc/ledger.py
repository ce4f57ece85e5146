"""The ledger of a Postgres table: one row per flow and step that writes to it, changed in the transaction of the batch.

It lies in the schema of the table, as `headrace_ledger`. The row is made before the first batch, so that it can be
locked: whoever holds the lock knows that no other transaction of this flow is under way, committed or not.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from headrace.errors import RecoveryError
from headrace.flow.sink import Batch
from headrace.sinks.jdbc.table import Table, alone

NAME = "headrace_ledger"

# The batch before the first one.
_NONE_YET = -1

_MAKE = """
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


@dataclass(frozen=True)
class Entry:
    """What the ledger says about one flow and step: the last batch of a checkpoint that is in."""

    query_id: str
    batch_id: int
    offsets: str
    fence: int


@dataclass(frozen=True)
class Ledger:
    """The ledger beside one table."""

    table: Table

    def entry(self, connection: psycopg.Connection, flow: str, step: str) -> Entry | None:
        """Return the entry of a flow and step, without a lock, or None while no batch is in."""
        if Table(self.table.schema, NAME).oid(connection) is None:
            return None
        found = self._read(connection, flow, step, "")
        return found if found is not None and found.batch_id > _NONE_YET else None

    def claim(self, connection: psycopg.Connection, batch: Batch, *, is_there: bool) -> bool:
        """Make the ledger ready for an attempt; return whether the batch is still to be written.

        From here on an attempt with a lower fence is refused. `is_there` says whether the table is. Raises HR-315 to
        HR-317 for a ledger that does not fit the batch.
        """
        ledger = Table(self.table.schema, NAME)
        if ledger.oid(connection) is None:
            with alone(connection, str(ledger)):
                connection.execute(self._statement(_MAKE))
        with connection.transaction():
            if batch.id == 0:
                connection.execute(self._statement(_FIRST), self._fields(batch, batch_id=_NONE_YET))
            due = self.is_due(connection, batch)
            if due and batch.id > 0 and not is_there:
                raise self._unfit(batch, f"The table is gone, and {batch.id} batches were written into it.")
            connection.execute(self._statement(_CLAIM), self._fields(batch))
        return due

    def is_due(self, connection: psycopg.Connection, batch: Batch) -> bool:
        """Lock the entry until the transaction ends; return whether the batch is the next one, False when it is in.

        Waits for the transaction of an earlier attempt to end, one way or the other. Raises as `claim` does.
        """
        entry = self._read(connection, batch.flow, batch.step, "FOR UPDATE")
        if entry is None:
            raise self._unfit(
                batch, f"The ledger has no record of this flow, and {batch.id} batches were written before."
            )
        if entry.query_id != batch.query_id and entry.batch_id > _NONE_YET:
            raise RecoveryError(
                f"Flow '{batch.flow}' cannot write batch {batch.id}.",
                why=f"The ledger of the table {self.table} counts the batches of another checkpoint ({entry.query_id}, "
                f"up to {entry.batch_id}); this one is {batch.query_id}.",
                state="Nothing was written. The table holds the rows of the other checkpoint.",
                remedy="Restore the checkpoint that the ledger belongs to, or give the sink another table. Where the "
                f"table may take all rows again, delete the line of the flow in {self.table.schema}.{NAME}.",
                code="HR-315",
            )
        if entry.fence > batch.fence:
            raise RecoveryError(
                f"Flow '{batch.flow}' may no longer write to the table {self.table}.",
                why=f"A later driver has taken over: its fence is {entry.fence}, the one of this driver {batch.fence}.",
                state="Nothing was written. The later driver goes on with the batch.",
                remedy="Stop this driver. Where no other one runs, its lease was set back with the checkpoint: restore "
                f"it, or set `fence` to {batch.fence} in the flow's line of {self.table.schema}.{NAME}.",
                code="HR-317",
            )
        if entry.batch_id == batch.id:
            if entry.offsets != batch.offsets:
                raise self._unfit(batch, "A batch of this number is in, and it was read from other offsets.")
            return False
        if entry.batch_id != batch.id - 1:
            # A checkpoint that was set back may cut its batches elsewhere: skipping them could lose rows.
            why = "those between are missing" if entry.batch_id < batch.id else "the checkpoint was set back"
            raise self._unfit(batch, f"The last batch in the table is {entry.batch_id}: {why}.")
        return True

    def record(self, connection: psycopg.Connection, batch: Batch, rows: int) -> None:
        """Say that the batch is in. Called in the transaction that brings its rows, after `is_due`."""
        connection.execute(self._statement(_RECORD), self._fields(batch, rows=rows))

    def _read(self, connection: psycopg.Connection, flow: str, step: str, lock: str) -> Entry | None:
        with connection.cursor(row_factory=class_row(Entry)) as cursor:
            fields = {"table": self.table.name, "flow": flow, "step": step}
            return cursor.execute(self._statement(f"{_READ} {lock}"), fields).fetchone()

    def _statement(self, text: str) -> sql.Composed:
        return sql.SQL(text).format(ledger=sql.Identifier(self.table.schema, NAME))

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

    def _unfit(self, batch: Batch, why: str) -> RecoveryError:
        return RecoveryError(
            f"Flow '{batch.flow}' cannot write batch {batch.id} into the table {self.table}.",
            why=why,
            state="Nothing was written.",
            remedy="Restore the database or a checkpoint so that both end at the same batch, or start the flow under a "
            "new name with another table. A flow that wrote to another sink before needs a new name too.",
            code="HR-316",
        )
