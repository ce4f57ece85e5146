"""Custom sinks: from a function, or from the transactions of your own store."""

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from pyspark.sql import DataFrame, SparkSession

from headrace.clients.storage import file_store
from headrace.errors import RecoveryError
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import BaseSink, Batch, CommittedBatches, TracksBatches
from headrace.flow.target import Target
from headrace.sinks.batch.errors import LEDGER_ERRORS, must_write
from headrace.sinks.batch.ledger import LedgerEntry, decide
from headrace.sinks.batch.persist import persisted
from headrace.sinks.noop import compute

# The fields of an entry in a record, as JSON.
_ENTRY_FIELDS = ("ledger", "query_id", "batch_id", "offsets", "fence")


class Transaction(Protocol):
    """One transaction of your store, opened for one attempt at one batch. You implement it.

    All calls come from one thread of the driver: `last` first; then `write`, `record` and `commit`, in this order, or
    `abort`. No method is called after `abort`, or after a `commit` that returned.
    """

    def last(self, key: str) -> str | None:
        """Return the text that the last committed transaction recorded under the key, or None."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write the rows without making them visible. They are persisted, and may be read more than once."""

    def record(self, key: str, text: str) -> None:
        """Set the text of the key in this transaction, replacing the earlier one."""

    def commit(self) -> None:
        """Make rows and text visible and durable, both or neither. Raises if the outcome is unknown."""

    def abort(self) -> None:
        """Roll back. Also called after any other method, including `commit`, has raised."""


@dataclass(frozen=True)
class _Custom(BaseSink):
    """Base of both custom sinks. `label` names the sink in messages and metrics."""

    label: str
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset(OutputMode)

    @property
    def name(self) -> str:
        """Return `custom:LABEL`."""
        return f"custom:{self.label}"


@dataclass(frozen=True)
class CustomSink(_Custom):
    """Pass each batch to a function on the driver: `function(rows, batch)`.

    At least once: a batch is complete when the function has returned. If the driver dies before the ledger is updated,
    the next driver calls the function again with the same batch and the same offsets. It is not called again for a
    batch in the ledger. A function that replaces its earlier output by `batch.app_id` and `batch.id` has its effect
    once; that guarantee is the function's, not the sink's.

    The ledger is a small file in the checkpoint's metadata folder, `CHECKPOINTS/FLOW/headrace/ledger-STEP.json`. A
    ledger of another checkpoint, or one that does not end right before the batch, is an error. A missing ledger starts
    with the current batch: the function has already received the batches that the checkpoint has committed.

    The rows are computed before the function is called, and persisted while it runs. It may read them repeatedly, in
    part, or not at all; the state of the query is committed in any case. An error that it raises stops the flow
    (HR-206); a `ServiceUnavailable` restarts the flow after a delay.
    """

    function: Callable[[DataFrame, Batch], None]
    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Call the function and record the batch, unless the ledger already contains it."""
        location = f"{batch.target.flow_folder(batch.flow)}/headrace/ledger-{batch.step}.json"
        files = file_store(location, rows.sparkSession)
        text = files.read(location)
        # A missing ledger counts as one that ends right before this batch.
        last = LedgerEntry(batch.query_id, batch.id - 1) if text is None else _parse_entry(text, location)
        due = must_write(decide(last, batch), LEDGER_ERRORS, batch=batch, last=last, place=location)
        with persisted(rows) as cached:
            compute(cached)
            if due:
                self.function(cached, batch)
                files.write(location, _entry_to_record(batch, last))


@dataclass(frozen=True)
class CustomExactlyOnceSink(_Custom, TracksBatches):
    """Write each batch in a transaction of your own store that also records the batch.

    `begin(target)` opens a `Transaction`. It is called once per attempt, on the driver.

    Exactly once, while the store follows four rules, which Headrace cannot test:
      1. rows and record of a transaction become visible together or not at all, and last once `commit` has returned;
      2. `last` sees every transaction that was committed before it was called;
      3. of two transactions that are open under one key, at most one commits: it is serializable, or `last` locks the
         key. Otherwise a driver that was presumed dead can commit the batch a second time;
      4. nobody deletes the record, or restores the store to a state before the checkpoint. A gap is an error.

    Writes outside of the transaction are not covered. The transform need not be deterministic: a batch is committed
    completely or not at all. The rows are computed and persisted before the transaction is opened.
    """

    begin: Callable[[Target], Transaction]
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write the rows unless the batch is already committed; returns when the transaction is committed.

        1. Compute the rows, so that the state of the query is committed in any case.
        2. Open a transaction and read the last batch inside it.
        3. Decide: skip a batch that is already committed; reject a record that does not match the batch.
        4. Write the rows, then the record; commit. If the outcome is unknown, step 2 of the next attempt resolves it.
        """
        with persisted(rows) as cached:
            compute(cached)
            transaction = self.begin(batch.target)
            try:
                key = _key(batch.target, batch.flow, batch.step)
                last = self._last(transaction, key)
                due = must_write(decide(last, batch), LEDGER_ERRORS, batch=batch, last=last, place=self._place)
                if due:
                    transaction.write(cached, batch)
                    transaction.record(key, _entry_to_record(batch, last))
                    transaction.commit()
            except BaseException:
                # An error of the rollback would hide the original error.
                with contextlib.suppress(Exception):
                    transaction.abort()
                raise
            if not due:
                transaction.abort()

    def committed_batches(self, spark: SparkSession, flow: str, step: str, target: Target) -> CommittedBatches:
        """Return the batches that the store records for a flow, in a transaction that is rolled back."""
        transaction = self.begin(target)
        try:
            last = self._last(transaction, _key(target, flow, step))
        finally:
            transaction.abort()
        return CommittedBatches(
            self._place, *((None, {}) if last is None else (last.ledger, {last.query_id: last.batch_id}))
        )

    @property
    def _place(self) -> str:
        return f"the store of {self.name}"

    def _last(self, transaction: Transaction, key: str) -> LedgerEntry | None:
        text = transaction.last(key)
        return None if text is None else _parse_entry(text, self._place)


def _key(target: Target, flow: str, step: str) -> str:
    """Return the key of a flow's record, without the query id, so that a record of another checkpoint is recognized."""
    return f"{target.name}.{flow}.{step}"


def _entry_to_record(batch: Batch, last: LedgerEntry | None) -> str:
    """Return the entry of a batch as JSON. A ledger keeps its id, and a new one gets a random id."""
    ledger = last.ledger if last is not None and last.ledger else str(uuid.uuid4())
    entry = LedgerEntry(batch.query_id, batch.id, batch.offsets, batch.fence, ledger)
    return entry.to_json(_ENTRY_FIELDS)


def _parse_entry(text: str, place: str) -> LedgerEntry:
    """Parse an entry; raise RecoveryError (HR-319) if the text is not one."""
    try:
        return LedgerEntry.from_json(text, _ENTRY_FIELDS)
    except ValueError as error:
        raise RecoveryError(
            f"The ledger in {place} cannot be read.",
            why=f"It holds {text!r}.",
            state="Nothing was written.",
            remedy="Restore the ledger, or start the flow under a new name.",
            code="HR-319",
        ) from error
