"""Read small topics from the beginning on a thread, and pass their rows to a function.

The topics are small (a row per key and window), so the feed reads all of them from the beginning at every start: no
consumer group, no stored offset, nothing to repair. The function must accept a row twice.

Failures and how they are handled:

| event                                   | the feed                                                  |
|-----------------------------------------|-----------------------------------------------------------|
| the broker is down, or restarts         | reports `unreachable`, reconnects                         |
| a topic does not exist yet              | reports `waiting`, checks again every two seconds         |
| a topic grows partitions, is recreated  | reads the new partitions from their beginning             |
| a message is not what it should be      | counts it, logs its offset, continues                     |
| the Kafka client gives up               | builds a new one and reads again from the beginning       |

A client gives up without an error after it has asked a broker that was still starting: such a broker lists topics and
no brokers. librdkafka (from 2.13 on) then forgets the address that it was given, and never connects again.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Literal

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from pydantic import BaseModel

log = logging.getLogger(__name__)

FeedState = Literal["off", "connecting", "waiting", "live", "unreachable", "stopped"]

_POLL = 0.25  # seconds: how long a row may wait for company, and how quickly `stop` is noticed
_BATCH = 1000  # rows applied under one lock: small enough that readers never notice
_METADATA_TIMEOUT = 1.0  # seconds: a broker answers in milliseconds, and `stop` may have to wait for this
_RETRY_SECONDS = 2.0  # seconds between looks while a topic is missing or the broker is away
_REFRESH_SECONDS = 15.0  # seconds between looks for new partitions when all is well
_PATIENCE = 3  # failed looks in a row after which the client, not the broker, may be the reason: about ten seconds


@dataclass(frozen=True)
class FeedStatus:
    """The status of the feed.

    | state       | means                                                                |
    |-------------|----------------------------------------------------------------------|
    | off         | there is no feed                                                     |
    | connecting  | no answer from the broker yet                                        |
    | waiting     | the broker answers, but not all topics exist                         |
    | live        | all topics are being read                                            |
    | unreachable | the broker does not answer                                           |
    | stopped     | the feed has ended                                                   |
    """

    state: FeedState = "off"
    rows: int = 0
    malformed: int = 0
    last_error: str | None = None
    missing_topics: tuple[str, ...] = ()


class TopicFeed:
    """Read topics on a separate thread, until `stop`. The thread calls `apply` with rows and their publish times."""

    def __init__(
        self,
        bootstrap: str,
        topics: Mapping[str, type[BaseModel]],
        apply: Callable[[Iterable[tuple[BaseModel, datetime]]], object],
    ) -> None:
        self._bootstrap, self._topics, self._apply = bootstrap, topics, apply
        self._stop = threading.Event()
        self._status = FeedStatus("connecting")
        self._thread = threading.Thread(target=self._run, name="topic-feed", daemon=True)

    @property
    def status(self) -> FeedStatus:
        """Return the current status."""
        return self._status

    def start(self) -> None:
        """Start reading. Call it once."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> bool:
        """Stop reading and return whether the thread ended within `timeout` seconds."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def __enter__(self) -> TopicFeed:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._read()
                except KafkaException as failure:
                    self._lost(failure.args[0])
                    self._stop.wait(_RETRY_SECONDS)
        finally:
            self._set(state="stopped")

    def _read(self) -> None:
        """Read with one Kafka client until `stop`, or until the client gives up."""
        consumer = Consumer(self._settings(), logger=log)
        assigned: set[tuple[str, int]] = set()
        next_look, failures = 0.0, 0
        try:
            while not self._stop.is_set():
                if monotonic() >= next_look:
                    try:
                        assigned, failures = self._refresh_partitions(consumer, assigned), 0
                    except KafkaException as failure:
                        failures += 1
                        if failures >= _PATIENCE:
                            raise
                        self._lost(failure.args[0])
                    next_look = monotonic() + _REFRESH_SECONDS
                if self._status.state != "live":
                    next_look = min(next_look, monotonic() + _RETRY_SECONDS)
                if assigned:
                    self._apply_messages(consumer.consume(_BATCH, _POLL))
                else:
                    consumer.poll(0)  # lets the client report errors
                    self._stop.wait(_POLL)
        finally:
            consumer.close()

    def _refresh_partitions(self, consumer: Consumer, assigned: set[tuple[str, int]]) -> set[tuple[str, int]]:
        """Compare the partitions that exist with those being read; return those being read now."""
        # All topics are listed: asking for one by name may create it on the broker.
        topics = consumer.list_topics(timeout=_METADATA_TIMEOUT).topics
        available = {
            (name, partition)
            for name in self._topics
            if name in topics and topics[name].error is None
            for partition in topics[name].partitions
        }
        if removed := assigned - available:
            consumer.incremental_unassign([TopicPartition(*location) for location in sorted(removed)])
        if new := available - assigned:
            consumer.incremental_assign([TopicPartition(*p, OFFSET_BEGINNING) for p in sorted(new)])
        missing = tuple(sorted(set(self._topics) - {name for name, _ in available}))
        self._set(state="waiting" if missing else "live", missing_topics=missing, last_error=None)
        return available

    def _apply_messages(self, messages: Iterable[Message]) -> None:
        rows: list[tuple[BaseModel, datetime]] = []
        malformed = 0
        for message in messages:
            if error := message.error():
                # The client recovers from these; the next refresh updates the status.
                log.info("Kafka reports %s for %s.", error.name(), message.topic())
                continue
            try:
                published = datetime.fromtimestamp(max(message.timestamp()[1], 0) / 1000, UTC)
                rows.append((self._decode(message), published))
            except ValueError as failure:
                malformed += 1
                partition = f"{message.topic()}[{message.partition()}]@{message.offset()}"
                # Only the count of faults: a payload may hold what does not belong into a log.
                faults = getattr(failure, "error_count", lambda: 1)()
                log.warning("Skipped the message at %s: %d fault(s) in its value.", partition, faults)
        if rows:
            self._apply(rows)
        if rows or malformed:
            status = self._status
            self._set(rows=status.rows + len(rows), malformed=status.malformed + malformed)

    def _decode(self, message: Message) -> BaseModel:
        value = message.value()
        if value is None:
            raise ValueError("a row without a value")
        return self._topics[message.topic() or ""].model_validate_json(value)

    def _settings(self) -> dict[str, str | int | bool | object]:
        return {
            "bootstrap.servers": self._bootstrap,
            # The client demands a group even though none is joined and nothing is committed.
            "group.id": f"headrace-serve-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
            "reconnect.backoff.max.ms": 2000,
            "error_cb": self._on_error,
            # A broker that is away is one line in our log, not one for every attempt to reach it.
            "log_level": 2,
        }

    def _on_error(self, error: KafkaError) -> None:
        # A single lost connection heals unseen; only when no broker is left do readers need to know.
        if error.code() == KafkaError._ALL_BROKERS_DOWN or error.fatal():
            self._lost(error)

    def _lost(self, error: object) -> None:
        name = error.name() if isinstance(error, KafkaError) else type(error).__name__
        if self._status.state != "unreachable":
            log.warning("The broker does not answer (%s); the rows that were read stay.", name)
        self._set(state="unreachable", last_error=name)

    def _set(self, **changes: object) -> None:
        # Only the feed's own thread comes here: client callbacks run inside poll and consume.
        self._status = replace(self._status, **changes)  # type: ignore[arg-type]
