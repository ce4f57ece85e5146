"""The Kafka client: connections, topics, and reading committed records. Does not use Spark."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import ClusterMetadata

from headrace.clients.kafka_settings import Settings, invalid_settings, java_settings, librdkafka_settings
from headrace.errors import ConfigError, ServiceUnavailable, TopicNotFound, did_you_mean
from headrace.flow.target import Target

# The timeout of the broker at the start of a flow.
_ANSWER_WITHIN_SECONDS = 10.0

# How often the client's errors are polled during that time, to report a refused login early.
_POLL_SECONDS = 0.5

_LOGIN_REFUSED = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED)
# librdkafka's messages for a rejected client certificate, and for an address that refuses the connection.
_TLS_ALERT = "SSL alert"
_CONNECT_FAILED = "Connect to "
# Parts of its messages for a failed handshake, with various error codes: some suggest a cause.
_CAUSE_WORDS = ("security.protocol", "listener")
_HANDSHAKE_WORDS = ("handshake", "SASL", "SSL")
_NO_LEADER_YET = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)

# The broker writes commit markers within milliseconds after a commit, on a busy machine in a second or two. It sends
# no notification, so the last stable offset is polled.
_STABLE_TIMEOUT_SECONDS, _MARKER_SECONDS = 30.0, 0.01

# Enough records to know their size within a few percent, and few enough to be read in milliseconds.
_SAMPLED_PARTITIONS, _SAMPLED_RECORDS = 4, 250

# librdkafka logs every refused connection; the errors below report it once, with a remedy.
_SILENT_LOGGER = logging.getLogger("headrace.librdkafka")
_SILENT_LOGGER.addHandler(logging.NullHandler())
_SILENT_LOGGER.propagate = False


def connector_options(target: Target) -> dict[str, str]:
    """Return the target's Kafka settings as options of Spark's connector, with secrets in clear text."""
    return {f"kafka.{name}": value for name, value in java_settings(target.kafka).items()}


def admin_client(kafka: Settings, on_error: Callable[[KafkaError], None] = lambda _error: None) -> AdminClient:
    """Return an admin client for a target's Kafka settings. It connects at the first request.

    `on_error` is called with connection errors, in the thread that polls the client.
    """
    try:
        return AdminClient({**librdkafka_settings(kafka)}, logger=_SILENT_LOGGER, error_cb=on_error)
    except KafkaException as error:
        # For example a key with a wrong password.
        why = f"The client says: {error.args[0].str().rstrip('.')}."
        raise invalid_settings("A Kafka client cannot be created with these settings.", why) from error


def connect_admin(kafka: Settings, timeout_seconds: float | None = None) -> tuple[AdminClient, ClusterMetadata]:
    """Connect an admin client to the broker; return it with the cluster metadata.

    Raises HR-114 as soon as the broker refuses the login or the TLS handshake. After `timeout_seconds`, by default
    ten, raises HR-605 if the broker closes the connection and HR-601 if it does not answer.
    """
    timeout_seconds = _ANSWER_WITHIN_SECONDS if timeout_seconds is None else timeout_seconds
    errors: list[KafkaError] = []
    client = admin_client(kafka, errors.append)
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            return client, client.list_topics(timeout=min(_POLL_SECONDS, timeout_seconds))
        except KafkaException as error:
            # The exception only reports a timeout. The error callback receives the cause.
            client.poll(0)
            address = str(kafka["bootstrap.servers"])
            refusals = [
                problem for problem in errors if problem.code() in _LOGIN_REFUSED or _TLS_ALERT in problem.str()
            ]
            if refusals:
                raise ConfigError(
                    f"Kafka at {address} rejected this client's login.",
                    why=f"The client says: {most_specific_error(refusals).str().rstrip('.')}.",
                    remedy="Correct security.protocol and the sasl and ssl settings under `kafka:` of the target in "
                    "headrace.yml.",
                    code="HR-114",
                ) from error
            if time.monotonic() < deadline:
                continue
            if not errors or any(
                problem.code() == KafkaError._RESOLVE or _CONNECT_FAILED in problem.str() for problem in errors
            ):
                raise broker_unavailable(address, error.args[0]) from error
            # Every address accepted the connection and closed it later.
            raise ServiceUnavailable(
                f"Kafka at {address} accepts the connection and closes it.",
                why="Its listener may have another security.protocol. The client says: "
                f"{most_specific_error(errors).str().rstrip('.')}.",
                state="Nothing was started.",
                remedy="Set security.protocol to that of the listener at that port; otherwise wait until the broker "
                "is up.",
                code="HR-605",
            ) from error


def most_specific_error(errors: Sequence[KafkaError]) -> KafkaError:
    """Return the most specific error: TLS alerts first, then handshake, connection, and no broker at all.

    The client keeps retrying, and a connection may break before the peer has reported the cause.
    """

    def rank(error: KafkaError) -> int:
        message = error.str()
        if _TLS_ALERT in message or error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
            return 0
        if error.code() == KafkaError._SSL or any(word in message for word in _CAUSE_WORDS):
            return 1
        if any(word in message for word in _HANDSHAKE_WORDS):
            return 2
        return 4 if error.code() == KafkaError._ALL_BROKERS_DOWN else 3

    # Of equally specific errors return the first: the others may be its consequences.
    return min(errors, key=rank)


def list_topics(target: Target) -> dict[str, int]:
    """Return the topics of the target's broker with their partition counts, without internal topics."""
    address = target.kafka.get("bootstrap.servers")
    if not address:
        raise ConfigError(
            f"Target '{target.name}' has no address of Kafka.",
            why="A topic is needed, and kafka.bootstrap.servers is not set or the local broker is not running.",
            remedy="Run `headrace up`, or set kafka.bootstrap.servers of the target in headrace.yml.",
            code="HR-110",
        )
    topics = connect_admin(target.kafka)[1].topics
    return {name: len(topics[name].partitions) for name in sorted(topics) if not name.startswith("__")}


def broker_unavailable(address: str, error: KafkaError) -> ServiceUnavailable:
    """Return HR-601: the broker does not answer."""
    return ServiceUnavailable(
        f"Kafka at {address} does not answer.",
        why=f"The client says: {error.str().rstrip('.')}.",
        state="Nothing was started.",
        remedy="Start the broker (`headrace up` for the local one), or correct kafka.bootstrap.servers.",
        code="HR-601",
    )


def require_topics(target: Target, topics: Sequence[str]) -> dict[str, int]:
    """Return the partition counts of the topics; raise HR-501 if one does not exist."""
    present = list_topics(target)
    missing = [topic for topic in topics if topic not in present]
    if missing:
        raise TopicNotFound(
            f"Kafka at {target.kafka['bootstrap.servers']} has no topic {', '.join(map(repr, missing))}.",
            why=f"The topics there are: {', '.join(present) or 'none'}.{did_you_mean(missing[0], present)}",
            state="Nothing was started.",
            remedy=f"Create it with `headrace topics create {missing[0]}`, or correct the name in the flow.",
        )
    return {topic: present[topic] for topic in topics}


def newest_timestamp(target: Target, topic: str) -> datetime | None:
    """Return the latest timestamp of the last records of a topic's partitions, or None if it is empty."""
    newest = -1
    with closing(new_consumer(target)) as consumer:
        for partition in _topic_partitions(consumer, topic):
            first, end = _offset_bounds(consumer, partition)
            if end > first:
                last = TopicPartition(topic, partition.partition, end - 1)
                newest = max([newest, *(message.timestamp()[1] for message in _records_before(consumer, last, end))])
    return datetime.fromtimestamp(newest / 1000, UTC) if newest >= 0 else None


def first_timestamps(target: Target, offsets: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], datetime]:
    """Return the timestamps of the records at offsets, by partition, without partitions that end there."""
    times = {}
    with closing(new_consumer(target)) as consumer:
        for (topic, number), offset in offsets.items():
            at = TopicPartition(topic, number, offset)
            for message in _records_before(consumer, at, min(offset + 1, _offset_bounds(consumer, at)[1])):
                times[topic, number] = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
    return times


def mean_record_bytes(target: Target, partitions: Mapping[str, Sequence[int]]) -> float | None:
    """Return the mean size of the newest records of some partitions, or None if there are no records."""
    sampled = [TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers]
    records = size = 0
    with closing(new_consumer(target)) as consumer:
        for partition in sampled[:: max(1, len(sampled) // _SAMPLED_PARTITIONS)]:
            first, end = _offset_bounds(consumer, partition)
            if end > first:
                partition.offset = max(first, end - _SAMPLED_RECORDS)
                for message in _records_before(consumer, partition, end):
                    records += 1
                    size += len(message.key() or b"") + len(message.value() or b"")
    return size / records if records else None


def read_topic(target: Target, topic: str) -> Iterator[Message]:
    """Yield every record that was committed to a topic before the call, partition by partition.

    First waits for open transactions in the topic: see `await_last_stable_offset`. Stores no consumer group and no
    offsets on the broker. For comparisons and tests, not for pipelines.
    """
    return _committed_records(target, topic, await_last_stable_offset(target, topic))


def read_to_last_stable_offset(target: Target, topic: str) -> Iterator[Message]:
    """Yield the committed records of a topic up to the last stable offset of each partition, without waiting."""
    return _committed_records(target, topic)


def _committed_records(target: Target, topic: str, ends: Mapping[int, int] | None = None) -> Iterator[Message]:
    """Yield the committed records before `ends`, by default the last stable offsets."""
    with closing(new_consumer(target)) as consumer:
        for partition in _topic_partitions(consumer, topic):
            first, stable = _offset_bounds(consumer, partition)
            end = stable if ends is None else ends[partition.partition]
            yield from _records_before(consumer, TopicPartition(topic, partition.partition, first), end)


def await_last_stable_offset(target: Target, topic: str) -> dict[int, int]:
    """Wait until no transaction is open before the current end of each partition; return these ends.

    A broker confirms a commit before it has written the commit markers to the partitions. Until then the last stable
    offset is before the transaction, and a read_committed reader does not see its records.
    Raises ServiceUnavailable (HR-617) if a transaction is still open after 30 seconds.
    """
    with closing(new_consumer(target, "read_uncommitted")) as uncommitted, closing(new_consumer(target)) as committed:
        ends = {
            partition.partition: _offset_bounds(uncommitted, partition)[1]
            for partition in _topic_partitions(uncommitted, topic)
        }
        deadline = time.monotonic() + _STABLE_TIMEOUT_SECONDS
        for number, end in ends.items():
            while (stable := _offset_bounds(committed, TopicPartition(topic, number))[1]) < end:
                if time.monotonic() > deadline:
                    raise ServiceUnavailable(
                        f"Topic '{topic}' has an open transaction in partition {number}.",
                        why=f"The partition ends at offset {end}, and its last stable offset is still {stable} after "
                        f"{_STABLE_TIMEOUT_SECONDS:g} s.",
                        state="Nothing was changed. Records from that offset on are neither committed nor aborted yet.",
                        remedy="Let the producer of the transaction finish. The broker aborts it when "
                        "transaction.timeout.ms is over.",
                        code="HR-617",
                    )
                time.sleep(_MARKER_SECONDS)
        return ends


def log_bounds(target: Target, partition: TopicPartition) -> tuple[int, int]:
    """Return the first offset and the high watermark of a partition."""
    with closing(new_consumer(target, "read_uncommitted")) as consumer:
        return _offset_bounds(consumer, partition)


def first_open_transaction(target: Target, partition: TopicPartition) -> Message | None:
    """Return the first record of an open transaction in a partition, or None."""
    with closing(new_consumer(target)) as consumer:
        _, stable = _offset_bounds(consumer, partition)
    _, end = log_bounds(target, partition)
    begin = TopicPartition(partition.topic, partition.partition, stable)
    with closing(new_consumer(target, "read_uncommitted")) as consumer:
        return next(_records_before(consumer, begin, end), None) if stable < end else None


def new_consumer(target: Target, isolation: str = "read_committed") -> Consumer:
    """Return a consumer without a group that reports the end of a partition."""
    settings = librdkafka_settings(target.kafka)
    group = {"group.id": "headrace-read", "enable.auto.commit": False, "enable.partition.eof": True}
    # These readers stop at the end of a partition, where a broker delays its response by half a second by default.
    quick = {"isolation.level": isolation, "fetch.wait.max.ms": 10}
    return Consumer(settings | group | quick, logger=_SILENT_LOGGER)


def _topic_partitions(consumer: Consumer, topic: str) -> list[TopicPartition]:
    partitions = consumer.list_topics(topic, timeout=_ANSWER_WITHIN_SECONDS).topics[topic].partitions
    return [TopicPartition(topic, number) for number in sorted(partitions)]


def _offset_bounds(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """Return the first offset and the end offset of a partition."""
    deadline = time.monotonic() + _ANSWER_WITHIN_SECONDS
    while True:
        try:
            return consumer.get_watermark_offsets(partition, timeout=_ANSWER_WITHIN_SECONDS)
        except KafkaException as error:
            # A new leader may not know yet that it is the leader. Clients have to retry; librdkafka does so for reads
            # and writes, but not for this call.
            if error.args[0].code() not in _NO_LEADER_YET or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _records_before(consumer: Consumer, begin: TopicPartition, end: int) -> Iterator[Message]:
    """Yield the records of a partition from the offset of `begin` to before `end`."""
    consumer.assign([begin])
    at = begin.offset
    while at < end:
        # The call returns as soon as it has the requested number of messages. Before a tail of commit markers there are
        # fewer records, but the end-of-partition event is one more message.
        for message in consumer.consume(num_messages=min(5_000, end - at), timeout=0.1):
            error = message.error()
            if error is None and (message.offset() or 0) < end:
                at = (message.offset() or 0) + 1
                yield message
            elif error is None or error.code() == KafkaError._PARTITION_EOF:
                return
            else:
                raise KafkaException(error)
