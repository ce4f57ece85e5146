"""A generator's records of fixed hours, whatever the time of the run: a failure can be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from headrace.demos.feeder import Generated, Generator

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

    def events(self, _from: datetime, _until: datetime | None = None) -> Iterator[Generated]:
        return self.records.events(NOW - timedelta(hours=self.hours), NOW)
