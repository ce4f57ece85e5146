"""Classes of custom state that the tests run in plain Python, over batches and over streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from headrace.transforms.keyed.keyed_state import EventTime, KeyedState, ProcessingTime
from headrace.transforms.keyed.state import ListOf, MapOf, Timers, ValueState
from headrace.transforms.keyed.state_types import Precision

if TYPE_CHECKING:
    from pyspark.sql import Row

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
GAP = timedelta(minutes=30)

CLICK = StructType(
    [
        StructField("user", StringType(), nullable=False),
        StructField("page", StringType(), nullable=False),
        StructField("ts", TimestampType(), nullable=False),
    ]
)


def click(user: str, page: str, minute: float) -> dict[str, object]:
    return {"user": user, "page": page, "ts": NOON + timedelta(minutes=minute)}


@dataclass
class Count:
    clicks: int


@dataclass
class Total:
    user: str
    clicks: int


class Counter(KeyedState[Count, Total]):
    """How many clicks a user has made so far."""

    def handle_rows(self, key: Row, rows: list[Row], state: ValueState[Count], timers: Timers) -> Iterator[Total]:
        before = state.value or Count(0)
        state.value = Count(before.clicks + len(rows))
        yield Total(key.user, state.value.clicks)


@dataclass
class Visit:
    began: datetime
    last: datetime
    pages: list[str]


@dataclass
class VisitEnd:
    user: str
    minute: int
    pages: list[str]
    why: str


class Visits(KeyedState[Visit, VisitEnd]):
    """A visit ends after half an hour of silence, or with the page `bye`."""

    clock = EventTime("ts")

    def handle_rows(self, key: Row, rows: list[Row], state: ValueState[Visit], timers: Timers) -> Iterator[VisitEnd]:
        for row in rows:
            visit = state.value
            if visit is not None and row.ts - visit.last > GAP:
                yield self._visit_end(key, visit, "silence")
                visit = None
            if visit is None:
                visit = state.value = Visit(row.ts, row.ts, [])
            visit.pages.append(row.page)
            visit.last = max(visit.last, row.ts)
            if row.page == "bye":
                yield self._visit_end(key, visit, "bye")
                state.value = None
        if state.value is None:
            for moment in timers.pending:
                timers.delete(moment)
        else:
            timers.register_only(state.value.last + GAP)

    def handle_timer(self, key: Row, at: datetime, state: ValueState[Visit], timers: Timers) -> Iterator[VisitEnd]:
        visit = state.value
        assert visit is not None
        yield self._visit_end(key, visit, "silence")
        state.clear()

    def _visit_end(self, key: Row, visit: Visit, why: str) -> VisitEnd:
        return VisitEnd(key.user, round((visit.began - NOON) / timedelta(minutes=1)), list(visit.pages), why)


@dataclass
class Place:
    city: str
    since: datetime | None


@dataclass
class Everything:
    """One field of each kind."""

    amount: Annotated[Decimal, Precision(10, 2)]
    day: date
    ratio: float
    recorded: bool
    raw: bytes
    place: Place
    places: list[Place]
    scores: dict[str, int]
    note: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass
class VisitState:
    k: str
    n: int
    before: Everything | None
    pages: list[str]
    last: list[str]


def everything(row: Row) -> Everything:
    place = Place("Lima", row.ts)
    return Everything(
        Decimal("1.50"), date(2026, 3, 2), 0.5, True, b"\x00\xff", place, [place, Place("Oslo", None)], {"a": 1}
    )


class Wide(KeyedState[Everything, VisitState]):
    """Returns what it stored in the previous call, of each kind of state."""

    pages = ListOf(str)
    observed = MapOf(str, Place)

    def handle_rows(
        self, key: Row, rows: list[Row], state: ValueState[Everything], timers: Timers
    ) -> Iterator[VisitState]:
        for row in rows:
            pages, last = list(state[self.pages]), sorted(f"{k}:{v.city}" for k, v in state[self.observed].items())
            yield VisitState(key.user, key.n, state.value, pages, last)
            state.value = everything(row)
            state[self.pages].append(row.page)
            state[self.observed][row.page] = Place("Lima", row.ts)


class Brief(KeyedState[Count, Total]):
    """Counts clicks, and forgets a user after a millisecond by the clock of the driver: with the next batch."""

    clock = ProcessingTime()
    ttl = "1 ms"

    def handle_rows(self, key: Row, rows: list[Row], state: ValueState[Count], timers: Timers) -> Iterator[Total]:
        state.value = Count((state.value.clicks if state.value else 0) + len(rows))
        yield Total(f"{type(self).__name__} {key.user}", state.value.clicks)


class Long(Brief):
    """The same, and forgets after a day."""

    ttl = "1 day"


@dataclass
class LaterCount:
    """What `Count` may become: a field more, with a default."""

    clicks: int
    pages: list[str] = field(default_factory=list)
    newest: str | None = None


@dataclass
class LaterTotal:
    user: str
    clicks: int
    pages: list[str]
    newest: str | None


class LaterCounter(KeyedState[LaterCount, LaterTotal]):
    """What `Counter` may become."""

    def handle_rows(
        self, key: Row, rows: list[Row], state: ValueState[LaterCount], timers: Timers
    ) -> Iterator[LaterTotal]:
        stored = state.value or LaterCount(0)
        yield LaterTotal(key.user, stored.clicks, list(stored.pages), stored.newest)
        stored.clicks += len(rows)
        stored.pages += [row.page for row in rows]
        state.value = stored


@dataclass
class OtherCount:
    """What `Count` may not become: the same field of another type."""

    clicks: str


class OtherCounter(KeyedState[OtherCount, Total]):
    def handle_rows(self, key: Row, rows: list[Row], state: ValueState[OtherCount], timers: Timers) -> Iterator[Total]:
        state.value = OtherCount("many")
        yield Total(key.user, len(rows))


WIDE_CLICK = StructType([*CLICK.fields, StructField("n", LongType(), nullable=False)])
