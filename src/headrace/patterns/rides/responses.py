"""The responses of the API: the OpenAPI document is generated from these types.

Times are ISO 8601 in UTC. Money carries no currency: it is whatever the rides were paid in.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pydantic import ConfigDict, Field

from headrace.patterns.page import Response, ServerHealth
from headrace.patterns.rides.board import BoardSnapshot, CityState, CityWindow

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
