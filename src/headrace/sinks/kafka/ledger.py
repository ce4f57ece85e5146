"""Which batches a topic holds: the records that an exactly-once sink writes in the transaction of its rows.

A ledger is a compacted topic with one partition. A sink writes under keys of its own, one per slot, so the last
committed record of a key says what that slot has written. Nothing here writes or deletes a record.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headrace.clients.kafka import committed_reader, first_open, no_broker, written_bounds
from headrace.clients.topics import create_topics
from headrace.flow.target import Target

_SETTINGS = {
    "cleanup.policy": "compact",
    # Only closed segments are compacted. A batch a second makes 3,600 records an hour, less than 1 MB.
    "segment.ms": "3600000",
}

# How many offsets from the end are read first: a batch takes two per slot, its record and the marker of its commit.
_FIRST_SPAN = 256
_SPAN_GROWTH = 16

# How long the open transaction of another sink is waited for when nothing is to be written.
_HELD_SECONDS = 10.0

# And one of this very sink, which may be committed already: the markers of a commit follow its answer, on a busy
# machine within a second or two. A driver that died in the middle costs the next one this time.
_MARKERS_SECONDS, _PAUSE_SECONDS = 5.0, 0.05


@dataclass(frozen=True)
class LedgerEntry:
    """What one record of a ledger says: the last batch of a checkpoint that a slot holds.

    | field    | meaning                                                                           |
    |----------|-----------------------------------------------------------------------------------|
    | query_id | the checkpoint that the batch belongs to                                          |
    | batch_id | its number there                                                                  |
    | rows     | how many rows the slot has of it                                                  |
    | offsets  | the digest of the batch's offsets, as `Batch.offsets` gives it                    |
    | slots    | how many slots the ledger is kept in; never changes                               |
    | staged   | which rows of the outbox it was written from; empty when it was not staged        |
    """

    query_id: str
    batch_id: int
    rows: int
    offsets: str = ""
    slots: int = 1
    staged: str = ""

    def encoded(self) -> bytes:
        """Return the value of the record."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decoded(cls, value: bytes | None) -> LedgerEntry:
        """Return the entry in the value of a record; raise ValueError for anything that is none."""
        try:
            fields = json.loads(value or b"")
            return cls(
                query_id=str(fields["query_id"]),
                batch_id=int(fields["batch_id"]),
                rows=int(fields["rows"]),
                offsets=str(fields["offsets"]),
                slots=int(fields["slots"]),
                staged=str(fields["staged"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an entry: {value!r}") from error


def slot_key(identity: str, slot: int) -> str:
    """Return the key of a slot's records, which is also its transactional id. The first slot's is the identity."""
    return identity if slot == 0 else f"{identity}#{slot}"


def create_ledger(target: Target, topic: str) -> None:
    """Make the topic of a ledger unless it is there, with the broker's default number of replicas."""
    create_topics(target.kafka, {topic: 1}, _SETTINGS)


def last_entries(
    target: Target, topic: str, identity: str, slots: Collection[int], patience: float
) -> dict[int, LedgerEntry]:
    """Return the last committed entry of each slot of a sink, where it has one.

    To be called after `init_transactions()` of the producers that write under the keys: only then nothing of earlier
    ones can still be committed. Raises KafkaException, and ValueError for a record that is no entry.

    Others than `slots` may be found on the way; all of them when an entry is missing, since the ledger is then read to
    its beginning.

    The end is the high watermark, not the last stable offset: an open transaction of another sink would hide a
    committed record of ours behind it. `patience` is how many seconds to wait for such a transaction to end.
    """
    return _entries_before(target, topic, identity, slots, patience=patience)


def held_entries(target: Target, topic: str, identity: str, slots: Collection[int]) -> dict[int, LedgerEntry]:
    """Return the last committed entry of each slot as far as it can be told without fencing anybody.

    A driver that died right before its commit leaves a transaction open at the end of the ledger. When it is one of
    this very sink, and stays open, everything before it is told: what it may still commit is the batch that is run
    again. One that was committed a moment ago looks alike until the broker has written its markers. One of another sink
    may hide entries of ours behind it, so it is waited for. A ledger that is not there has no entries.
    Raises PartUnavailable when the ledger cannot be read to its end.
    """
    try:
        place, deadline = TopicPartition(topic, 0), time.monotonic() + _MARKERS_SECONDS
        while (pending := first_open(target, place)) is not None and _slot_of(pending.key(), identity) is not None:
            if time.monotonic() > deadline:
                break
            time.sleep(_PAUSE_SECONDS)
        end = None if pending is None or _slot_of(pending.key(), identity) is None else pending.offset()
        return _entries_before(target, topic, identity, slots, end=end, patience=_HELD_SECONDS)
    except KafkaException as error:
        problem: KafkaError = error.args[0]
        if problem.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
            return {}
        raise no_broker(str(target.kafka["bootstrap.servers"]), problem) from error


def last_whole(entries: Mapping[int, LedgerEntry], slots: int) -> dict[str, int]:
    """Return, per checkpoint, the last batch that every slot holds."""
    whole: dict[str, int] = {}
    for query_id in {entry.query_id for entry in entries.values()}:
        own = [entry.batch_id for entry in entries.values() if entry.query_id == query_id]
        if len(own) == slots:
            whole[query_id] = min(own)
    return whole


def _entries_before(
    target: Target, topic: str, identity: str, slots: Collection[int], *, patience: float, end: int | None = None
) -> dict[int, LedgerEntry]:
    """Read a ledger up to an offset, or to its high watermark."""
    low, high = written_bounds(target, TopicPartition(topic, 0))
    high = high if end is None else end
    consumer = committed_reader(target)
    found: dict[int, bytes] = {}
    try:
        span, start = _FIRST_SPAN, high
        # From the end backwards, in growing steps: the entries are near the end, and the topic may be long.
        while start > low and not found.keys() >= set(slots):
            start, until = max(low, high - span), start
            consumer.assign([TopicPartition(topic, 0, start)])
            found = {**_last_values(consumer, identity, until, patience), **found}
            span *= _SPAN_GROWTH
    finally:
        consumer.close()
    return {slot: LedgerEntry.decoded(value) for slot, value in found.items()}


def _last_values(consumer: Consumer, identity: str, until: int, patience: float) -> dict[int, bytes]:
    """Read from the assigned offset to `until` and return the last value of each of the sink's keys there."""
    found: dict[int, bytes] = {}
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
        slot = None if error is not None else _slot_of(message.key(), identity)
        if slot is not None:
            found[slot] = message.value() or b""
        if error is None and message.offset() == until - 1:
            return found
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "The ledger was not read to its end."))


def _slot_of(key: str | bytes | None, identity: str) -> int | None:
    """Return the slot whose key it is, or None for the key of another sink."""
    text = key.decode() if isinstance(key, bytes) else key or ""
    if text == identity:
        return 0
    own, _, number = text.rpartition("#")
    return int(number) if own == identity and number.isdecimal() else None
