"""Wait for a capture: until its topics exist, and until they contain every change before a log position."""

import time
from collections.abc import Callable, Iterable

from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.health import check_capture
from headrace.cdc.capture.source_table import SourceTable
from headrace.clients.kafka import list_topics
from headrace.clients.kafka_connect import ConnectClient
from headrace.errors import ServiceUnavailable
from headrace.flow.target import Database, Target

# A snapshot of a small database takes seconds; a busy machine may need a while to start one.
PATIENCE_SECONDS = 120.0
# Neither the broker nor Kafka Connect gives an event for either.
_PAUSE_SECONDS = 0.2


def await_topics(capture: Capture, tables: Iterable[SourceTable], target: Target) -> None:
    """Return when every table has its topic, which comes with its first row. Raises HR-615 after two minutes."""
    topics = {capture.topic(table) for table in tables}
    if not _poll_until(lambda: topics <= set(list_topics(target))):
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

    if not _poll_until(has_arrived):
        raise _capture_timeout_error(capture, f"It is at {position_seen or 'its beginning'}; expected: {position}")


def _poll_until(is_done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True


def _capture_timeout_error(capture: Capture, why: str) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"The capture '{capture.prefix}' has not made the expected progress within {PATIENCE_SECONDS:.0f} s.",
        why=f"{why}.",
        state="Nothing is lost: the log of the source has the changes that are not captured yet.",
        remedy="Run the command again; if it repeats, look at the log of Kafka Connect, which `headrace ps` names.",
        code="HR-615",
    )
