"""Describe the retention of topics."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from headrace.clients.kafka import connect_admin
from headrace.clients.kafka_settings import Settings

_ANSWER_WITHIN_SECONDS = 10.0
_DAY_MS = 24 * 60 * 60 * 1000


def topic_retention(kafka: Settings, reads: Callable[[str], bool]) -> dict[str, str]:
    """Return the retention of the topics that match a predicate, in words. Raises as `connect_admin` does."""
    client, metadata = connect_admin(kafka)
    names = sorted(name for name in metadata.topics if reads(name))
    answers = client.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name) for name in names], request_timeout=_ANSWER_WITHIN_SECONDS
    )
    descriptions = {}
    for resource, answer in answers.items():
        try:
            settings = {name: str(entry.value) for name, entry in answer.result().items()}
        except KafkaException:
            descriptions[resource.name] = "its retention could not be asked for"
            continue
        descriptions[resource.name] = describe_retention(
            settings.get("cleanup.policy", ""), int(settings.get("retention.ms", "-1"))
        )
    return descriptions


def describe_retention(policy: str, retention_ms: int) -> str:
    """Describe in words when a topic removes records."""
    days = f"{retention_ms / _DAY_MS:g} day(s)"
    if "compact" in policy:
        after = f", and what is older than {days}" if "delete" in policy and retention_ms >= 0 else ""
        return f"compacted: a record without a value under the same key removes the older ones{after}"
    return "retained forever" if retention_ms < 0 else f"retained for {days}"
