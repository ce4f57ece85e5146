"""The ledger topic of the exactly-once Kafka sink: one record per slot, written in the transaction of its rows.

A ledger is a compacted topic with one partition. A sink has one key per slot; the last committed record of a key is
the last batch that the slot has committed. This module only reads the ledger.
"""

import time
from collections.abc import Collection, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headrace.clients.kafka import broker_unavailable, first_open_transaction, log_bounds, new_consumer
from headrace.clients.topics import create_topics
from headrace.flow.target import Target
from headrace.sinks.batch.ledger import LedgerEntry

_SETTINGS = {
    "cleanup.policy": "compact",
    # Only closed segments are compacted. One batch per second gives 3,600 records an hour, less than 1 MB.
    "segment.ms": "3600000",
}

# The fields of an entry in the value of a record, as JSON.
ENTRY_FIELDS = ("query_id", "batch_id", "rows", "offsets", "slots", "staged")

# How many offsets from the end are read first: a batch takes two per slot, its record and its commit marker.
_FIRST_SPAN = 256
_SPAN_GROWTH = 16

# How long a read-only call waits for the open transaction of another sink.
_OTHER_SINK_SECONDS = 10.0

# How long it waits for a transaction of this sink, which may be committed already: the broker writes commit markers
# after it has answered, within a second or two on a busy machine. After a crash the next driver waits this long.
_MARKERS_SECONDS, _PAUSE_SECONDS = 5.0, 0.05


def slot_key(identity: str, slot: int) -> str:
    """Return the key of a slot's records, which is also its transactional id. The first slot's is the identity."""
    return identity if slot == 0 else f"{identity}#{slot}"


def create_ledger(target: Target, topic: str) -> None:
    """Create the ledger topic if it does not exist, with the broker's default replication factor."""
    create_topics(target.kafka, {topic: 1}, _SETTINGS)


def last_entries(
    target: Target, topic: str, identity: str, slots: Collection[int], patience: float, *, end: int | None = None
) -> dict[int, LedgerEntry]:
    """Return the last committed entry of each slot of a sink that has one.

    Call it after `init_transactions()` of the producers of these keys: only then no earlier producer can still commit.
    Raises KafkaException, and ValueError for a record that is not an entry.

    The result may contain other slots than `slots`; it contains all of them if an entry is missing, because the ledger
    is then read from its start.

    Reads backwards from the offset `end`, by default the high watermark and not the last stable offset: an open
    transaction of another sink would hide committed records of this sink behind it. `patience` is how many seconds to
    wait for such a transaction to end.
    """
    low, high = log_bounds(target, TopicPartition(topic, 0))
    high = high if end is None else end
    consumer = new_consumer(target)
    values: dict[int, bytes] = {}
    try:
        span, start = _FIRST_SPAN, high
        # From the end backwards, in growing steps: the entries are near the end, and the topic may be long.
        while start > low and not values.keys() >= set(slots):
            start, until = max(low, high - span), start
            consumer.assign([TopicPartition(topic, 0, start)])
            values = {**_last_values(consumer, identity, until, patience), **values}
            span *= _SPAN_GROWTH
    finally:
        consumer.close()
    return {slot: LedgerEntry.from_json(value, ENTRY_FIELDS) for slot, value in values.items()}


def committed_entries(target: Target, topic: str, identity: str, slots: Collection[int]) -> dict[int, LedgerEntry]:
    """Return the last committed entry of each slot without fencing a producer.

    A driver that died right before its commit leaves an open transaction at the end of the ledger. If it belongs to
    this sink and stays open, the entries before it are returned: what it may still commit is the batch that is retried.
    A transaction that was just committed looks the same until the broker has written its markers. A transaction of
    another sink may hide entries of this sink, so this function waits for it. A missing ledger has no entries.
    Raises ServiceUnavailable if the ledger cannot be read to its end.
    """
    try:
        partition, deadline = TopicPartition(topic, 0), time.monotonic() + _MARKERS_SECONDS
        while (pending := first_open_transaction(target, partition)) is not None and _slot_of(
            pending.key(), identity
        ) is not None:
            if time.monotonic() > deadline:
                break
            time.sleep(_PAUSE_SECONDS)
        end = None if pending is None or _slot_of(pending.key(), identity) is None else pending.offset()
        return last_entries(target, topic, identity, slots, _OTHER_SINK_SECONDS, end=end)
    except KafkaException as error:
        problem: KafkaError = error.args[0]
        if problem.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
            return {}
        raise broker_unavailable(str(target.kafka["bootstrap.servers"]), problem) from error


def last_complete_batches(entries: Mapping[int, LedgerEntry], slots: int) -> dict[str, int]:
    """Return, per query id, the last batch that every slot has committed."""
    complete: dict[str, int] = {}
    for query_id in {entry.query_id for entry in entries.values()}:
        batch_ids = [entry.batch_id for entry in entries.values() if entry.query_id == query_id]
        if len(batch_ids) == slots:
            complete[query_id] = min(batch_ids)
    return complete


def _last_values(consumer: Consumer, identity: str, until: int, patience: float) -> dict[int, bytes]:
    """Read from the assigned offset to `until` and return the last value of each of the sink's keys there."""
    values: dict[int, bytes] = {}
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is None:
            continue
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        # The end-of-partition event carries the position, past markers and aborted records that are not returned.
        if (message.offset() or 0) >= until:
            return values
        slot = None if error is not None else _slot_of(message.key(), identity)
        if slot is not None:
            values[slot] = message.value() or b""
        if error is None and message.offset() == until - 1:
            return values
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "The ledger was not read to its end."))


def _slot_of(key: str | bytes | None, identity: str) -> int | None:
    """Return the slot number of a key, or None for a key of another sink."""
    text = key.decode() if isinstance(key, bytes) else key or ""
    if text == identity:
        return 0
    own, _, number = text.rpartition("#")
    return int(number) if own == identity and number.isdecimal() else None
