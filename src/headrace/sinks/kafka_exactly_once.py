"""Write each batch to a Kafka topic, once: one transaction per batch, which also records the batch in a ledger."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.clients.kafka_settings import librdkafka
from headrace.clients.ledger import LedgerEntry, create_ledger, last_entry
from headrace.errors import DataError, HeadraceError, PartUnavailable, RecoveryError
from headrace.flow.guarantee import Guarantee
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.sinks.kafka import KafkaSink, as_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The transaction of a driver that died holds up every reader of committed records until it times out or the driver is
# started again, so not long; the rows of a batch are sent within it, so not short. Brokers allow 15 minutes at most.
_TRANSACTION_SECONDS = 120.0
# Brokers look for transactions that timed out every 10 s; some time is for the broker to be slow.
_LEDGER_SECONDS = _TRANSACTION_SECONDS + 30.0
# A coordinator that moves to another broker is back within this time.
_ANSWER_SECONDS = 30.0
# How often the transaction is opened anew before the supervisor gets to know of it and waits longer each time.
_TRIES = 3
# Reports of delivery pile up in the client until they are asked for; its queue holds 100,000.
_ROWS_PER_POLL = 10_000

# What the client has to say is in the errors below; clients/kafka.py keeps this logger silent.
_QUIET = logging.getLogger("headrace.librdkafka")

_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_NO_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
_REFUSED = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
)
_ALL_OR_NOTHING = "The batch is in the topic as a whole or not at all; the next attempt finds out which."
_NOT_IN = "Nothing of the batch can be read by a reader of committed records."


@dataclass(frozen=True)
class KafkaExactlyOnce(KafkaSink):
    """Send each row as a JSON object, keyed by one column, each batch in one transaction.

    Exactly once, while:
      1. readers set `isolation.level=read_committed`. Others see the rows of transactions that were aborted;
      2. the ledger belongs to one checkpoint. It counts batches, so those of another checkpoint are refused;
      3. nobody deletes the ledger's records. A checkpoint that is set back behind the ledger is refused;
      4. the rows of a batch are sent within 120 seconds, else the broker aborts the transaction, again and again.

    The transform need not be deterministic: a batch is in as a whole or not at all, so the rows of two attempts at it
    never mix. One producer on the driver sends all rows; the executors only compute them.

    `ledger` names the topic that records which batches are in, `headrace-ledger-FLOW` unless it is given. It is made
    when it is not there.
    """

    ledger: str | None = None
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Make a ledger that was given a name. The others are named after the flow, and the first batch brings it."""
        if self.ledger is not None:
            create_ledger(target, self.ledger)

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Send the rows, unless an earlier attempt has; returns when the transaction is committed.

        1. Make a new producer and `init_transactions()`: producers of earlier attempts can commit nothing from here on.
        2. Only then read the ledger.
        3. Decide: a batch that is in is not sent again; a ledger that does not fit the batch is refused.
        4. Send the rows, then the ledger's record, in one transaction; check every report of delivery; commit.
        5. When the outcome of the commit is unknown, drop the producer and do 1 to 3 again: they find it out. A batch
           that is not in is left to the next attempt, because sending it again here would compute it twice.
        """
        if batch.id == 0:
            create_ledger(batch.target, self._ledger(batch))
        producer = self._opened(batch)
        if producer is None:
            # Computed all the same, without a target: state, watermark and counters of the query come from its rows.
            rows.write.format("noop").mode("overwrite").save()
            return
        began = time.monotonic()
        try:
            self._send(producer, as_records(rows, self.key), batch)
        except KafkaException as error:
            raise _aborted(producer, error.args[0], batch, began) from error
        except BaseException:
            _abort(producer)
            raise
        try:
            producer.commit_transaction(_ANSWER_SECONDS)
        except KafkaException as error:
            problem: KafkaError = error.args[0]
            if problem.txn_requires_abort() or problem.code() in _FENCED:
                raise _aborted(producer, problem, batch, began) from error
            del producer
            if self._opened(batch) is not None:
                raise _unfinished(batch, problem, _NOT_IN) from error

    def _opened(self, batch: Batch) -> Producer | None:
        """Do steps 1 to 3; return the producer for the batch, or None when the batch is in."""
        ledger, identity = self._ledger(batch), _identity(batch)
        for left in reversed(range(_TRIES)):
            producer = Producer(_settings(batch), logger=_QUIET)
            try:
                producer.init_transactions(_ANSWER_SECONDS)
                entry = last_entry(batch.target, ledger, identity, _LEDGER_SECONDS)
                break
            except ValueError as error:
                raise _lost(batch, ledger, f"Its last record cannot be read: {error}.") from error
            except KafkaException as error:
                problem: KafkaError = error.args[0]
                # Not of the first batch: its ledger was made just now, and not every broker may know it yet.
                if problem.code() in _NO_TOPIC and batch.id > 0:
                    raise _lost(batch, ledger, "The topic is not there.") from error
                if problem.code() in _FENCED:
                    raise _taken_over(batch, problem) from error
                if problem.code() in _REFUSED:
                    raise _refused(batch, problem) from error
                if left == 0:
                    raise _unfinished(batch, problem, _ALL_OR_NOTHING) from error
        return producer if _is_due(entry, batch, ledger) else None

    def _send(self, producer: Producer, records: DataFrame, batch: Batch) -> None:
        """Put the rows and, last, the ledger's record into a transaction, acknowledged by the brokers."""
        reports = _Reports()
        sent = 0
        producer.begin_transaction()
        for key, value in records.toLocalIterator(prefetchPartitions=True):
            _produce(producer, self.topic, key, value, reports)
            sent += 1
            if sent % _ROWS_PER_POLL == 0:
                _served(producer.poll, 0)
                reports.check()
        entry = LedgerEntry(batch.query_id, batch.id, sent)
        _produce(producer, self._ledger(batch), _identity(batch), entry.encoded(), reports)
        waiting = _served(producer.flush, _TRANSACTION_SECONDS)
        reports.check()
        if waiting or reports.delivered != sent + 1:
            missing = f"{sent + 1 - reports.delivered} of {sent + 1} records were not acknowledged"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, missing))

    def _ledger(self, batch: Batch) -> str:
        return self.ledger or f"headrace-ledger-{batch.flow}"


class _Reports:
    """The reports of delivery of one transaction: how many are good, and the first that is not."""

    def __init__(self) -> None:
        self.delivered = 0
        self._problem: KafkaError | None = None

    def take(self, problem: KafkaError | None, _message: Message) -> None:
        """Count one report. Called by the client, in the thread that sends, once per record."""
        if problem is None:
            self.delivered += 1
        else:
            self._problem = self._problem or problem

    def check(self) -> None:
        """Raise the first failure."""
        if self._problem is not None:
            raise KafkaException(self._problem)


def _produce(producer: Producer, topic: str, key: str | None, value: str | bytes, reports: _Reports) -> None:
    while True:
        try:
            producer.produce(topic, value, key, on_delivery=reports.take)
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


def _identity(batch: Batch) -> str:
    """Return the transactional id, the same after every restart, which is also the key in the ledger."""
    return f"hr.{batch.target.name}.{batch.flow}.{batch.step}"


def _settings(batch: Batch) -> dict[str, str | int]:
    return {
        **librdkafka(batch.target.kafka),
        "transactional.id": _identity(batch),
        "transaction.timeout.ms": int(_TRANSACTION_SECONDS * 1000),
        # As Java's clients do, and with them Spark's own sink: a key stays in its partition whoever writes it.
        "partitioner": "murmur2_random",
        # Rows come in a stream without pauses; larger requests are cheaper than early ones.
        "linger.ms": 20,
    }


def _is_due(entry: LedgerEntry | None, batch: Batch, ledger: str) -> bool:
    """Whether the batch is the next one; False when it is in already. Raises for a ledger that does not fit."""
    if entry is None:
        if batch.id > 0:
            raise _lost(batch, ledger, f"It has no record of this flow, and {batch.id} batches were written before.")
        return True
    if entry.query_id != batch.query_id:
        raise RecoveryError(
            f"Flow '{batch.flow}' cannot write batch {batch.id}.",
            why=f"The ledger '{ledger}' counts the batches of another checkpoint ({entry.query_id}, up to "
            f"{entry.batch_id}); this one is {batch.query_id}.",
            state="Nothing was written. The topic holds the rows of the other checkpoint.",
            remedy="Restore the checkpoint that the ledger belongs to, or give the sink another topic and another "
            "`ledger`.",
            code="HR-306",
        )
    if entry.batch_id not in (batch.id - 1, batch.id):
        # A checkpoint that was set back would run its batches again with other offsets: skipping them could lose rows.
        why = "those between are missing" if entry.batch_id < batch.id else "the checkpoint was set back"
        raise RecoveryError(
            f"Flow '{batch.flow}' cannot write batch {batch.id}.",
            why=f"The last batch in the ledger '{ledger}' is {entry.batch_id}: {why}.",
            state=f"Nothing was written. The topic holds every batch up to {entry.batch_id}.",
            remedy="Restore the ledger or a checkpoint that ends where it does, or start the flow under a new name "
            "with another topic.",
            code="HR-307",
        )
    return entry.batch_id < batch.id


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
    if problem.code() in _REFUSED:
        return _refused(batch, problem)
    if problem.code() in _NO_TOPIC:
        return DataError(
            f"A topic that flow '{batch.flow}' writes to is not there.",
            why=f"The client says: {problem.str().rstrip('.')}.",
            state=_NOT_IN,
            remedy="Create it with `headrace topics create NAME`, or correct the name in the flow.",
            code="HR-501",
        )
    # The broker fences a producer whose transaction timed out, too.
    in_time = time.monotonic() - began < _TRANSACTION_SECONDS
    fenced = next((each for each in (problem, left) if each is not None and each.code() in _FENCED), None)
    if in_time and fenced is not None:
        return _taken_over(batch, fenced)
    return _unfinished(batch, problem, _ALL_OR_NOTHING)


def _lost(batch: Batch, ledger: str, why: str) -> RecoveryError:
    return RecoveryError(
        f"The ledger '{ledger}' of flow '{batch.flow}' does not say which batches are in the topic.",
        why=why,
        state=f"Nothing was written. Whether batch {batch.id} is in the topic is not known.",
        remedy="Restore the ledger, or start the flow under a new name with another topic. A flow that wrote to "
        "another sink before needs a new name too.",
        code="HR-308",
    )


def _taken_over(batch: Batch, problem: KafkaError) -> RecoveryError:
    return RecoveryError(
        f"Flow '{batch.flow}' may no longer write to its topic.",
        why=f"Another driver took over its transactions. The broker says: {problem.str().rstrip('.')}.",
        state="The batch is in the topic as a whole or not at all, and the other driver goes on with it.",
        remedy="Stop one of the two drivers.",
        code="HR-309",
    )


def _refused(batch: Batch, problem: KafkaError) -> DataError:
    return DataError(
        f"Kafka refuses batch {batch.id} of flow '{batch.flow}'.",
        why=f"The client says: {problem.str().rstrip('.')}.",
        state=_NOT_IN,
        remedy="Make the rows smaller or raise the limit for records; or grant the right that is missing.",
        code="HR-505",
    )


def _unfinished(batch: Batch, problem: KafkaError, state: str) -> PartUnavailable:
    return PartUnavailable(
        f"The transaction for batch {batch.id} of flow '{batch.flow}' did not come to its end.",
        why=f"The client says: {problem.str().rstrip('.')}.",
        state=state,
        remedy=f"Nothing: the batch is run again. If that repeats, start the broker, or make batches smaller so that "
        f"one is sent within {_TRANSACTION_SECONDS:.0f} seconds.",
        code="HR-604",
    )
