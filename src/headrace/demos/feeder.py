"""Send a pattern's generated records to Kafka: history at once, the present at its pace.

A pattern has a generator when its folder has a module `generator` with a function of that name, which takes `rate`,
`late`, `duplicates`, `malformed`, `seed` and `oversized`. Nothing else registers it. A pattern whose generator has no
such function fills something else than a topic: its demo does.

Sending goes in these steps:

1. The broker answers and has the topic, or nothing is sent.
2. One simulation runs from `backfill` before now to `live` after now. Records whose time has come are sent as fast as
   the broker takes them; the others wait for it. A send that falls behind catches up by itself.
3. The first record that the broker refuses, or does not take within ten seconds, ends the run with an error.
4. The run counts as done when every record is acknowledged.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from threading import Event
from typing import Protocol, TypeVar, cast

from confluent_kafka import KafkaError, Message, Producer

from headrace import patterns
from headrace.clients.kafka import require_topics
from headrace.clients.kafka_settings import librdkafka_settings
from headrace.errors import ConfigError, DataError, HeadraceError, PartUnavailable, did_you_mean
from headrace.flow.target import Target

_ACKNOWLEDGED_WITHIN_MS = 10_000
_LARGEST_RECORD = 8 * 1024 * 1024  # room for the oversized record: the topic is to judge it, not the client
_LONGEST_NAP_SECONDS = 0.2  # how soon a stop is noticed while nothing is due
_SETTINGS: dict[str, str | int | float | bool] = {
    "enable.idempotence": True,
    "message.timeout.ms": _ACKNOWLEDGED_WITHIN_MS,
    "message.max.bytes": _LARGEST_RECORD,
    # As the Java clients and Spark do, so that a key has one partition whoever writes it.
    "partitioner": "murmur2_random",
    "linger.ms": 20,
    "compression.type": "lz4",
    "delivery.report.only.error": True,
    "log_level": 0,
}


class Generated(Protocol):
    """A record of any generator."""

    @property
    def key(self) -> bytes | None:
        """What chooses the partition."""

    @property
    def value(self) -> bytes | None:
        """The payload; None is a tombstone."""

    @property
    def arrival_ms(self) -> int:
        """When to send it, and its message timestamp."""

    @property
    def kind(self) -> str:
        """What it is counted as."""

    @property
    def topic(self) -> str | None:
        """Where it goes; None is the generator's topic."""


class Generator(Protocol):
    """What the function `generator` of a pattern returns."""

    @property
    def topic(self) -> str:
        """Where the pattern's flows read; records of a second topic say so themselves."""

    def events(self, from_: datetime, until: datetime | None = None) -> Iterator[Generated]:
        """Yield the records in the order of `arrival_ms`, without waiting. Called once per run."""


@dataclass(frozen=True)
class Sent:
    """What a run sent, acknowledged to the last record."""

    records: int
    by_kind: Mapping[str, int]
    seconds: float


def generators() -> dict[str, Callable[..., Generator]]:
    """Find the patterns that generate data, by name."""
    found: dict[str, Callable[..., Generator]] = {}
    for module in pkgutil.iter_modules(patterns.__path__, f"{patterns.__name__}."):
        name = f"{module.name}.generator"
        if module.ispkg and find_spec(name) is not None:
            build = getattr(importlib.import_module(name), "generator", None)
            if build is not None:
                found[module.name.rpartition(".")[2]] = cast("Callable[..., Generator]", build)
    return found


def find_generator(pattern: str) -> Callable[..., Generator]:
    """Return the generator of a pattern, or say which pattern may have been meant."""
    known = generators()
    if pattern not in known and pattern in (each.name for each in pkgutil.iter_modules(patterns.__path__)):
        raise ConfigError(
            f"Pattern '{pattern}' has no records to send.",
            why="Its source is not a topic that it fills by itself.",
            state="Nothing was sent.",
            remedy=f"Run `headrace demo {pattern}`, which changes the source and runs everything behind it.",
            code="HR-122",
        )
    if pattern not in known:
        raise ConfigError(
            f"No pattern '{pattern}' generates data.{did_you_mean(pattern, known)}",
            why=f"The patterns that do are: {', '.join(sorted(known))}.",
            state="Nothing was sent.",
            remedy=f"Run `headrace generate {min(known, default='PATTERN')}`.",
            code="HR-122",
        )
    return known[pattern]


_Record = TypeVar("_Record", bound=Generated)


def pace(
    records: Iterable[_Record],
    *,
    stop: Event | None = None,
    clock: Callable[[], float] = time.time,
    wait: Callable[[float], object] = time.sleep,
) -> Iterator[_Record]:
    """Yield each record when its arrival has come, and those of the past at once, until `stop` is set.

    `wait` is called with seconds while nothing is due; it may return early.
    """
    for record in records:
        due = record.arrival_ms / 1000
        while (ahead := due - clock()) > 0 and not (stop and stop.is_set()):
            wait(min(ahead, _LONGEST_NAP_SECONDS))
        if stop and stop.is_set():
            return
        yield record


def span(
    generator: Generator, *, backfill: timedelta = timedelta(0), live: timedelta | None = None
) -> Iterator[Generated]:
    """Yield the records from `backfill` before now to `live` after now; without `live` they never end."""
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
) -> Sent:
    """Send a span of records to Kafka, until it ends or `stop` is set, and return what was acknowledged."""
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
            raise _failure(*refused[0], taken=counts.total())

    for record in pace(span(generator, backfill=backfill, live=live), stop=stop, wait=producer.poll):
        while True:
            raise_if_refused()
            try:
                producer.produce(
                    record.topic or topic, record.value, record.key, on_delivery=on_failure, timestamp=record.arrival_ms
                )
            except BufferError:  # the broker is slower than we are: let it take some
                producer.poll(_LONGEST_NAP_SECONDS)
            else:
                break
        counts[record.kind] += 1
        if not counts.total() % 1000:  # serve the reports of failed records, which pacing serves only when it waits
            producer.poll(0)
    # A record that the broker does not take is reported as failed before this long flush ends.
    left = producer.flush(2 * _ACKNOWLEDGED_WITHIN_MS / 1000)
    raise_if_refused()
    if left:
        raise _failure(KafkaError(KafkaError._TIMED_OUT), "a record", topic, taken=counts.total())
    return Sent(counts.total(), dict(counts), time.monotonic() - started)


def _failure(error: KafkaError, record: str, topic: str, *, taken: int) -> HeadraceError:
    state = f"{taken:,} records were handed over; those that Kafka did not acknowledge by then may be missing."
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return DataError(
            f"Topic '{topic}' refused {record}.",
            why=f"{error.str()}: it is larger than the topic's max.message.bytes.",
            state=state,
            remedy="Raise max.message.bytes of the topic, or generate without the oversized record.",
            code="HR-504",
        )
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return DataError(
            f"Topic '{topic}' is gone.",
            why=f"{error.str()}: it was deleted while records were sent.",
            state=state,
            remedy=f"Create it with `headrace topics create {topic}` and run the command again.",
            code="HR-501",
        )
    return PartUnavailable(
        f"Kafka did not take a record for topic '{topic}'.",
        why=f"{error.str()}, after {_ACKNOWLEDGED_WITHIN_MS // 1000} seconds of trying.",
        state=state,
        remedy="Start the broker (`headrace up` for the local one) and run the command again.",
        code="HR-601",
    )
