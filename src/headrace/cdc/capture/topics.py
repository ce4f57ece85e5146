"""The topics of a capture on a broker: find records of an earlier capture, delete topics, and wait for changes.

Waiting ends when the topics exist, or when they contain every change before a log position.
"""

import re
import time
from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, KafkaException

from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.health import check_capture
from headrace.cdc.capture.source_table import SourceTable
from headrace.clients.kafka import broker_unavailable, connect_admin, list_topics
from headrace.clients.kafka_connect import ConnectClient
from headrace.clients.positions import end_offsets
from headrace.errors import DataError, ServiceUnavailable
from headrace.flow.target import Database, Target

# A broker deletes a topic within milliseconds; one that elects a controller needs several seconds.
_ANSWER_SECONDS = 30.0
# A snapshot of a small database takes seconds; a busy machine may need a while to start one.
PATIENCE_SECONDS = 120.0
# Neither a broker, Kafka Connect nor a database gives an event when it has reached a state.
_PAUSE_SECONDS = 0.2


def poll_until(is_done: Callable[[], bool], seconds: float) -> bool:
    """Return True when a condition is met, or False if it is not met in time. For what gives no event."""
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True


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


def await_topics(capture: Capture, tables: Iterable[SourceTable], target: Target) -> None:
    """Return when every table has its topic, which comes with its first row. Raises HR-615 after two minutes."""
    topics = {capture.topic(table) for table in tables}
    if not poll_until(lambda: topics <= set(list_topics(target)), PATIENCE_SECONDS):
        missing = min(topics - set(list_topics(target)), default="")
        raise _capture_timeout_error(
            capture, f"The topic {missing} does not exist: its table has no row, or the snapshot has not reached it"
        )


def await_position(capture: Capture, database: Database, connect: ConnectClient, position: str) -> None:
    """Return when all changes before a position of `position_now` are in the topics.

    Raises HR-615, or the errors of `check_capture`. The saved position follows the records that the broker has
    acknowledged. In an idle database it moves with the heartbeat of the capture.
    """
    position_seen: str | None = None

    def has_arrived() -> bool:
        nonlocal position_seen
        progress = check_capture(capture, database, connect)
        position_seen = progress.position
        return position_seen is not None and position_seen >= position and not progress.in_snapshot

    if not poll_until(has_arrived, PATIENCE_SECONDS):
        raise _capture_timeout_error(capture, f"It is at {position_seen or 'its beginning'}; expected: {position}")


def _capture_timeout_error(capture: Capture, why: str) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"The capture '{capture.prefix}' has not made the expected progress within {PATIENCE_SECONDS:.0f} s.",
        why=f"{why}.",
        state="Nothing is lost: the log of the source has the changes that are not captured yet.",
        remedy="Run the command again; if it repeats, look at the log of Kafka Connect, which `headrace ps` names.",
        code="HR-615",
    )
