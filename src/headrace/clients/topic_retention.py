"""How long topics keep what is in them, in words."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from headrace.clients.kafka import reached
from headrace.clients.kafka_settings import Settings

_ANSWER_WITHIN_SECONDS = 10.0
_DAY_MS = 24 * 60 * 60 * 1000


def retention(kafka: Settings, reads: Callable[[str], bool]) -> dict[str, str]:
    """Return how the topics of a condition let go of records. Raises as `reached` does without a broker."""
    client, found = reached(kafka)
    names = sorted(name for name in found.topics if reads(name))
    asked = client.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name) for name in names], request_timeout=_ANSWER_WITHIN_SECONDS
    )
    told = {}
    for resource, answer in asked.items():
        try:
            settings = {name: str(entry.value) for name, entry in answer.result().items()}
        except KafkaException:
            told[resource.name] = "its retention could not be asked for"
            continue
        told[resource.name] = in_words(settings.get("cleanup.policy", ""), int(settings.get("retention.ms", "-1")))
    return told


def in_words(policy: str, retention_ms: int) -> str:
    """Say what removes a record from a topic."""
    days = f"{retention_ms / _DAY_MS:g} day(s)"
    if "compact" in policy:
        after = f", and what is older than {days}" if "delete" in policy and retention_ms >= 0 else ""
        return f"compacted: a record without a value under the same key removes the older ones{after}"
    return "kept for ever" if retention_ms < 0 else f"kept for {days}"
