"""How Headrace itself, without Spark, talks to a Kafka broker: to ask what is there before a flow starts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import ClusterMetadata

from headrace.clients.kafka_settings import Settings, java, librdkafka, unusable
from headrace.errors import ConfigError, DataError, PartUnavailable, nearest
from headrace.flow.target import Target

# How long a start waits for a broker that does not answer, before it says so.
_ANSWER_WITHIN_SECONDS = 10.0

# How often the side channel of the client is looked at meanwhile: a refused login should not take all that time.
_LOOK_SECONDS = 0.5

_NOT_LET_IN = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED)
# How librdkafka speaks of a broker that refuses the client's certificate, and of an address where nobody listens.
_ALERT = "SSL alert"
_NO_WAY = "Connect to "
# And of a handshake, whatever code the complaint has: some end in a guess at what is wrong, some with the socket.
_GUESSES = ("security.protocol", "listener")
_OF_A_HANDSHAKE = ("handshake", "SASL", "SSL")
_NO_LEADER_YET = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)

# A transaction's markers follow its commit within milliseconds, on a busy machine within a second or two. The broker
# gives no notice of them, so the last stable offset is asked for again after so many seconds.
_DECIDED_WITHIN_SECONDS, _MARKER_SECONDS = 30.0, 0.01

# Enough records to know their size within a few percent, and few enough to be read in milliseconds.
_SAMPLED_PARTITIONS, _SAMPLED_RECORDS = 4, 250

# librdkafka reports every refused connection by itself; the errors below say it once, and what to do.
_QUIET = logging.getLogger("headrace.librdkafka")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


def connector_options(target: Target) -> dict[str, str]:
    """Return the target's Kafka settings as Spark's connector wants them, secrets revealed."""
    return {f"kafka.{name}": value for name, value in java(target.kafka).items()}


def admin(kafka: Settings, hear: Callable[[KafkaError], None] = lambda _error: None) -> AdminClient:
    """Return an admin client for a target's Kafka settings. It connects when it is first asked something.

    `hear` is told what goes wrong with the connection, in the thread that polls the client.
    """
    try:
        return AdminClient({**librdkafka(kafka)}, logger=_QUIET, error_cb=hear)
    except KafkaException as error:
        # Such as a key that its password does not open.
        why = f"The client says: {error.args[0].str().rstrip('.')}."
        raise unusable("No client can be made with the settings of Kafka.", why) from error


def reached(kafka: Settings, patience: float | None = None) -> tuple[AdminClient, ClusterMetadata]:
    """Return an admin client that has got an answer from the broker, and the answer.

    Raises HR-114 when the broker refuses the login or the TLS handshake, as soon as it does; after `patience` seconds,
    ten unless told otherwise, HR-605 when it hangs up and HR-601 when nobody answers.
    """
    patience = _ANSWER_WITHIN_SECONDS if patience is None else patience
    heard: list[KafkaError] = []
    client = admin(kafka, heard.append)
    deadline = time.monotonic() + patience
    while True:
        try:
            return client, client.list_topics(timeout=min(_LOOK_SECONDS, patience))
        except KafkaException as error:
            # The call itself only says that its time is over. Why, the client tells on the side.
            client.poll(0)
            address = str(kafka["bootstrap.servers"])
            refused = [each for each in heard if each.code() in _NOT_LET_IN or _ALERT in each.str()]
            if refused:
                raise _not_let_in(address, most_telling(refused)) from error
            if time.monotonic() >= deadline:
                # Every address was tried, and none of them failed before it was connected.
                hung_up = heard and not any(
                    each.code() == KafkaError._RESOLVE or _NO_WAY in each.str() for each in heard
                )
                raise (
                    _hung_up(address, most_telling(heard)) if hung_up else no_broker(address, error.args[0])
                ) from error


def most_telling(heard: Sequence[KafkaError]) -> KafkaError:
    """Return the complaint that says most: of the peer's own alert, of the handshake, of a connection, of no broker.

    The client tries again all the time, and a connection may break off before the peer has said why.
    """

    def says_little(error: KafkaError) -> int:
        said = error.str()
        if _ALERT in said or error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
            return 0
        if error.code() == KafkaError._SSL or any(word in said for word in _GUESSES):
            return 1
        if any(word in said for word in _OF_A_HANDSHAKE):
            return 2
        return 4 if error.code() == KafkaError._ALL_BROKERS_DOWN else 3

    # Of several that say as much, the first: what follows may be its consequence.
    return min(heard, key=says_little)


def list_topics(target: Target) -> dict[str, int]:
    """Return the topics of the target's broker with their numbers of partitions, Kafka's own left out."""
    address = target.kafka.get("bootstrap.servers")
    if not address:
        raise ConfigError(
            f"Target '{target.name}' does not say where Kafka is.",
            why="A topic is asked for, and kafka.bootstrap.servers is not set or the local broker is not running.",
            state="Nothing was started.",
            remedy="Run `headrace up`, or set kafka.bootstrap.servers of the target in headrace.yml.",
            code="HR-110",
        )
    found = reached(target.kafka)[1].topics
    return {name: len(found[name].partitions) for name in sorted(found) if not name.startswith("__")}


def no_broker(address: str, error: KafkaError) -> PartUnavailable:
    """Return the error for a broker that does not answer."""
    return PartUnavailable(
        f"Kafka at {address} does not answer.",
        why=f"The client says: {error.str().rstrip('.')}.",
        state="Nothing was started.",
        remedy="Start the broker (`headrace up` for the local one), or correct kafka.bootstrap.servers.",
        code="HR-601",
    )


def _not_let_in(address: str, error: KafkaError) -> ConfigError:
    return ConfigError(
        f"Kafka at {address} does not let this client in.",
        why=f"The client says: {error.str().rstrip('.')}.",
        state="Nothing was started.",
        remedy="Correct security.protocol and the sasl and ssl settings under `kafka:` of the target in headrace.yml.",
        code="HR-114",
    )


def _hung_up(address: str, error: KafkaError) -> PartUnavailable:
    return PartUnavailable(
        f"Kafka at {address} takes the connection and hangs up.",
        why=f"Its listener may have another security.protocol. The client says: {error.str().rstrip('.')}.",
        state="Nothing was started.",
        remedy="Set security.protocol as the listener at that port has it; else wait until the broker is up.",
        code="HR-605",
    )


def require_topics(target: Target, topics: Sequence[str]) -> dict[str, int]:
    """Return the numbers of partitions of the topics; raise unless the broker answers and has every one."""
    present = list_topics(target)
    missing = [topic for topic in topics if topic not in present]
    if missing:
        raise DataError(
            f"Kafka at {target.kafka['bootstrap.servers']} has no topic {', '.join(map(repr, missing))}.",
            why=f"The topics there are: {', '.join(present) or 'none'}.{nearest(missing[0], present)}",
            state="Nothing was started.",
            remedy=f"Create it with `headrace topics create {missing[0]}`, or correct the name in the flow.",
            code="HR-501",
        )
    return {topic: present[topic] for topic in topics}


def newest_timestamp(target: Target, topic: str) -> datetime | None:
    """Return the time of the newest record at the ends of a topic's partitions, or None when it has none."""
    consumer = _reader(target)
    try:
        newest = -1
        for partition in _partitions(consumer, topic):
            first, end = _bounds(consumer, partition)
            if end > first:
                last = TopicPartition(topic, partition.partition, end - 1)
                newest = max([newest, *(message.timestamp()[1] for message in _until(consumer, last, end))])
    finally:
        consumer.close()
    return datetime.fromtimestamp(newest / 1000, UTC) if newest >= 0 else None


def first_timestamps(target: Target, places: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], datetime]:
    """Return the times of the records at offsets, by partition; partitions that end there are left out."""
    consumer = _reader(target)
    found = {}
    try:
        for (topic, number), offset in places.items():
            at = TopicPartition(topic, number, offset)
            for message in _until(consumer, at, min(offset + 1, _bounds(consumer, at)[1])):
                found[topic, number] = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
    finally:
        consumer.close()
    return found


def mean_record_bytes(target: Target, partitions: Mapping[str, Sequence[int]]) -> float | None:
    """Return the mean size of keys and values at the ends of some partitions, or None when there are no records."""
    consumer = _reader(target)
    looked_at = [TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers]
    records = size = 0
    try:
        for partition in looked_at[:: max(1, len(looked_at) // _SAMPLED_PARTITIONS)]:
            first, end = _bounds(consumer, partition)
            if end > first:
                partition.offset = max(first, end - _SAMPLED_RECORDS)
                for message in _until(consumer, partition, end):
                    records += 1
                    size += len(message.key() or b"") + len(message.value() or b"")
    finally:
        consumer.close()
    return size / records if records else None


def read_topic(target: Target, topic: str) -> Iterator[Message]:
    """Yield every record that was committed to a topic before the call, partition by partition, and end there.

    Waits until the transactions that have records in the topic are decided: see `await_decided`. Nothing is stored on
    the broker, neither a group nor offsets. For comparisons and tests, not for pipelines.
    """
    return _committed(target, topic, await_decided(target, topic))


def read_decided(target: Target, topic: str) -> Iterator[Message]:
    """Yield the committed records of a topic up to the first open transaction of each partition, without waiting."""
    return _committed(target, topic)


def _committed(target: Target, topic: str, ends: Mapping[int, int] | None = None) -> Iterator[Message]:
    """Yield the committed records below `ends`, or below the last stable offsets."""
    consumer = _reader(target)
    try:
        for partition in _partitions(consumer, topic):
            first, stable = _bounds(consumer, partition)
            end = stable if ends is None else ends[partition.partition]
            yield from _until(consumer, TopicPartition(topic, partition.partition, first), end)
    finally:
        consumer.close()


def await_decided(target: Target, topic: str, seconds: float = _DECIDED_WITHIN_SECONDS) -> dict[int, int]:
    """Wait until no transaction is open below the current end of each partition; return these ends.

    A broker answers a commit before it has written the transaction's markers into the partitions. Until they are there,
    the last stable offset lies before the transaction, and a reader of committed records does not see it.
    Raises PartUnavailable (HR-617) when a transaction is still open after `seconds`.
    """
    every, committed = _reader(target, "read_uncommitted"), _reader(target)
    try:
        ends = {partition.partition: _bounds(every, partition)[1] for partition in _partitions(every, topic)}
        deadline = time.monotonic() + seconds
        for number, end in ends.items():
            while (stable := _bounds(committed, TopicPartition(topic, number))[1]) < end:
                if time.monotonic() > deadline:
                    raise _undecided(topic, number, stable, end, seconds)
                time.sleep(_MARKER_SECONDS)
        return ends
    finally:
        every.close()
        committed.close()


def _undecided(topic: str, partition: int, stable: int, end: int, seconds: float) -> PartUnavailable:
    return PartUnavailable(
        f"Topic '{topic}' has an open transaction in partition {partition}.",
        why=f"The partition ends at offset {end}, and its last stable offset is still {stable} after {seconds:g} s.",
        state="Nothing was changed. Records from that offset on are neither committed nor aborted yet.",
        remedy="Let the producer of the transaction finish. The broker aborts it when transaction.timeout.ms is over.",
        code="HR-617",
    )


def committed_reader(target: Target) -> Consumer:
    """Return a consumer of committed records that joins no group and is told when it is at the end of a partition."""
    return _reader(target)


def written_bounds(target: Target, partition: TopicPartition) -> tuple[int, int]:
    """Return the first offset of a partition and the one after its last record, committed or not."""
    consumer = _reader(target, "read_uncommitted")
    try:
        return _bounds(consumer, partition)
    finally:
        consumer.close()


def first_open(target: Target, partition: TopicPartition) -> Message | None:
    """Return the first record of a partition whose transaction has not ended, or None when there is none."""
    consumer = _reader(target)
    try:
        _, stable = _bounds(consumer, partition)
    finally:
        consumer.close()
    _, end = written_bounds(target, partition)
    consumer = _reader(target, "read_uncommitted")
    try:
        begin = TopicPartition(partition.topic, partition.partition, stable)
        return next(_until(consumer, begin, end), None) if stable < end else None
    finally:
        consumer.close()


def _reader(target: Target, isolation: str = "read_committed") -> Consumer:
    settings = librdkafka(target.kafka)
    group = {"group.id": "headrace-read", "enable.auto.commit": False, "enable.partition.eof": True}
    # Readers here stop at the end of a partition, where a broker holds its answer back: by default half a second.
    quick = {"isolation.level": isolation, "fetch.wait.max.ms": 10}
    return Consumer(settings | group | quick, logger=_QUIET)


def _partitions(consumer: Consumer, topic: str) -> list[TopicPartition]:
    found = consumer.list_topics(topic, timeout=_ANSWER_WITHIN_SECONDS).topics[topic].partitions
    return [TopicPartition(topic, number) for number in sorted(found)]


def _bounds(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """Return the first offset of a partition and the one after its last."""
    deadline = time.monotonic() + _ANSWER_WITHIN_SECONDS
    while True:
        try:
            return consumer.get_watermark_offsets(partition, timeout=_ANSWER_WITHIN_SECONDS)
        except KafkaException as error:
            # The controller names a leader a moment before the broker knows that it is one. The protocol asks clients
            # to try again; librdkafka does so for reads and writes, and leaves this call to us.
            if error.args[0].code() not in _NO_LEADER_YET or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _until(consumer: Consumer, begin: TopicPartition, end: int) -> Iterator[Message]:
    """Yield the records of a partition from the offset of `begin` on, below `end`."""
    consumer.assign([begin])
    at = begin.offset
    while at < end:
        # A call returns when it has as many records as it asked for. At a tail of markers of transactions, where fewer
        # come, the event of the partition's end is one more.
        for message in consumer.consume(num_messages=min(5_000, end - at), timeout=0.1):
            error = message.error()
            if error is None and (message.offset() or 0) < end:
                at = (message.offset() or 0) + 1
                yield message
            elif error is None or error.code() == KafkaError._PARTITION_EOF:
                return
            else:
                raise KafkaException(error)
