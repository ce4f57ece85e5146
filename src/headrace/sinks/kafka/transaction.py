"""One transaction of an exactly-once sink: the rows of a batch, or of one slot of it, and the ledger's record.

Runs in a task on an executor, without Spark: everything it needs is in a `Slot`, which is sent there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.clients.kafka_settings import librdkafka
from headrace.errors import HeadraceError
from headrace.flow.sink import Batch
from headrace.sinks.kafka import errors as failures
from headrace.sinks.kafka.ledger import LedgerEntry, last_entries, slot_key

# The transaction of a driver that died holds up every reader of committed records until it times out or the driver is
# started again, so not long; the rows of a batch are sent within it, so not short. Brokers allow 15 minutes at most.
TRANSACTION_SECONDS = 120.0
# Brokers look for transactions that timed out every 10 s; some time is for the broker to be slow.
_LEDGER_SECONDS = TRANSACTION_SECONDS + 30.0
# A coordinator that moves to another broker is back within this time.
_ANSWER_SECONDS = 30.0
# How long a fatal error of the client may stay unseen while records are on their way.
_FLUSH_SECONDS = 1.0
# How often the transaction is opened anew before the supervisor gets to know of it and waits longer each time.
_TRIES = 3

# The header of a record that was sent again, and the column of a chunk that holds it: where the record was before.
REDRIVEN_HEADER = "headrace-redrive"
REDRIVEN_COLUMN = "redriven"

# What the client has to say is in the errors; clients/kafka.py keeps this logger silent.
_QUIET = logging.getLogger("headrace.librdkafka")


@dataclass(frozen=True)
class Slot:
    """The share of a batch that one producer sends, and where it is recorded.

    | field  | meaning                                                                    |
    |--------|----------------------------------------------------------------------------|
    | number | which slot, of `of`: a whole batch is slot 0 of 1                          |
    | staged | which rows of the outbox are sent; empty when the batch is not staged      |
    """

    batch: Batch
    topic: str
    ledger: str
    number: int = 0
    of: int = 1
    staged: str = ""

    @property
    def identity(self) -> str:
        """The name under which the sink is in the ledger, the same after every restart."""
        return sink_identity(self.batch.target.name, self.batch.flow, self.batch.step)

    @property
    def key(self) -> str:
        """The transactional id of the slot, which is also its key in the ledger."""
        return slot_key(self.identity, self.number)

    def entry(self, rows: int) -> LedgerEntry:
        """Return what the ledger is to hold when the slot is in."""
        batch = self.batch
        return LedgerEntry(batch.query_id, batch.id, rows, batch.offsets, self.of, self.staged)


def sink_identity(target: str, flow: str, step: str) -> str:
    """Return the name of a sink in the ledger."""
    return f"hr.{target}.{flow}.{step}"


def publish(slot: Slot, chunks: Iterable[pa.RecordBatch]) -> int:
    """Send the rows of a slot, unless an earlier attempt has; return how many it holds when the slot is in.

    1. Make a new producer and `init_transactions()`: producers of earlier attempts can commit nothing from here on.
    2. Only then read the ledger.
    3. Decide: a slot that is in is not sent again; a ledger that does not fit the batch is refused.
    4. Send the rows, then the ledger's record, in one transaction; commit when every record is acknowledged.
    5. When the outcome of the commit is unknown, drop the producer and do 1 to 3 again: they find it out. Rows that are
       not in are left to the next attempt, because `chunks` can be read once.

    `chunks` holds the columns `key` and `value`; where rows are sent again also `topic`, which goes before the slot's,
    and `redriven`, which becomes a header. An error that it raises aborts the transaction.
    """
    batch = slot.batch
    producer, entry = _opened(slot)
    if producer is None:
        return entry.rows if entry else 0
    began = time.monotonic()
    try:
        sent = _send(producer, slot, chunks)
    except KafkaException as error:
        raise _aborted(producer, error.args[0], batch, began) from error
    except BaseException:
        _abort(producer)
        raise
    try:
        producer.commit_transaction(_ANSWER_SECONDS)
    except KafkaException as error:
        problem: KafkaError = error.args[0]
        if problem.txn_requires_abort() or problem.code() in failures.FENCED:
            raise _aborted(producer, problem, batch, began) from error
        del producer
        if _opened(slot)[0] is not None:
            raise failures.unfinished(batch, problem.str(), failures.NOT_IN, TRANSACTION_SECONDS) from error
    return sent


def fenced(slots: Sequence[Slot]) -> dict[int, LedgerEntry]:
    """Bar every earlier producer of all the slots, only then read the ledger, and return what each slot holds.

    Called on the driver before any slot is sent: a task of an earlier driver cannot commit one slot while this one
    looks at another.
    """
    return _opened_together(slots)[1]


def is_due(entries: Mapping[int, LedgerEntry], slot: Slot) -> bool:
    """Whether the batch is the slot's next one; False when it is in already. Raises for a ledger that does not fit.

    Every slot that has an entry is looked at: slots of one batch that are in must have been sent from the same rows.
    """
    batch, ledger = slot.batch, slot.ledger
    for number, other in entries.items():
        if other.query_id != batch.query_id:
            raise failures.another_checkpoint(batch, ledger, other)
        if other.slots != slot.of:
            raise failures.other_slots(batch, ledger, other, slot.of)
        if other.batch_id not in (batch.id - 1, batch.id):
            raise failures.out_of_step(batch, ledger, other)
        if other.batch_id == batch.id and other.offsets != batch.offsets:
            raise failures.other_offsets(batch, ledger, other)
        if other.batch_id == batch.id and slot.staged and other.staged != slot.staged:
            raise failures.other_staging(batch, f"slot {number} was sent from {other.staged}, not {slot.staged}")
    entry = entries.get(slot.number)
    if entry is None and batch.id > 0:
        why = f"It has no record of this flow, and {batch.id} batches were written before."
        raise failures.lost(batch, ledger, why)
    return entry is None or entry.batch_id < batch.id


def _opened(slot: Slot) -> tuple[Producer | None, LedgerEntry | None]:
    """Do steps 1 to 3; return the producer for the slot, None when the slot is in, and the slot's entry."""
    producer, entries = _opened_together([slot])
    return (producer if is_due(entries, slot) else None), entries.get(slot.number)


def _opened_together(slots: Sequence[Slot]) -> tuple[Producer, dict[int, LedgerEntry]]:
    """Fence, then read. In this order: read first, the ledger could miss a commit that is still on its way."""
    first, batch = slots[0], slots[0].batch
    for left in reversed(range(_TRIES)):
        try:
            for slot in slots:
                producer = Producer(_settings(slot), logger=_QUIET)
                producer.init_transactions(_ANSWER_SECONDS)
            return producer, last_entries(batch.target, first.ledger, first.identity, range(first.of), _LEDGER_SECONDS)
        except ValueError as error:
            raise failures.lost(batch, first.ledger, f"Its last record cannot be read: {error}.") from error
        except KafkaException as error:
            problem: KafkaError = error.args[0]
            # Not of the first batch: its ledger was made just now, and not every broker may know it yet.
            if problem.code() in failures.NO_TOPIC and batch.id > 0:
                raise failures.lost(batch, first.ledger, "The topic is not there.") from error
            if problem.code() in failures.FENCED:
                raise failures.taken_over(batch, problem) from error
            if problem.code() in failures.REFUSED:
                raise failures.refused(batch, problem) from error
            if left == 0:
                raise failures.unfinished(batch, problem.str(), failures.ALL_OR_NOTHING, TRANSACTION_SECONDS) from error
    raise AssertionError(slots)


class _Reports:
    """The reports of delivery that are not good: the client is told to be silent about the others."""

    def __init__(self) -> None:
        self._problem: KafkaError | None = None

    def take(self, problem: KafkaError | None, _message: Message) -> None:
        """Keep the first failure. Called by the client, in the thread that sends."""
        self._problem = self._problem or problem

    def check(self) -> None:
        """Raise the first failure."""
        if self._problem is not None:
            raise KafkaException(self._problem)


def _send(producer: Producer, slot: Slot, chunks: Iterable[pa.RecordBatch]) -> int:
    """Put the rows and, last, the ledger's record into a transaction; return when the brokers have acknowledged all."""
    reports = _Reports()
    sent = 0
    producer.begin_transaction()
    for chunk in chunks:
        if REDRIVEN_COLUMN in chunk.schema.names:
            _send_again(producer, chunk, reports)
        else:
            for key, value in zip(chunk.column("key").to_pylist(), chunk.column("value").to_pylist(), strict=True):
                _produce(producer, reports, topic=slot.topic, key=key, value=value)
        sent += chunk.num_rows
        _served(producer.poll, 0)
        reports.check()
    _produce(producer, reports, topic=slot.ledger, key=slot.key, value=slot.entry(sent).encoded())
    _flush(producer, reports)
    return sent


def _flush(producer: Producer, reports: _Reports) -> None:
    """Wait until the brokers have acknowledged every record.

    In short pieces: `flush` keeps a fatal error to itself until its time is up, and it can leave a fenced producer's
    records in the queue. One long call told of the other driver only after the transaction's time had passed.
    """
    until = time.monotonic() + TRANSACTION_SECONDS
    while waiting := _served(producer.flush, _FLUSH_SECONDS):
        reports.check()
        if time.monotonic() > until:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{waiting} record(s) were not acknowledged"))
    reports.check()


def _send_again(producer: Producer, chunk: pa.RecordBatch, reports: _Reports) -> None:
    columns = (chunk.column(name).to_pylist() for name in ("topic", "key", "value", REDRIVEN_COLUMN))
    for topic, key, value, origin in zip(*columns, strict=True):
        _produce(producer, reports, topic=topic, key=key, value=value, headers=[(REDRIVEN_HEADER, origin)])


def _produce(producer: Producer, reports: _Reports, **record: Any) -> None:
    while True:
        try:
            producer.produce(**record, on_delivery=reports.take)
            return
        except BufferError:
            # The queue is full: wait until the brokers have taken some of it.
            _served(producer.poll, 0.1)
            reports.check()


def _served(serve: Callable[[float], int], seconds: float) -> int:
    """Let the client serve its events, by `poll` or `flush`; raise KafkaException when it breaks off.

    The client raises a fatal error, such as being fenced, while it serves its events, and goes on with reports of
    delivery all the same. Python makes a SystemError of that, which may or may not hold the cause: aborting tells it.
    """
    try:
        return serve(seconds)
    except SystemError as error:
        raise KafkaException(KafkaError(KafkaError._FATAL, "The producer broke off.")) from error


def _settings(slot: Slot) -> dict[str, str | int | bool]:
    return {
        **librdkafka(slot.batch.target.kafka),
        "transactional.id": slot.key,
        "transaction.timeout.ms": int(TRANSACTION_SECONDS * 1000),
        # As Java's clients do, and with them Spark's own sink: a key stays in its partition whoever writes it.
        "partitioner": "murmur2_random",
        # Rows come in a stream without pauses; larger requests are cheaper than early ones.
        "linger.ms": 20,
        # A commit fails when one record of the transaction has; a call into Python for each good one says nothing new.
        "delivery.report.only.error": True,
    }


def _abort(producer: Producer) -> KafkaError | None:
    """End the transaction without its rows, so that no reader waits for it; return what went wrong in doing so."""
    # A fatal error can break a call off without a word, once, as in `_served`; the next call then says it.
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


def _aborted(producer: Producer, problem: KafkaError, batch: Batch, began: float) -> HeadraceError:
    """Abort and return the error to raise. A producer that was fenced learns it here at the latest."""
    left = _abort(producer)
    if problem.code() in failures.REFUSED:
        return failures.refused(batch, problem)
    if problem.code() in failures.NO_TOPIC:
        return failures.no_topic(batch, problem)
    # The broker fences a producer whose transaction timed out, too.
    in_time = time.monotonic() - began < TRANSACTION_SECONDS
    by_other = next((each for each in (problem, left) if each is not None and each.code() in failures.FENCED), None)
    if in_time and by_other is not None:
        return failures.taken_over(batch, by_other)
    return failures.unfinished(batch, problem.str(), failures.ALL_OR_NOTHING, TRANSACTION_SECONDS)
