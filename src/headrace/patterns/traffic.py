"""Generate records as producers send them: mostly in order, sometimes late, duplicate or malformed.

A stream is a pure function of its settings and its start time: equal settings and times give the same records, byte
for byte. No generator reads a clock or a network; `headrace.demos.feeder` paces and sends.

- Records arrive at a steady `rate`. The `Simulation` of a pattern decides what they contain.
- A `late` record is far behind the others. A `duplicate` repeats a recent record. `malformed` records cycle through all
  kinds of the pattern.
"""

import json
import math
import random
from abc import ABC, abstractmethod
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate, count, cycle
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from headrace.errors import ConfigError
from headrace.patterns.records import MINUTE_MS

_REMEMBERED = 512  # records that a duplicate is drawn from
_OVERSIZED_BYTES = 5 * 1024 * 1024

# Makes an invalid value of the JSON of a valid event.
Corruption = Callable[[str], bytes | None]


class GeneratedRecord(NamedTuple):
    """A record for Kafka, with its kind and its times."""

    key: bytes | None
    value: bytes | None
    event_time_ms: int | None
    """None where the record is malformed, even if a time can be read from it."""
    arrival_ms: int
    """When the record reaches the topic: the time to send it at, and its message timestamp."""
    kind: str
    """The pattern's name of a valid record, or `late`, `duplicate`, `oversized`, or the kind of corruption."""
    topic: str | None = None
    """Its topic; None is the generator's topic."""


class GeneratedEvent(NamedTuple):
    """One valid event: the key of its record, its JSON and its event time."""

    key: bytes
    text: str
    event_ms: int
    kind: str | None = None
    """The kind of its record; None is the simulation's kind."""
    topic: str | None = None
    """The topic of its record; None is the generator's topic."""


class Simulation(Protocol):
    """One stream of a pattern, from its start time on: makes one event at a time, in order."""

    kind: str
    """The kind of a valid record."""

    def __init__(self, settings: Any, start_ms: int) -> None:
        """Start a stream. The settings are those of the pattern."""

    @property
    def random(self) -> Callable[[], float]:
        """Draw from the generator of random numbers of the stream."""

    def event(self, now: int) -> GeneratedEvent:
        """Return the next event that arrives on time."""

    def late(self, now: int) -> GeneratedEvent:
        """Return an event that arrives late."""

    def standalone_event(self, now: int) -> GeneratedEvent:
        """Return an event of this moment to which no other event refers: it is corrupted, or made too large."""


@dataclass(frozen=True)
class Traffic:
    """Streams of one pattern, and how they look. Holds no state: every call of `events` starts its own simulation.

    A pattern declares its name, its topic, its simulation and its `corruptions`, by name.

    | setting    | means                                                                  |
    |------------|------------------------------------------------------------------------|
    | rate       | records per second, all kinds together                                 |
    | late       | share of late records, from 0 to 1                                     |
    | duplicates | share of records that repeat a recent one                              |
    | malformed  | share of invalid records                                               |
    | seed       | another seed, another stream                                           |
    | oversized  | make the first record one of 5 MB (it compresses well: topics take it) |
    | topic      | where the flows read; records of another topic name it themselves      |
    """

    pattern: ClassVar[str]
    simulation: ClassVar[type[Simulation]]
    corruptions: ClassVar[Mapping[str, Corruption]]

    rate: float = 500.0
    late: float = 0.02
    duplicates: float = 0.01
    malformed: float = 0.005
    seed: int = 7
    oversized: bool = False
    topic: str = field(kw_only=True)

    def __post_init__(self) -> None:
        """Raise HR-121 for an impossible rate or share."""
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise self.invalid_settings(f"rate is {self.rate}", "A stream needs more than 0 records per second.")
        shares = {"late": self.late, "duplicates": self.duplicates, "malformed": self.malformed}
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise self.invalid_settings(f"{name} is {share}", "A share is between 0 and 1.")
        if sum(shares.values()) > 1:
            raise self.invalid_settings(
                f"{' + '.join(shares)} is {sum(shares.values()):g}", "Their sum must not exceed 1."
            )

    def invalid_settings(self, what: str, why: str) -> ConfigError:
        """Return the error for settings that no stream can have."""
        return ConfigError(
            f"{self.pattern.capitalize()} cannot be generated: {what}.",
            why=why,
            state="Nothing was sent.",
            remedy=f"Change the setting, for example `headrace generate {self.pattern} --rate 500 --late 2%`.",
            code="HR-121",
        )

    def random_generator(self, start_ms: int) -> random.Random:
        """Return where a stream draws from. Realistic, not secret."""
        return random.Random(f"{self.seed}/{start_ms}")  # noqa: S311

    def milliseconds(self, moment: datetime) -> int:
        """Return a moment as the simulation counts time."""
        if moment.tzinfo is None:
            raise self.invalid_settings(
                f"{moment.isoformat()} has no time zone", "A moment without a zone is ambiguous."
            )
        return int(moment.timestamp() * 1000)

    def events(self, from_: datetime, until: datetime | None = None) -> Iterator[GeneratedRecord]:
        """Yield the records that arrive from a moment on, in the order of their arrival, without waiting.

        Without `until` the stream never ends.
        """
        start = self.milliseconds(from_)
        numbers = count() if until is None else range(int((self.milliseconds(until) - start) * self.rate / 1000))
        simulation = self.simulation(self, start)
        draw, kinds = simulation.random, cycle(self.corruptions)
        repeated = self.malformed + self.duplicates
        special = repeated + self.late
        step_ms = 1000 / self.rate
        recent: deque[GeneratedRecord] = deque(maxlen=_REMEMBERED)
        for number in numbers:
            now = start + int(number * step_ms)
            chance = draw()
            if self.oversized and number == 0:
                record = _oversized(simulation.standalone_event(now), now)
            elif chance >= special:
                event = simulation.event(now)
                record = _record(event, now, event.kind or simulation.kind)
                recent.append(record)
            elif chance < self.malformed:
                kind = next(kinds)
                record = _malformed_record(simulation.standalone_event(now), now, kind, self.corruptions[kind])
            elif chance < repeated and recent:
                record = recent[int(draw() * len(recent))]._replace(arrival_ms=now, kind="duplicate")
            else:
                record = _record(simulation.late(now), now, "late")
            yield record

    def with_traffic(
        self, *, rate: float, late: float, duplicates: float, malformed: float, seed: int, oversized: bool = False
    ) -> Self:
        """Return it with other settings, of those that every pattern has; `headrace generate` calls this."""
        return replace(
            self, rate=rate, late=late, duplicates=duplicates, malformed=malformed, seed=seed, oversized=oversized
        )


def _record(event: GeneratedEvent, now: int, kind: str) -> GeneratedRecord:
    return GeneratedRecord(event.key, event.text.encode(), event.event_ms, now, kind, event.topic)


def _malformed_record(event: GeneratedEvent, now: int, kind: str, how: Corruption) -> GeneratedRecord:
    return GeneratedRecord(None if kind == "null_key" else event.key, how(event.text), None, now, kind, event.topic)


def _oversized(event: GeneratedEvent, now: int) -> GeneratedRecord:
    value = f'{event.text[:-1]},"note":"{"x" * _OVERSIZED_BYTES}"}}'
    return GeneratedRecord(event.key, value.encode(), None, now, "oversized", event.topic)


class DelayedSimulation:
    """A stream whose events arrive seconds late, sometimes minutes.

    It goes from its first moment on, makes one event at a time, and never goes back.
    """

    def __init__(self, settings: Traffic, start_ms: int) -> None:
        rng = settings.random_generator(start_ms)
        self.random, self._bits, self._seed = rng.random, rng.getrandbits, settings.seed
        self._delays = [_network_delay_ms(rng) for _ in range(4096)]

    def _delay(self) -> int:
        return self._delays[self._bits(12)]


class WeightedSimulation(DelayedSimulation, ABC):
    """A stream with a weighted choice of who sends next; the weights change every minute."""

    def __init__(self, settings: Traffic, start_ms: int) -> None:
        super().__init__(settings, start_ms)
        self._planned_until, self._weights = start_ms, [0.0]

    @abstractmethod
    def plan(self, now: int) -> Iterable[float]:
        """Return the weight of every choice for the next minute."""

    def _choose(self, now: int) -> int:
        """Draw a choice, by its index."""
        if now >= self._planned_until:
            self._weights = list(accumulate(self.plan(now)))
            self._planned_until = now - now % MINUTE_MS + MINUTE_MS
        return weighted_index(self._weights, self.random())


class IndependentEvents(DelayedSimulation, ABC):
    """A stream of events that do not refer to each other; late ones arrive up to an hour late."""

    @abstractmethod
    def event_at(self, event_ms: int) -> GeneratedEvent:
        """Return an event of this time."""

    def event(self, now: int) -> GeneratedEvent:
        """Return the next event that arrives on time."""
        return self.event_at(now - self._delay())

    def late(self, now: int) -> GeneratedEvent:
        """Return an event that arrives 20 to 60 minutes behind its time."""
        return self.event_at(now - int((20 + 40 * self.random()) * MINUTE_MS))

    def standalone_event(self, now: int) -> GeneratedEvent:
        """Return an event of this moment."""
        return self.event_at(now)


def weighted_index(weights: Sequence[float], draw: float) -> int:
    """Return the index that a draw from 0 to 1 selects by accumulated weights."""
    # The bound excludes an index after the list: a draw may round up to the sum.
    return bisect(weights, draw * weights[-1], 0, len(weights) - 1)


def _network_delay_ms(rng: random.Random) -> int:
    """Draw how long a phone takes to deliver an event: seconds, now and then minutes."""
    chance = rng.random()
    if chance < 0.85:
        return int(100 + 2_900 * rng.random())
    return int(3_000 + (42_000 if chance < 0.98 else 237_000) * rng.random())


@lru_cache(maxsize=8192)  # an hour of lateness, and then some
def _format_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def iso(event_ms: int) -> str:
    """Return a time as the events write it: `2026-11-16T05:10:00.000Z`."""
    seconds, millis = divmod(event_ms, 1000)
    return f"{_format_second(seconds)}.{millis:03d}Z"


def set_fields(**changes: object) -> Corruption:
    """Return what gives fields of an event other values."""
    return lambda event: _to_json({**json.loads(event), **changes})


def remove_field(field: str) -> Corruption:
    """Return what takes a field from an event."""
    return lambda event: _to_json({name: value for name, value in json.loads(event).items() if name != field})


def _to_json(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode()


def common_corruptions(text_field: str, time_field: str) -> dict[str, Corruption]:
    """Return the ways in which a record of any pattern goes wrong, by name."""
    opening = f'"{text_field}":"'.encode()
    return {
        "truncated": lambda event: event[: len(event) * 2 // 3].encode(),
        "time_a_number": set_fields(**{time_field: 12345}),
        "time_not_iso": set_fields(**{time_field: "yesterday"}),
        f"no_{time_field}": remove_field(time_field),
        "tombstone": lambda _: None,
        "empty": lambda _: b"",
        "array": lambda event: f"[{event}]".encode(),
        "json_null": lambda _: b"null",
        "number": lambda _: b"42",
        "far_future": set_fields(**{time_field: "2099-12-31T23:59:59.000Z"}),
        "not_utf8": lambda event: event.encode().replace(opening, opening + b"\xff\xfe", 1),
    }
