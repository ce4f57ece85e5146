"""Send a pattern's generated records to Kafka: history immediately, live records in real time.

A pattern has a generator when its folder has a module `generator` with a function of that name, which takes `rate`,
`late`, `duplicates`, `malformed`, `seed` and `oversized`. There is no other
registration. A pattern without such a function does not send records: its demo fills another source.

The steps of sending:

1. Nothing is sent unless the broker answers and has the topic.
2. One simulation runs from `backfill` before now to `live` after now. Records that are due are sent as fast as
   the broker accepts them; the others wait. A run that falls behind catches up.
3. The run ends with an error on the first record that the broker refuses, or does not acknowledge in ten seconds.
4. The run is complete when every record is acknowledged.
"""

import importlib
import pkgutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from threading import Event
from typing import Protocol, cast

from confluent_kafka import KafkaError, Message, Producer

from headrace import patterns
from headrace.clients.kafka import require_topics
from headrace.clients.kafka_settings import librdkafka_settings
from headrace.errors import ConfigError, DataError, HeadraceError, ServiceUnavailable, TopicNotFound, did_you_mean
from headrace.flow.target import Target
from headrace.patterns.traffic import GeneratedRecord

_ACKNOWLEDGED_WITHIN_MS = 10_000
_LARGEST_RECORD = 8 * 1024 * 1024  # room for the oversized record: the topic must refuse it, not the client
_MAX_WAIT_SECONDS = 0.2  # how soon a stop is noticed while no record is due
_SETTINGS: dict[str, str | int | float | bool] = {
    "enable.idempotence": True,
    "message.timeout.ms": _ACKNOWLEDGED_WITHIN_MS,
    "message.max.bytes": _LARGEST_RECORD,
    # The same as in the Java clients and Spark, so that a key always goes to the same partition.
    "partitioner": "murmur2_random",
    "linger.ms": 20,
    "compression.type": "lz4",
    "delivery.report.only.error": True,
    "log_level": 0,
}


class Generator(Protocol):
    """What the function `generator` of a pattern returns."""

    @property
    def topic(self) -> str:
        """The topic that the pattern's flows read; records of another topic name it themselves."""

    def events(self, from_: datetime, until: datetime | None = None) -> Iterator[GeneratedRecord]:
        """Yield the records in the order of `arrival_ms`, without waiting. Call once per run."""


@dataclass(frozen=True)
class SendResult:
    """What a run sent, every record acknowledged."""

    records: int
    by_kind: Mapping[str, int]
    seconds: float


def generators() -> dict[str, Callable[..., Generator]]:
    """Find the patterns that generate data, by name."""
    by_pattern: dict[str, Callable[..., Generator]] = {}
    for module in pkgutil.iter_modules(patterns.__path__, f"{patterns.__name__}."):
        name = f"{module.name}.generator"
        if module.ispkg and find_spec(name) is not None:
            build = getattr(importlib.import_module(name), "generator", None)
            if build is not None:
                by_pattern[module.name.rpartition(".")[2]] = cast("Callable[..., Generator]", build)
    return by_pattern


def find_generator(pattern: str) -> Callable[..., Generator]:
    """Return the generator of a pattern, or raise with the nearest name."""
    by_pattern = generators()
    if pattern not in by_pattern and pattern in (module.name for module in pkgutil.iter_modules(patterns.__path__)):
        raise ConfigError(
            f"Pattern '{pattern}' has no records to send.",
            why="The pattern does not fill a topic with records.",
            state="Nothing was sent.",
            remedy=f"Run `headrace demo {pattern}`, which changes the source and runs everything behind it.",
            code="HR-122",
        )
    if pattern not in by_pattern:
        raise ConfigError(
            f"No pattern '{pattern}' generates data.{did_you_mean(pattern, by_pattern)}",
            why=f"The patterns that do are: {', '.join(sorted(by_pattern))}.",
            state="Nothing was sent.",
            remedy=f"Run `headrace generate {min(by_pattern, default='PATTERN')}`.",
            code="HR-122",
        )
    return by_pattern[pattern]


def pace(
    records: Iterable[GeneratedRecord],
    *,
    stop: Event | None = None,
    clock: Callable[[], float] = time.time,
    wait: Callable[[float], object] = time.sleep,
) -> Iterator[GeneratedRecord]:
    """Yield each record when it is due, past records immediately, until `stop` is set.

    `wait` is called with seconds while nothing is due; it may return early.
    """
    for record in records:
        due = record.arrival_ms / 1000
        while (ahead := due - clock()) > 0 and not (stop and stop.is_set()):
            wait(min(ahead, _MAX_WAIT_SECONDS))
        if stop and stop.is_set():
            return
        yield record


def records_between(
    generator: Generator, *, backfill: timedelta = timedelta(0), live: timedelta | None = None
) -> Iterator[GeneratedRecord]:
    """Yield the records from `backfill` before now to `live` after now; without `live` there is no end."""
    now = datetime.now(UTC)
    return generator.events(now - backfill, None if live is None else now + live)


def generate(
    generator: Generator,
    target: Target,
    *,
    topic: str | None = None,
    backfill: timedelta = timedelta(0),
    live: timedelta | None = None,
    stop: Event | None = None,
) -> SendResult:
    """Send records to Kafka until the span ends or `stop` is set, and return what was acknowledged."""
    topic = topic or generator.topic
    require_topics(target, [topic])
    started = time.monotonic()
    refused: list[tuple[KafkaError, str, str]] = []
    producer = Producer({**librdkafka_settings(target.kafka), **_SETTINGS})
    counts: Counter[str] = Counter()

    def on_failure(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append((error, f"a value of {len(message.value() or b''):,} bytes", message.topic() or topic))

    def raise_if_refused() -> None:
        if refused:
            producer.purge()
            raise _failure(*refused[0], accepted=counts.total())

    for record in pace(records_between(generator, backfill=backfill, live=live), stop=stop, wait=producer.poll):
        while True:
            raise_if_refused()
            try:
                producer.produce(
                    record.topic or topic, record.value, record.key, on_delivery=on_failure, timestamp=record.arrival_ms
                )
            except BufferError:  # the send buffer is full: wait for the broker
                producer.poll(_MAX_WAIT_SECONDS)
            else:
                break
        counts[record.kind] += 1
        if not counts.total() % 1000:  # handle the reports of failed records, which `pace` handles only while it waits
            producer.poll(0)
    # A record that the broker does not accept is reported as failed before this long flush ends.
    unsent = producer.flush(2 * _ACKNOWLEDGED_WITHIN_MS / 1000)
    raise_if_refused()
    if unsent:
        raise _failure(KafkaError(KafkaError._TIMED_OUT), "a record", topic, accepted=counts.total())
    return SendResult(counts.total(), dict(counts), time.monotonic() - started)


def _failure(error: KafkaError, record: str, topic: str, *, accepted: int) -> HeadraceError:
    state = f"{accepted:,} records were handed over; those that Kafka did not acknowledge by then may be missing."
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return DataError(
            f"Topic '{topic}' refused {record}.",
            why=f"{error.str()}: it is larger than the topic's max.message.bytes.",
            state=state,
            remedy="Raise max.message.bytes of the topic, or generate without the oversized record.",
            code="HR-504",
        )
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return TopicNotFound(
            f"Topic '{topic}' no longer exists.",
            why=f"{error.str()}: it was deleted while records were sent.",
            state=state,
            remedy=f"Create it with `headrace topics create {topic}` and run the command again.",
        )
    return ServiceUnavailable(
        f"Kafka did not take a record for topic '{topic}'.",
        why=f"{error.str()}, after {_ACKNOWLEDGED_WITHIN_MS // 1000} seconds of trying.",
        state=state,
        remedy="Start the broker (`headrace up` for the local one) and run the command again.",
        code="HR-601",
    )
