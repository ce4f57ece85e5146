"""How Headrace itself, without Spark, talks to a Kafka broker: to ask what is there before a flow starts."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.errors import ConfigError, DataError, PartUnavailable, nearest
from headrace.flow.secret import Secret, revealed
from headrace.flow.target import Target

# How long a start waits for a broker that does not answer, before it says so.
_ANSWER_WITHIN_SECONDS = 10.0

_NO_LEADER_YET = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)

# librdkafka reports every refused connection by itself; the errors below say it once, and what to do.
_QUIET = logging.getLogger("headrace.librdkafka")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


def connector_options(target: Target) -> dict[str, str]:
    """Return the target's Kafka settings as Spark's connector wants them, secrets revealed."""
    return {f"kafka.{key}": revealed(value) for key, value in target.kafka.items()}


def admin(kafka: Mapping[str, str | Secret]) -> AdminClient:
    """Return an admin client for a target's Kafka settings. It connects when it is first asked something."""
    return AdminClient({key: revealed(value) for key, value in kafka.items()}, logger=_QUIET)


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
    try:
        found = admin(target.kafka).list_topics(timeout=_ANSWER_WITHIN_SECONDS).topics
    except KafkaException as error:
        raise no_broker(str(address), error.args[0]) from error
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


def require_topics(target: Target, topics: list[str]) -> None:
    """Raise unless the broker answers and has every topic."""
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


def newest_timestamp(target: Target, topic: str) -> datetime | None:
    """Return the time of the newest record at the ends of a topic's partitions, or None when it has none."""
    consumer = _reader(target)
    try:
        newest = -1
        for partition in _partitions(consumer, topic):
            first, end = _bounds(consumer, partition)
            if end > first:
                consumer.assign([TopicPartition(topic, partition.partition, end - 1)])
                newest = max([newest, *(message.timestamp()[1] for message in _until(consumer, end))])
    finally:
        consumer.close()
    return datetime.fromtimestamp(newest / 1000, UTC) if newest >= 0 else None


def read_topic(target: Target, topic: str) -> Iterator[Message]:
    """Yield every committed record that a topic holds now, partition by partition, and end there.

    Nothing is remembered on the broker: no group, no offsets. For comparisons and tests, not for pipelines.
    """
    consumer = _reader(target)
    try:
        for partition in _partitions(consumer, topic):
            first, end = _bounds(consumer, partition)
            consumer.assign([TopicPartition(topic, partition.partition, first)])
            yield from _until(consumer, end)
    finally:
        consumer.close()


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


def _reader(target: Target, isolation: str = "read_committed") -> Consumer:
    settings = {key: revealed(value) for key, value in target.kafka.items()}
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


def _until(consumer: Consumer, end: int) -> Iterator[Message]:
    """Yield the records of the assigned partition below `end`. Its end event also covers a tail of markers."""
    while True:
        # A call waits for its full number of records or its timeout, so at the end of a partition it waits in vain.
        for message in consumer.consume(num_messages=5_000, timeout=0.1):
            error = message.error()
            if error is None and (message.offset() or 0) < end:
                yield message
            elif error is None or error.code() == KafkaError._PARTITION_EOF:
                return
            else:
                raise KafkaException(error)
