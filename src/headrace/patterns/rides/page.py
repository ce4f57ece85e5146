"""The live page of the cities: their newest windows, the history of one, and the changes of all.

The OpenAPI document is generated from the types of the responses. Times are ISO 8601 in UTC. Money carries no currency:
it is whatever the rides were paid in.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Self, cast

from pydantic import BaseModel, ConfigDict, Field

from headrace.errors import DataError
from headrace.patterns.page import Endpoint, NotFoundError, Page, PageUpdate, Response, ServerHealth, int_in_range
from headrace.patterns.rides.board import (
    DEFAULT_HISTORY,
    MAX_HISTORY,
    BoardRow,
    BoardSnapshot,
    CityBoard,
    CityState,
    CityWindow,
    RideMetrics,
    SurgeReading,
)

RECENT = 24  # windows in a sparkline: two hours, as many points as a small card can show


class WindowResponse(Response):
    """One window of one city."""

    window_start: datetime = Field(description="When the window begins, inclusive.")
    window_end: datetime = Field(description="When the window ends, exclusive.")
    ride_count: int = Field(description="Rides of every counted status.")
    completed_rides: int = Field(description="Rides that reached their destination.")
    completion_rate: float = Field(description="Completed rides as a part of all rides, 0 to 1.")
    avg_fare: float | None = Field(description="Mean fare, null while no fare is known.")
    active_drivers: int = Field(description="Drivers seen, counted approximately.")
    surge_multiplier: float = Field(description="Price multiplier; 1.0 also while none is known.")
    total_requests: int | None = Field(description="Requests behind the surge, null while unknown.")
    active_rides: int | None = Field(description="Rides under way, null while unknown.")
    available_drivers: int | None = Field(description="Drivers free, null while unknown.")

    @classmethod
    def of(cls, window: CityWindow) -> WindowResponse:
        """Build the response from a window of the board."""
        return cls(**_window_fields(window))  # type: ignore[arg-type]


class RecentWindowResponse(Response):
    """One point of a sparkline."""

    window_start: datetime
    ride_count: int


class CityResponse(WindowResponse):
    """The newest window of one city, and the shape of the windows before it."""

    city: str
    windows: int = Field(description="Windows available for this city: the maximum length of its history.")
    updated_at: datetime = Field(description="When the newest row of this city was published.")
    recent: list[RecentWindowResponse] = Field(description=f"Up to {RECENT} newest windows, oldest first.")

    @classmethod
    def of_city(cls, city: CityState) -> CityResponse:
        """Build the response from a city of the board."""
        return cls(
            city=city.name,
            windows=len(city.windows),
            updated_at=city.updated_at,
            recent=[
                RecentWindowResponse(window_start=w.start, ride_count=w.rides.ride_count)
                for w in city.windows[-RECENT:]
            ],
            **_window_fields(city.latest),  # type: ignore[arg-type]
        )


class TotalsResponse(Response):
    """All cities together, in the newest window that any of them has reached."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    window_start: datetime
    window_end: datetime
    cities: int = Field(description="Cities that have reached this window; only these are summed.")
    ride_count: int
    completed_rides: int
    completion_rate: float
    avg_fare: float | None = Field(description="Mean of the cities' fares, weighted by completed rides.")
    active_drivers: int
    surging_cities: int = Field(description="Cities above 1.0 in this window or the one before it.")


class CitiesResponse(Response):
    """The board: every city that has data, by name."""

    version: int = Field(description="Grows with every change, within one run of the server.")
    as_of: datetime | None = Field(description="When the newest row was published; null before the first.")
    freshness_seconds: float | None = Field(description="Age of the newest row; null before the first.")
    windows: int = Field(description="Different windows on the board.")
    totals: TotalsResponse | None
    cities: list[CityResponse]

    @classmethod
    def of(cls, snapshot: BoardSnapshot, now: datetime, cities: Iterable[CityState] | None = None) -> CitiesResponse:
        """Build the response from a snapshot, for all cities or only some."""
        selected = snapshot.cities.values() if cities is None else cities
        return cls(
            version=snapshot.version,
            as_of=snapshot.as_of,
            freshness_seconds=age(snapshot.as_of, now),
            windows=snapshot.window_count,
            totals=TotalsResponse.model_validate(snapshot.totals) if snapshot.totals else None,
            cities=[CityResponse.of_city(city) for city in selected],
        )


class HistoryResponse(Response):
    """The windows of one city, oldest first."""

    city: str
    available: int = Field(description="Windows available for this city.")
    windows: list[WindowResponse]


class UnknownCityResponse(Response):
    """No such city, in the four parts of every Headrace error, with the name that was perhaps meant."""

    code: str
    error: str
    what: str
    why: str
    state: str
    remedy: str
    nearest: str | None = Field(description="The known city with the most similar name.")


class HealthResponse(ServerHealth):
    """Whether the server serves what it should.

    The answer is 200 as long as the process lives; `status` says whether its data can be trusted to be
    current.
    """

    cities: int
    as_of: datetime | None
    freshness_seconds: float | None


def age(moment: datetime | None, now: datetime) -> float | None:
    """Return the seconds from `moment` to `now`, never negative: clocks of two machines differ."""
    return None if moment is None else round(max(0.0, (now - moment).total_seconds()), 3)


def _window_fields(window: CityWindow) -> dict[str, object]:
    rides = window.rides.model_dump(exclude={"city"})
    surge = window.surge
    return {
        **rides,
        "surge_multiplier": window.multiplier,
        "total_requests": surge.total_requests if surge else None,
        "active_rides": surge.active_rides if surge else None,
        "available_drivers": surge.available_drivers if surge else None,
    }


_DEFAULT_LIMIT = 48  # four hours of 5-minute windows


@dataclass(frozen=True)
class CityPage(Page):
    """The page over a board. The topics are those of `RideSettings`."""

    title = "Live ride analytics."
    description = """\
What the ride analytics flows publish, city by city, in windows of five minutes.

Rows are corrected while their window is open: a later answer for the same window replaces an earlier one.
"""
    files = "headrace.patterns.rides"
    update_description = """\
Stream the board.

| event      | data                                                    | when                           |
|------------|---------------------------------------------------------|--------------------------------|
| `snapshot` | the answer of `/cities`                                  | once, on connect               |
| `change`   | the same, `cities` holding only those that changed       | at most four times a second    |
| `feed`     | the `feed` part of `/health`                             | on connect, with each heartbeat|

The id of an event is the version of the board.
"""
    health_response = HealthResponse

    board: CityBoard
    metrics_topic: str = "city-ride-metrics"
    surge_topic: str = "city-surge"

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Add the length of the history and the two topics."""
        history = int_in_range(1, MAX_HISTORY)
        parser.add_argument("--history", type=history, default=DEFAULT_HISTORY, help="windows kept per city")
        parser.add_argument("--metrics-topic", default=cls.metrics_topic, help="topic of the ride metrics")
        parser.add_argument("--surge-topic", default=cls.surge_topic, help="topic of the surge readings")

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> Self:
        """Create the page over an empty board."""
        return cls(CityBoard(history=options.history), options.metrics_topic, options.surge_topic)

    @property
    def topics(self) -> Mapping[str, type[BaseModel]]:
        """The topics of the two kinds of rows."""
        return {self.metrics_topic: RideMetrics, self.surge_topic: SurgeReading}

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """All cities, and the history of one."""
        unknown = UnknownCityResponse
        return (
            Endpoint("/cities", self.list_cities, "cities", "All cities, newest window each"),
            Endpoint("/cities/{city:path}/history", self.city_history, "cities", "Windows of one city", unknown),
        )

    @property
    def has_data(self) -> bool:
        """Whether a city has a window."""
        return bool(self.board.snapshot().cities)

    def apply(self, rows: Iterable[tuple[BaseModel, datetime]]) -> int:
        """Apply rows of both topics to the board."""
        return self.board.apply(cast("Iterable[tuple[BoardRow, datetime]]", rows))

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change of the board; return the function that ends this."""
        return self.board.subscribe(listener)

    def update(self, since: int | None = None) -> PageUpdate:
        """Return the cities that changed since a version of the board."""
        snapshot = self.board.snapshot()
        if since is None:
            return PageUpdate(snapshot.version, CitiesResponse.of(snapshot, _now()))
        changed = [city for city in snapshot.cities.values() if city.version > since]
        body = CitiesResponse.of(snapshot, _now(), changed) if changed else None
        return PageUpdate(snapshot.version, body)

    def health_fields(self) -> Mapping[str, object]:
        """Return the number of cities, and the age of the newest row."""
        snapshot = self.board.snapshot()
        freshness = age(snapshot.as_of, _now())
        return {"cities": len(snapshot.cities), "as_of": snapshot.as_of, "freshness_seconds": freshness}

    def list_cities(self) -> CitiesResponse:
        """Return the newest window of every city that has data, with its surge, sorted by name."""
        return CitiesResponse.of(self.board.snapshot(), _now())

    def city_history(
        self,
        city: Annotated[str, Field(description="Name of the city, as `/cities` spells it.", max_length=200)],
        limit: Annotated[
            int, Field(ge=1, le=MAX_HISTORY, description="How many windows, counted from the newest.")
        ] = _DEFAULT_LIMIT,
    ) -> HistoryResponse:
        """Return the newest windows of one city, oldest first."""
        snapshot = self.board.snapshot()
        state = snapshot.cities.get(city)
        if state is None:
            raise NotFoundError(_unknown(city, snapshot))
        windows = [WindowResponse.of(window) for window in state.windows[-limit:]]
        return HistoryResponse(city=city, available=len(state.windows), windows=windows)


def _unknown(city: str, snapshot: BoardSnapshot) -> UnknownCityResponse:
    nearest = snapshot.nearest(city)
    if nearest:
        remedy = f"Did you mean '{nearest}'? GET /api/v1/cities lists all names."
    elif snapshot.cities:
        remedy = "GET /api/v1/cities lists all names."
    else:
        remedy = "Start the ride analytics flows; cities appear with their first window."
    problem = DataError(
        f"There is no city '{city}' on the board.",
        why=f"None of the {len(snapshot.cities)} cities with data has this name.",
        state="Nothing was changed.",
        remedy=remedy,
        code="HR-580",
    )
    return UnknownCityResponse(**problem.as_dict(), nearest=nearest)


def _now() -> datetime:
    return datetime.now(UTC)


PAGE = CityPage
