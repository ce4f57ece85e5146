"""Create topics on a broker if they do not exist, and describe their retention. Never changes or deletes a topic."""

import time
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._metadata import ClusterMetadata
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from headrace.clients.kafka import broker_unavailable, connect_admin
from headrace.clients.kafka_settings import Settings
from headrace.errors import DataError

# One local broker answers in milliseconds; a remote one that elects a controller needs several seconds.
ANSWER_SECONDS = 30.0
_RETENTION_SECONDS = 10.0
_DAY_MS = 24 * 60 * 60 * 1000


def create_topics(
    kafka: Settings, topics: Mapping[str, int], config: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Create missing topics, wait until every partition has a leader, and return the created names.

    `kafka` is a target's settings. `topics` maps names to partition counts; `config` applies to all of them.
    Idempotent. Raises HR-503 for an existing topic with another number of partitions: records of a key would move to
    another partition, so it is never changed silently. Raises HR-601 if the broker does not answer, HR-114 if it
    refuses the login.
    """
    address = str(kafka["bootstrap.servers"])
    new_topics = [NewTopic(name, num_partitions=count, config=dict(config or {})) for name, count in topics.items()]
    if not new_topics:
        return ()
    client, _ = connect_admin(kafka)
    created = []
    for name, answer in client.create_topics(new_topics, request_timeout=ANSWER_SECONDS).items():
        try:
            answer.result()
            created.append(name)
        except KafkaException as problem:
            error: KafkaError = problem.args[0]
            if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                continue
            if error.retriable() or error.code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT):
                raise broker_unavailable(address, error) from problem
            raise _topic_mismatch_error(name, f"The broker says: {error.str()}.") from problem
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            metadata = client.list_topics(timeout=ANSWER_SECONDS)
        except KafkaException as problem:
            raise broker_unavailable(address, problem.args[0]) from problem
        unready = [name for name in topics if not _has_leaders(metadata, name)]
        if not unready:
            break
        if time.monotonic() > deadline:
            raise _topic_mismatch_error(unready[0], "It has no leader: the broker is overloaded or broken.")
        time.sleep(0.05)  # metadata follows the controller within milliseconds
    for name, count in topics.items():
        existing = len(metadata.topics[name].partitions)
        if existing != count:
            raise _topic_mismatch_error(name, f"It has {existing} partition(s) and the declaration has {count}.")
    return tuple(created)


def _has_leaders(metadata: ClusterMetadata, name: str) -> bool:
    """Whether every partition of a topic has a leader."""
    topic = metadata.topics.get(name)
    return (
        topic is not None
        and topic.error is None
        and bool(topic.partitions)
        and all(partition.leader >= 0 for partition in topic.partitions.values())
    )


def _topic_mismatch_error(topic: str, why: str) -> DataError:
    return DataError(
        f"Topic '{topic}' does not match its declaration.",
        why=why,
        state="The topic and its records are untouched.",
        remedy="Declare the topic as it is, or use another name.",
        code="HR-503",
    )


def topic_retention(kafka: Settings, reads: Callable[[str], bool]) -> dict[str, str]:
    """Return a sentence on the retention of each topic that matches a predicate. Raises as `connect_admin` does."""
    client, metadata = connect_admin(kafka)
    names = sorted(name for name in metadata.topics if reads(name))
    answers = client.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name) for name in names], request_timeout=_RETENTION_SECONDS
    )
    descriptions = {}
    for resource, answer in answers.items():
        try:
            settings = {name: str(entry.value) for name, entry in answer.result().items()}
        except KafkaException:
            descriptions[resource.name] = (
                "Its retention is unknown: the broker did not return the settings of the topic."
            )
            continue
        descriptions[resource.name] = describe_retention(
            settings.get("cleanup.policy", ""), int(settings.get("retention.ms", "-1"))
        )
    return descriptions


def describe_retention(policy: str, retention_ms: int) -> str:
    """Return a sentence that says when a topic removes records."""
    days = f"{retention_ms / _DAY_MS:g} day(s)"
    if "compact" in policy:
        after = f", and what is older than {days}" if "delete" in policy and retention_ms >= 0 else ""
        return f"It is compacted: a record without a value under the same key removes the older ones{after}."
    return "Records are retained forever." if retention_ms < 0 else f"Records are retained for {days}."
