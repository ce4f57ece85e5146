"""The current state of all cities, as the live page shows it.

Rows arrive in any number, twice, and with later rows correcting earlier ones; readers want one
consistent picture. The board decouples the two:

    feed thread ── apply(rows) ──> CityBoard ── snapshot() ──> CityPage (any thread)

A window is identified by (city, start). A later row for the same window replaces the earlier one,
and an identical row changes nothing, so a replay of the topic is invisible. Ride metrics
and surge readings meet here: a window is shown once its ride metrics are known, and carries the surge
of the same window when that has arrived.

This module does no input or output, and has no clock: the time of a row comes with the row.
"""

import difflib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Annotated, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, StringConstraints

log = logging.getLogger(__name__)

DEFAULT_HISTORY = 288  # one day of 5-minute windows
MAX_HISTORY = 2016  # one week of them: about 15 MB for a dozen cities, still instant to send
MAX_CITIES = 1000  # a topic keyed by something else than city must not fill the memory

CityName = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=120)]


class _Row(BaseModel):
    # Columns that a later version of the flow adds are not this page's business.
    model_config = ConfigDict(frozen=True, extra="ignore")

    city: CityName
    window_start: AwareDatetime
    window_end: AwareDatetime


class RideMetrics(_Row):
    """One row of `city-ride-metrics`: what happened in a city in one window, as known so far."""

    ride_count: NonNegativeInt
    completed_rides: NonNegativeInt
    avg_fare: FiniteFloat | None
    active_drivers: NonNegativeInt
    completion_rate: Annotated[FiniteFloat, Field(ge=0, le=1)]


class SurgeReading(_Row):
    """One row of `city-surge`: the price multiplier of a city in one window, and its causes."""

    total_requests: NonNegativeInt
    active_rides: NonNegativeInt
    available_drivers: NonNegativeInt
    surge_multiplier: Annotated[FiniteFloat, Field(ge=1)]


BoardRow = RideMetrics | SurgeReading
_R = TypeVar("_R", RideMetrics, SurgeReading)


@dataclass(frozen=True, slots=True)
class CityWindow:
    """One window of one city: its rides, and its surge when that is known."""

    rides: RideMetrics
    surge: SurgeReading | None

    @property
    def start(self) -> datetime:
        """Return when the window begins, inclusive."""
        return self.rides.window_start

    @property
    def multiplier(self) -> float:
        """Return the surge multiplier, 1.0 while no reading has arrived."""
        return self.surge.surge_multiplier if self.surge else 1.0


@dataclass(frozen=True, slots=True)
class CityState:
    """One city with at least one window, oldest first."""

    name: str
    windows: tuple[CityWindow, ...]
    updated_at: datetime
    version: int

    @property
    def latest(self) -> CityWindow:
        """Return the newest window that has ride metrics."""
        return self.windows[-1]


@dataclass(frozen=True)
class Totals:
    """All cities taken together, in the newest window that any of them has reached.

    Cities that have not reached that window yet are left out of the sums. A surge counts while it is
    at most one window old: when a window turns, the price does not drop to calm for some seconds.
    """

    window_start: datetime
    window_end: datetime
    cities: int
    ride_count: int
    completed_rides: int
    completion_rate: float
    avg_fare: float | None
    active_drivers: int
    surging_cities: int


@dataclass(frozen=True)
class BoardSnapshot:
    """An immutable snapshot of the board. A newer snapshot has a higher version."""

    version: int
    as_of: datetime | None
    cities: Mapping[str, CityState]

    @cached_property
    def totals(self) -> Totals | None:
        """Return the sums over the newest window, or None before the first row."""
        if not self.cities:
            return None
        newest = max((city.latest.rides for city in self.cities.values()), key=lambda rides: rides.window_start)
        current = [c.latest for c in self.cities.values() if c.latest.start == newest.window_start]
        rides = sum(w.rides.ride_count for w in current)
        completed = sum(w.rides.completed_rides for w in current)
        # A fare is known for completed rides only, so these are the weights of the mean.
        fares = [(w.rides.avg_fare, w.rides.completed_rides) for w in current if w.rides.avg_fare is not None]
        weight = sum(count for _, count in fares)
        previous_start = newest.window_start - (newest.window_end - newest.window_start)
        return Totals(
            window_start=newest.window_start,
            window_end=newest.window_end,
            cities=len(current),
            ride_count=rides,
            completed_rides=completed,
            completion_rate=completed / rides if rides else 0.0,
            avg_fare=sum(fare * count for fare, count in fares) / weight if weight else None,
            active_drivers=sum(w.rides.active_drivers for w in current),
            surging_cities=sum(
                c.latest.multiplier > 1 and c.latest.start >= previous_start for c in self.cities.values()
            ),
        )

    @cached_property
    def window_count(self) -> int:
        """Return how many different windows are on the board."""
        return len({w.start for city in self.cities.values() for w in city.windows})

    def nearest(self, name: str) -> str | None:
        """Return the city whose name is most like `name`, whatever its case, or None."""
        by_folded = {city.casefold(): city for city in self.cities}
        close = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.5)
        return by_folded[close[0]] if close else None


class _CityHistory:
    """The windows of one city. The oldest are dropped when the limit is reached."""

    def __init__(self) -> None:
        self.rides: dict[datetime, RideMetrics] = {}
        self.surges: dict[datetime, SurgeReading] = {}
        self.shown: CityState | None = None
        self.changed_at: datetime | None = None
        self.version = 0

    def put(self, row: BoardRow, limit: int) -> bool:
        """Store the row; return whether it changed anything."""
        if isinstance(row, RideMetrics):
            return _put(self.rides, row.window_start, row, limit)
        return _put(self.surges, row.window_start, row, limit)

    def show(self, name: str) -> CityState | None:
        """Return an immutable snapshot of the city, rebuilt only after a change."""
        if self.rides and self.changed_at and (self.shown is None or self.shown.version != self.version):
            windows = tuple(CityWindow(self.rides[s], self.surges.get(s)) for s in sorted(self.rides))
            self.shown = CityState(name, windows, self.changed_at, self.version)
        return self.shown


class CityBoard:
    """The latest windows of every city. Safe to use from any thread.

    `apply` is called by one feed; `snapshot` by every reader, as often as it likes: the same value is
    returned until something changes. Listeners run on the thread that applied the rows, after the
    change is visible, once per `apply`; they must not block.
    """

    def __init__(self, *, history: int = DEFAULT_HISTORY, max_cities: int = MAX_CITIES) -> None:
        if not 1 <= history <= MAX_HISTORY:
            msg = f"history must lie between 1 and {MAX_HISTORY} windows, not {history}"
            raise ValueError(msg)
        self.history = history
        self._max_cities = max_cities
        self._lock = threading.Lock()
        self._cities: dict[str, _CityHistory] = {}
        self._version = 0
        self._as_of: datetime | None = None
        self._snapshot = BoardSnapshot(0, None, {})
        self._listeners: set[Callable[[], None]] = set()

    def apply(self, rows: Iterable[tuple[BoardRow, datetime]]) -> int:
        """Apply rows with their publish times, and return how many changed the board."""
        changed = 0
        with self._lock:
            for row, published_at in rows:
                changed += self._put(row, published_at)
            listeners = tuple(self._listeners) if changed else ()
        for listener in listeners:
            listener()
        return changed

    def snapshot(self) -> BoardSnapshot:
        """Return the board as it is now."""
        with self._lock:
            if self._snapshot.version != self._version:
                shown = ((name, self._cities[name].show(name)) for name in sorted(self._cities))
                cities = {name: city for name, city in shown if city is not None}
                self._snapshot = BoardSnapshot(self._version, self._as_of, cities)
            return self._snapshot

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change; return the function that ends this."""
        with self._lock:
            self._listeners.add(listener)

        def end() -> None:
            with self._lock:
                self._listeners.discard(listener)

        return end

    def _put(self, row: BoardRow, published_at: datetime) -> bool:
        city = self._cities.get(row.city)
        if city is None:
            if len(self._cities) >= self._max_cities:
                log.warning("City %r is ignored: the board already has %d cities.", row.city, self._max_cities)
                return False
            city = self._cities[row.city] = _CityHistory()
        if not city.put(row, self.history):
            return False
        self._version += 1
        city.version = self._version
        city.changed_at = max(published_at, city.changed_at or published_at)
        self._as_of = max(published_at, self._as_of or published_at)
        return True


def _put(rows: dict[datetime, _R], start: datetime, row: _R, limit: int) -> bool:
    if rows.get(start) == row:
        return False
    rows[start] = row
    if len(rows) > limit:
        oldest = min(rows)
        del rows[oldest]
        return oldest != start
    return True
