"""The topics of a capture on a broker: find records of an earlier capture, and delete topics."""

import re
import time

from confluent_kafka import KafkaError, KafkaException

from headrace.cdc.capture.declaration import Capture
from headrace.clients.kafka import broker_unavailable, connect_admin, list_topics
from headrace.clients.positions import end_offsets
from headrace.errors import DataError
from headrace.flow.target import Target

# A broker deletes a topic within milliseconds; one that elects a controller needs several seconds.
_ANSWER_SECONDS = 30.0


def written_topics(capture: Capture, target: Target) -> tuple[str, ...]:
    """Return the topics of a capture's tables and transactions that records were ever written to.

    Records that retention has removed count too: a table may have been written from them.
    """
    partitions = list_topics(target)
    mine = [name for name in partitions if re.fullmatch(capture.topics, name) or name == capture.transactions]
    ends = end_offsets(target, [(name, number) for name in mine for number in range(partitions[name])])
    return tuple(sorted({topic for (topic, _), end in ends.items() if end > 0}))


def delete_topics(capture: Capture, target: Target) -> tuple[str, ...]:
    """Delete every topic of a capture, and return their names when they no longer exist. Idempotent.

    Raises HR-601 if the broker does not answer, HR-507 if it rejects the request.
    """
    client, metadata = connect_admin(target.kafka)
    mine = sorted(
        name for name in metadata.topics if re.fullmatch(capture.topics, name) or name in capture.internal_topics
    )
    for name, answer in client.delete_topics(mine, request_timeout=_ANSWER_SECONDS).items() if mine else ():
        try:
            answer.result()
        except KafkaException as problem:
            error: KafkaError = problem.args[0]
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
            if error.retriable() or error.code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT):
                raise broker_unavailable(str(target.kafka["bootstrap.servers"]), error) from problem
            raise _topic_deletion_error(name, f"The broker says: {error.str()}.") from problem
    deadline = time.monotonic() + _ANSWER_SECONDS
    while rest := [name for name in mine if name in client.list_topics(timeout=_ANSWER_SECONDS).topics]:
        if time.monotonic() > deadline:
            raise _topic_deletion_error(rest[0], "The broker accepted the request, but the topic still exists.")
        time.sleep(0.05)  # metadata follows the controller within milliseconds
    return tuple(mine)


def old_records_error(capture: Capture, topics: tuple[str, ...]) -> DataError:
    """Return HR-527: a snapshot would be written to topics that contain earlier changes."""
    more = f" and {len(topics) - 1} more" if topics[1:] else ""
    return DataError(
        f"The topics of the capture '{capture.prefix}' were written by an earlier capture: {topics[0]}{more}.",
        why="Kafka Connect has no position of it, so this capture would start with a snapshot, whose rows sort before "
        "every change: a row with a change in the topics or the tables would silently keep its old values.",
        state="Nothing was changed: no connector was created.",
        remedy="Stop the flows that read the capture and run `headrace capture delete FLOW --topics`; give each of "
        "them another `name` and `path`, or delete its checkpoint and its tables; then run `headrace capture start "
        "FLOW`. Or capture under another prefix.",
        code="HR-527",
    )


def _topic_deletion_error(topic: str, why: str) -> DataError:
    return DataError(
        f"Topic '{topic}' cannot be deleted.",
        why=why,
        state="Connector, position, slot and publication are deleted. Some topics may still exist.",
        remedy="Grant the permission to delete topics, or let an administrator delete them, and run the command again.",
        code="HR-507",
    )
