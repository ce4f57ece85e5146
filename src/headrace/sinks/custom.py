"""A sink from a function, or from the transactions of a store of one's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from headrace.clients.storage import files_for
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch, Held
from headrace.flow.target import Target
from headrace.sinks.batch.ledger import Epoch, following
from headrace.sinks.batch.persist import kept
from headrace.sinks.noop import compute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Transaction(Protocol):
    """One transaction of a store, opened for one attempt at one batch. Implemented by who writes to the store.

    All calls come from one thread of the driver: `last` first; then `write`, `record` and `commit`, in this order, or
    `abort`. After `abort`, or a `commit` that returned, nothing is called any more.
    """

    def last(self, key: str) -> str | None:
        """Return the text that was last recorded under the key by a transaction that committed; None without one."""
        ...

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write the rows, visible to nobody yet. They are computed already, and may be read more than once."""
        ...

    def record(self, key: str, text: str) -> None:
        """Put the text under the key, in place of the one that is there, in this transaction."""
        ...

    def commit(self) -> None:
        """Make rows and text visible and durable, both or neither. Raises when that is not known to have happened."""
        ...

    def abort(self) -> None:
        """Let go of everything. Called after a failure of any of the others too, also of `commit`."""
        ...


@dataclass(frozen=True)
class _Custom:
    """What both kinds have in common. `label` names the sink in messages and figures."""

    label: str
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset(OutputMode)

    @property
    def name(self) -> str:
        """Return `custom:LABEL`."""
        return f"custom:{self.label}"

    def preflight(self, target: Target) -> None:
        """Nothing is known that could be missing."""

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Nothing: the first batch begins the ledger."""


@dataclass(frozen=True)
class CustomSink(_Custom):
    """Hand each batch to a function, `function(rows, batch)`, on the driver.

    At least once: a batch is complete when the function has returned. When a driver dies before its ledger says so, the
    next one calls the function again, with the same batch and the same offsets; for a batch that the ledger holds it is
    not called again. A function that replaces what it wrote under `batch.app_id` and `batch.id` has its effect once.
    That is the function's promise, and not the sink's.

    The ledger is a small file beside the checkpoint, `CHECKPOINTS/FLOW/headrace/ledger-STEP.json`. One that counts the
    batches of another checkpoint, or that does not end just before the batch, is refused. When it is gone, it begins
    anew with the batch at hand: batches that the checkpoint has committed were handed over.

    The rows are computed before the function sees them, and kept while it runs. It may read them as often as it likes,
    in part, or not at all; the state of the query is committed either way. An error that it raises stops the flow
    (HR-206); a `PartUnavailable` has it started again after a delay.
    """

    function: Callable[[DataFrame, Batch], None]
    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Call the function, unless the ledger holds the batch; then record it."""
        location = f"{batch.target.flow_folder(batch.flow)}/headrace/ledger-{batch.step}.json"
        files = files_for(location, rows.sparkSession)
        text = files.read(location)
        last = None if text is None else Epoch.decoded(text, location)
        entry = following(last, batch, location, whole=False)
        with kept(rows) as once:
            compute(once)
            if entry is not None:
                self.function(once, batch)
                files.write(location, entry.encoded())


@dataclass(frozen=True)
class CustomExactlyOnceSink(_Custom):
    """Write each batch in a transaction of a store of one's own that also records the batch.

    `begin(target)` opens a `Transaction`. It is called once per attempt, on the driver.

    Exactly once, while the store keeps to four rules, which nothing here can test:
      1. rows and record of a transaction become visible together or not at all, and last once `commit` has returned;
      2. `last` sees every transaction that was committed before it was called;
      3. of two transactions that are open under one key, at most one commits: it is serializable, or `last` locks the
         key. Else a driver that was thought dead can commit the batch a second time;
      4. nobody deletes the record, or sets the store back behind the checkpoint. A gap is refused.

    What is written outside of the transaction is not covered. The transform need not be deterministic: a batch is in as
    a whole or not at all. The rows are computed, and kept, before the transaction is opened.
    """

    begin: Callable[[Target], Transaction]
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write the rows, unless an earlier attempt has; returns when the transaction is committed.

        1. Compute the rows: whatever comes of the batch, its state has to be committed.
        2. Open a transaction, and only in it ask for the last batch.
        3. Decide: a batch that is in is not written again; a record that does not fit the batch is refused.
        4. Write the rows, then the record; commit. When the outcome is unknown, the next attempt finds it out by 2.
        """
        with kept(rows) as once:
            compute(once)
            transaction = self.begin(batch.target)
            try:
                key = _key(batch.target, batch.flow, batch.step)
                entry = following(self._last(transaction, key), batch, self._place, whole=True)
                if entry is not None:
                    transaction.write(once, batch)
                    transaction.record(key, entry.encoded())
                    transaction.commit()
            except BaseException:
                # What a broken transaction has to say about being aborted would hide why it broke.
                with contextlib.suppress(Exception):
                    transaction.abort()
                raise
            if entry is None:
                transaction.abort()

    def held(self, spark: SparkSession, flow: str, step: str, target: Target) -> Held:
        """Return what the store records of a flow, in a transaction that is aborted."""
        transaction = self.begin(target)
        try:
            last = self._last(transaction, _key(target, flow, step))
        finally:
            transaction.abort()
        return Held(self._place, *((None, {}) if last is None else (last.ledger, {last.query_id: last.batch_id})))

    @property
    def _place(self) -> str:
        return f"the store of {self.name}"

    def _last(self, transaction: Transaction, key: str) -> Epoch | None:
        text = transaction.last(key)
        return None if text is None else Epoch.decoded(text, self._place)


def _key(target: Target, flow: str, step: str) -> str:
    """Return the key of a flow's record. Without the query id, so that the batches of another checkpoint are known."""
    return f"{target.name}.{flow}.{step}"
