"""Which batches a topic holds: the records that an exactly-once sink writes in the transaction of its rows.

A ledger is a compacted topic with one partition. A sink writes under a key of its own, so the last committed record of
that key says what the sink has written. Nothing here writes or deletes a record.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headrace.clients.kafka import committed_reader, written_bounds
from headrace.clients.topics import create_topics
from headrace.flow.target import Target

_SETTINGS = {
    "cleanup.policy": "compact",
    # Only closed segments are compacted. A batch a second makes 3,600 records an hour, less than 1 MB.
    "segment.ms": "3600000",
}

# How many offsets from the end are read first: a batch takes two, its record and the marker of its commit.
_FIRST_SPAN = 256
_SPAN_GROWTH = 16


@dataclass(frozen=True)
class LedgerEntry:
    """What one record of a ledger says: the last batch of a checkpoint that is in, and how many rows it had."""

    query_id: str
    batch_id: int
    rows: int

    def encoded(self) -> bytes:
        """Return the value of the record."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decoded(cls, value: bytes | None) -> LedgerEntry:
        """Return the entry in the value of a record; raise ValueError for anything that is none."""
        try:
            fields = json.loads(value or b"")
            return cls(str(fields["query_id"]), int(fields["batch_id"]), int(fields["rows"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an entry: {value!r}") from error


def create_ledger(target: Target, topic: str) -> None:
    """Make the topic of a ledger unless it is there, with the broker's default number of replicas."""
    create_topics(target.kafka, {topic: 1}, _SETTINGS)


def last_entry(target: Target, topic: str, key: str, patience: float) -> LedgerEntry | None:
    """Return the last committed entry under a key, or None when there is none.

    To be called after `init_transactions()` of the producer that writes under the key: only then nothing of an earlier
    one can still be committed. Raises KafkaException, and ValueError for a record that is no entry.

    The end is the high watermark, not the last stable offset: an open transaction of another sink would hide a
    committed record of ours behind it. `patience` is how many seconds to wait for such a transaction to end.
    """
    partition = TopicPartition(topic, 0)
    low, high = written_bounds(target, partition)
    consumer = committed_reader(target)
    try:
        span, start, found = _FIRST_SPAN, high, None
        # From the end backwards, in growing steps: the entry is near the end, and the topic may be long.
        while found is None and start > low:
            start, until = max(low, high - span), start
            consumer.assign([TopicPartition(topic, 0, start)])
            found = _last_value(consumer, key.encode(), until, patience)
            span *= _SPAN_GROWTH
    finally:
        consumer.close()
    return None if found is None else LedgerEntry.decoded(found)


def _last_value(consumer: Consumer, key: bytes, until: int, patience: float) -> bytes | None:
    """Read from the assigned offset to `until` and return the value of the key's last record there."""
    found: bytes | None = None
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is None:
            continue
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        # The end event carries the position: behind it lie markers and aborted records, which are not handed out.
        if (message.offset() or 0) >= until:
            return found
        if error is None and message.key() == key:
            found = message.value() or b""
            if message.offset() == until - 1:
                return found
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "The ledger was not read to its end."))
