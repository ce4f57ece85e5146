"""How Headrace itself, without Spark, talks to a Kafka broker: to ask what is there before a flow starts."""

from __future__ import annotations

import logging

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.errors import ConfigError, DataError, PartUnavailable
from headrace.flow.secret import revealed
from headrace.flow.target import Target

# How long a start waits for a broker that does not answer, before it says so.
_ANSWER_WITHIN_SECONDS = 10.0

# librdkafka reports every refused connection by itself; the errors below say it once, and what to do.
_QUIET = logging.getLogger("headrace.librdkafka")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


def connector_options(target: Target) -> dict[str, str]:
    """Return the target's Kafka settings as Spark's connector wants them, secrets revealed."""
    return {f"kafka.{key}": revealed(value) for key, value in target.kafka.items()}


def require_topics(target: Target, topics: list[str]) -> None:
    """Raise unless the broker answers and has every topic."""
    address = target.kafka.get("bootstrap.servers")
    if not address:
        raise ConfigError(
            f"Target '{target.name}' does not say where Kafka is.",
            why="A flow reads or writes a topic, and kafka.bootstrap.servers is not set.",
            state="Nothing was started.",
            remedy="Set targets.<name>.kafka.bootstrap.servers in headrace.yml, or run `headrace up` for a local broker.",
            code="HR-110",
        )
    admin = AdminClient({key: revealed(value) for key, value in target.kafka.items()}, logger=_QUIET)
    try:
        present = admin.list_topics(timeout=_ANSWER_WITHIN_SECONDS).topics
    except KafkaException as error:
        raise PartUnavailable(
            f"Kafka at {address} does not answer.",
            why=f"{error.args[0].str()}.",
            state="Nothing was started.",
            remedy="Start the broker (`headrace up` for the local one), or correct kafka.bootstrap.servers.",
            code="HR-601",
        ) from error
    missing = [topic for topic in topics if topic not in present]
    if missing:
        have = ", ".join(sorted(name for name in present if not name.startswith("__"))) or "none"
        raise DataError(
            f"Kafka at {address} has no topic {', '.join(repr(topic) for topic in missing)}.",
            why=f"The topics there are: {have}.",
            state="Nothing was started.",
            remedy=f"Create it with `headrace topics create {missing[0]}`, or correct the name in the flow.",
            code="HR-501",
        )
