"""One Kafka transaction: the rows of a batch, or of one of its slots, and the ledger record.

Runs in a task on an executor, without Spark: the `TransactionSlot` that is sent there contains everything it needs.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.clients.kafka_settings import librdkafka_settings
from headrace.errors import HeadraceError, TopicNotFound
from headrace.flow.sink import Batch
from headrace.sinks.batch.errors import must_write
from headrace.sinks.batch.ledger import LedgerEntry, decide
from headrace.sinks.kafka import errors
from headrace.sinks.kafka.ledger import ENTRY_FIELDS, last_entries, slot_key

# The open transaction of a dead driver blocks every read_committed reader until it times out or the driver restarts, so
# not too long; all rows of a batch are sent within it, so not too short. Brokers allow at most 15 minutes.
TRANSACTION_SECONDS = 120.0
# Brokers check for timed-out transactions every 10 s; the rest is slack for a slow broker.
_LEDGER_SECONDS = TRANSACTION_SECONDS + 30.0
# A coordinator that moves to another broker is back within this time.
_ANSWER_SECONDS = 30.0
# How long a fatal client error may go unnoticed while records are in flight.
_FLUSH_SECONDS = 1.0
# How often a transaction is opened before the error goes to the supervisor, which retries with back-off.
_TRIES = 3

# The header of a redriven record, and the column of a chunk with its value: where the record was before.
REDRIVEN_HEADER = "headrace-redrive"
REDRIVEN_COLUMN = "redriven"

# Errors contain the client's messages; clients/kafka.py silences this logger.
_QUIET = logging.getLogger("headrace.librdkafka")


@dataclass(frozen=True)
class TransactionSlot:
    """The share of a batch that one producer sends, and where it is recorded.

    | field  | meaning                                                                    |
    |--------|----------------------------------------------------------------------------|
    | number | the slot number, below `slots`; an unsplit batch is slot 0 of 1            |
    | staged | the outbox attempt whose rows are sent; empty if the batch is not staged   |
    """

    batch: Batch
    topic: str
    ledger: str
    number: int = 0
    slots: int = 1
    staged: str = ""

    @property
    def identity(self) -> str:
        """The name of the sink in the ledger; stable across restarts."""
        return sink_identity(self.batch.target.name, self.batch.flow, self.batch.step)

    @property
    def key(self) -> str:
        """The transactional id of the slot, also its key in the ledger."""
        return slot_key(self.identity, self.number)

    def entry(self, rows: int) -> LedgerEntry:
        """Return the ledger entry to write when the slot is committed."""
        batch = self.batch
        return LedgerEntry(batch.query_id, batch.id, batch.offsets, rows=rows, slots=self.slots, staged=self.staged)


def sink_identity(target: str, flow: str, step: str) -> str:
    """Return the name of a sink in the ledger."""
    return f"hr.{target}.{flow}.{step}"


def publish(slot: TransactionSlot, chunks: Iterable[pa.RecordBatch]) -> int:
    """Send the rows of a slot unless they are already committed; return the slot's row count.

    1. Create a producer and call `init_transactions()`: it fences the producers of earlier attempts.
    2. Only then read the ledger.
    3. Decide: skip a slot that is already committed; reject a ledger that does not match the batch.
    4. Send the rows, then the ledger record, in one transaction; commit when every record is acknowledged.
    5. If the outcome of the commit is unknown, drop the producer and repeat 1 to 3 to find out. If the rows are not
       committed, the next attempt sends them, because `chunks` can be read only once.

    `chunks` has the columns `key` and `value`; redriven rows also have `topic`, which overrides the slot's topic, and
    `redriven`, which becomes a header. An error that `chunks` raises aborts the transaction.
    """
    batch = slot.batch
    producer, entry = _open_slot(slot)
    if producer is None:
        return entry.rows if entry else 0
    started = time.monotonic()
    try:
        sent = _send(producer, slot, chunks)
    except KafkaException as error:
        raise _abort_error(producer, error.args[0], batch, started) from error
    except BaseException:
        _abort(producer)
        raise
    try:
        producer.commit_transaction(_ANSWER_SECONDS)
    except KafkaException as error:
        problem: KafkaError = error.args[0]
        if problem.txn_requires_abort() or problem.code() in errors.FENCED:
            raise _abort_error(producer, problem, batch, started) from error
        del producer
        if _open_slot(slot)[0] is not None:
            raise errors.transaction_unfinished(
                batch, problem.str(), errors.NOT_COMMITTED, TRANSACTION_SECONDS
            ) from error
    return sent


def fence_slots(slots: Sequence[TransactionSlot]) -> dict[int, LedgerEntry]:
    """Fence the earlier producers of all slots, then read the ledger and return the entry of each slot.

    Called on the driver before any slot is sent: a task of an earlier driver cannot commit one slot while this driver
    checks another.
    """
    return _open_slots(slots)[1]


def is_due(entries: Mapping[int, LedgerEntry], slot: TransactionSlot) -> bool:
    """Whether the batch is the next one of the slot; False if it is already committed. Raises on a mismatched ledger.

    Checks the entries of all slots: the committed slots of one batch must come from the same staged rows.
    """
    due = False
    # The slot itself is last: its entry, or that it has none, decides.
    for number in (*entries, slot.number):
        last = entries.get(number)
        decision = decide(last, slot.batch, slots=slot.slots, staged=slot.staged)
        fields = {"batch": slot.batch, "ledger": slot.ledger, "slot": slot, "last": last, "number": number}
        due = must_write(decision, errors.LEDGER_ERRORS, **fields)
    return due


def _open_slot(slot: TransactionSlot) -> tuple[Producer | None, LedgerEntry | None]:
    """Do steps 1 to 3 of `publish`; return the producer (None if the slot is committed) and the slot's entry."""
    producer, entries = _open_slots([slot])
    return (producer if is_due(entries, slot) else None), entries.get(slot.number)


def _open_slots(slots: Sequence[TransactionSlot]) -> tuple[Producer, dict[int, LedgerEntry]]:
    """Fence, then read the ledger. In the other order a commit that is still in flight could be missed."""
    first, batch = slots[0], slots[0].batch
    for left in reversed(range(_TRIES)):
        try:
            for slot in slots:
                producer = Producer(_settings(slot), logger=_QUIET)
                producer.init_transactions(_ANSWER_SECONDS)
            return producer, last_entries(
                batch.target, first.ledger, first.identity, range(first.slots), _LEDGER_SECONDS
            )
        except ValueError as error:
            why = f"Its last record cannot be read: {error}."
            raise errors.LEDGER_MISSING.error(batch=batch, ledger=first.ledger, why=why) from error
        except KafkaException as error:
            problem: KafkaError = error.args[0]
            # Except for batch 0: its ledger was just created, and not every broker may know it yet.
            if problem.code() in errors.NO_TOPIC and batch.id > 0:
                why = "The topic is not there."
                raise errors.LEDGER_MISSING.error(batch=batch, ledger=first.ledger, why=why) from error
            if problem.code() in errors.FENCED:
                raise errors.producer_fenced(batch, problem) from error
            if problem.code() in errors.REFUSED:
                raise errors.broker_rejected(batch, problem) from error
            if left == 0:
                raise errors.transaction_unfinished(
                    batch, problem.str(), errors.ALL_OR_NOTHING, TRANSACTION_SECONDS
                ) from error
    raise AssertionError(slots)


class _DeliveryReports:
    """Collects failed delivery reports; the client is configured to report only errors."""

    def __init__(self) -> None:
        self._problem: KafkaError | None = None

    def take(self, problem: KafkaError | None, _message: Message) -> None:
        """Store the first failure. Called by the client, in the thread that sends."""
        self._problem = self._problem or problem

    def check(self) -> None:
        """Raise the first failure, if any."""
        if self._problem is not None:
            raise KafkaException(self._problem)


def _send(producer: Producer, slot: TransactionSlot, chunks: Iterable[pa.RecordBatch]) -> int:
    """Send the rows and then the ledger record in a transaction; return when the brokers have acknowledged all."""
    reports = _DeliveryReports()
    sent = 0
    producer.begin_transaction()
    for chunk in chunks:
        if REDRIVEN_COLUMN in chunk.schema.names:
            _send_redriven(producer, chunk, reports)
        else:
            for key, value in zip(chunk.column("key").to_pylist(), chunk.column("value").to_pylist(), strict=True):
                _produce(producer, reports, topic=slot.topic, key=key, value=value)
        sent += chunk.num_rows
        _serve(producer.poll, 0)
        reports.check()
    _produce(producer, reports, topic=slot.ledger, key=slot.key, value=slot.entry(sent).to_json(ENTRY_FIELDS))
    _flush(producer, reports)
    return sent


def _flush(producer: Producer, reports: _DeliveryReports) -> None:
    """Wait until the brokers have acknowledged every record.

    In short calls: `flush` does not report a fatal error before its timeout, and can leave the records of a fenced
    producer in the queue. One long call reported the other driver only after the transaction had timed out.
    """
    deadline = time.monotonic() + TRANSACTION_SECONDS
    while waiting := _serve(producer.flush, _FLUSH_SECONDS):
        reports.check()
        if time.monotonic() > deadline:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{waiting} record(s) were not acknowledged"))
    reports.check()


def _send_redriven(producer: Producer, chunk: pa.RecordBatch, reports: _DeliveryReports) -> None:
    columns = (chunk.column(name).to_pylist() for name in ("topic", "key", "value", REDRIVEN_COLUMN))
    for topic, key, value, origin in zip(*columns, strict=True):
        _produce(producer, reports, topic=topic, key=key, value=value, headers=[(REDRIVEN_HEADER, origin)])


def _produce(producer: Producer, reports: _DeliveryReports, **record: Any) -> None:
    while True:
        try:
            producer.produce(**record, on_delivery=reports.take)
            return
        except BufferError:
            # The queue is full: wait until the brokers have taken some of it.
            _serve(producer.poll, 0.1)
            reports.check()


def _serve(serve: Callable[[float], int], seconds: float) -> int:
    """Call `poll` or `flush`; raise KafkaException if the client fails.

    The client raises a fatal error, such as being fenced, while it still delivers reports. Python turns this into a
    SystemError, which may lack the cause: aborting the transaction returns it.
    """
    try:
        return serve(seconds)
    except SystemError as error:
        raise KafkaException(KafkaError(KafkaError._FATAL, "The producer broke off.")) from error


def _settings(slot: TransactionSlot) -> dict[str, str | int | bool]:
    return {
        **librdkafka_settings(slot.batch.target.kafka),
        "transactional.id": slot.key,
        "transaction.timeout.ms": int(TRANSACTION_SECONDS * 1000),
        # The partitioner of the Java client, and so of Spark's sink: a key goes to the same partition from either.
        "partitioner": "murmur2_random",
        # Rows arrive without pauses, so larger requests are cheaper than early ones.
        "linger.ms": 20,
        # A commit fails if any record has failed, so success reports add nothing but calls into Python.
        "delivery.report.only.error": True,
    }


def _abort(producer: Producer) -> KafkaError | None:
    """Abort the transaction, so that no reader waits for it; return the error of the abort, if any."""
    # A fatal error can end a call without a cause once, as in `_serve`; the next call then returns the cause.
    for _ in range(2):
        try:
            producer.purge()
            producer.abort_transaction(_ANSWER_SECONDS)
        except KafkaException as error:
            problem: KafkaError = error.args[0]
            return problem
        except SystemError:
            continue
        return None
    return KafkaError(KafkaError._FATAL, "The producer broke off.")


def _abort_error(producer: Producer, problem: KafkaError, batch: Batch, started: float) -> HeadraceError:
    """Abort and return the error to raise. A fenced producer is detected here at the latest."""
    abort_problem = _abort(producer)
    if problem.code() in errors.REFUSED:
        return errors.broker_rejected(batch, problem)
    if problem.code() in errors.NO_TOPIC:
        return TopicNotFound(
            f"A topic that flow '{batch.flow}' writes to does not exist.",
            why=f"The client says: {problem.str().rstrip('.')}.",
            state=errors.NOT_COMMITTED,
            remedy="Create it with `headrace topics create NAME`, or correct the name in the flow.",
        )
    # The broker fences a producer whose transaction timed out, too.
    within_timeout = time.monotonic() - started < TRANSACTION_SECONDS
    fenced_error = next(
        (cause for cause in (problem, abort_problem) if cause is not None and cause.code() in errors.FENCED), None
    )
    if within_timeout and fenced_error is not None:
        return errors.producer_fenced(batch, fenced_error)
    return errors.transaction_unfinished(batch, problem.str(), errors.ALL_OR_NOTHING, TRANSACTION_SECONDS)
