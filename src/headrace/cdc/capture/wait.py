"""Waiting for a capture: until its topics are there, and until everything before a place of the log is in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.health import look
from headrace.cdc.capture.source_table import SourceTable
from headrace.clients.kafka import list_topics
from headrace.clients.kafka_connect import ConnectClient
from headrace.errors import PartUnavailable
from headrace.flow.target import Database, Target

# A snapshot of a small database is a matter of seconds; a busy machine takes its time to begin one.
PATIENCE_SECONDS = 120.0
# Neither the broker nor Kafka Connect gives an event for either.
_PAUSE_SECONDS = 0.2


def await_topics(capture: Capture, tables: Iterable[SourceTable], target: Target) -> None:
    """Return when every table has its topic, which comes with its first row. Raises HR-615 after two minutes."""
    wanted = {capture.topic(table) for table in tables}
    if not _within_time(lambda: wanted <= set(list_topics(target))):
        missing = min(wanted - set(list_topics(target)), default="")
        raise _late(
            capture, f"The topic {missing} is not there: its table has no row, or the snapshot did not come to it"
        )


def await_position(capture: Capture, database: Database, connect: ConnectClient, position: str) -> None:
    """Return when all changes before a position, one of `position_now`, are in the topics. Raises HR-615, or as `look`.

    The saved position is looked at, which follows what the broker has acknowledged. In a database where nothing happens
    it moves with the capture's heartbeat.
    """
    seen: str | None = None

    def there() -> bool:
        nonlocal seen
        found = look(capture, database, connect)
        seen = found.position
        return seen is not None and seen >= position and not found.in_snapshot

    if not _within_time(there):
        raise _late(capture, f"It is at {seen or 'its beginning'}, and {position} is waited for")


def _within_time(there: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not there():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True


def _late(capture: Capture, why: str) -> PartUnavailable:
    return PartUnavailable(
        f"The capture '{capture.prefix}' has not come as far as it should within {PATIENCE_SECONDS:.0f} s.",
        why=f"{why}.",
        state="Nothing is lost: what is not captured yet is in the log of the source.",
        remedy="Run the command again; if it repeats, look at the log of Kafka Connect, which `headrace ps` names.",
        code="HR-615",
    )
