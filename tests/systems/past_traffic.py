"""A generator's records of fixed hours, whatever the time of the run: a failure can be repeated. How a feed ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Event, Thread

from headrace.clients.positions import end_offsets
from headrace.demos.feeder import Generator
from headrace.flow.target import Target
from headrace.patterns.traffic import GeneratedRecord

# Windows of a day that is over.
NOW = datetime(2026, 3, 2, 18, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Past:
    """The last hours before `NOW` of a generator."""

    records: Generator
    hours: float

    @property
    def topic(self) -> str:
        return self.records.topic

    def events(self, _from: datetime, _until: datetime | None = None) -> Iterator[GeneratedRecord]:
        return self.records.events(NOW - timedelta(hours=self.hours), NOW)


def set_by_records(target: Target, topic: str) -> Event:
    """Return an event that is set when records come into a topic of two partitions, which ends a feed into it."""
    places = [(topic, number) for number in range(2)]
    before, stop = end_offsets(target, places), Event()

    def watch() -> None:
        while end_offsets(target, places) == before:
            time.sleep(0.1)  # a broker gives no event when a topic grows
        stop.set()

    Thread(target=watch, daemon=True).start()
    return stop
