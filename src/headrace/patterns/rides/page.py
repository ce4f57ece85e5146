"""The live page of the cities: their newest windows, the history of one, and the changes of all."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Self, cast

from pydantic import BaseModel, Field

from headrace.errors import DataError
from headrace.patterns.page import Endpoint, NotFoundError, Page, PageUpdate, int_in_range
from headrace.patterns.rides import responses
from headrace.patterns.rides.board import (
    DEFAULT_HISTORY,
    MAX_HISTORY,
    BoardRow,
    BoardSnapshot,
    CityBoard,
    RideMetrics,
    SurgeReading,
)

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
    health_response = responses.HealthResponse

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
        unknown = responses.UnknownCityResponse
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
            return PageUpdate(snapshot.version, responses.CitiesResponse.of(snapshot, _now()))
        changed = [city for city in snapshot.cities.values() if city.version > since]
        body = responses.CitiesResponse.of(snapshot, _now(), changed) if changed else None
        return PageUpdate(snapshot.version, body)

    def health_fields(self) -> Mapping[str, object]:
        """Return the number of cities, and the age of the newest row."""
        snapshot = self.board.snapshot()
        freshness = responses.age(snapshot.as_of, _now())
        return {"cities": len(snapshot.cities), "as_of": snapshot.as_of, "freshness_seconds": freshness}

    def list_cities(self) -> responses.CitiesResponse:
        """Return the newest window of every city that has data, with its surge, sorted by name."""
        return responses.CitiesResponse.of(self.board.snapshot(), _now())

    def city_history(
        self,
        city: Annotated[str, Field(description="Name of the city, as `/cities` spells it.", max_length=200)],
        limit: Annotated[
            int, Field(ge=1, le=MAX_HISTORY, description="How many windows, counted from the newest.")
        ] = _DEFAULT_LIMIT,
    ) -> responses.HistoryResponse:
        """Return the newest windows of one city, oldest first."""
        snapshot = self.board.snapshot()
        state = snapshot.cities.get(city)
        if state is None:
            raise NotFoundError(_unknown(city, snapshot))
        windows = [responses.WindowResponse.of(window) for window in state.windows[-limit:]]
        return responses.HistoryResponse(city=city, available=len(state.windows), windows=windows)


def _unknown(city: str, snapshot: BoardSnapshot) -> responses.UnknownCityResponse:
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
    return responses.UnknownCityResponse(**problem.as_dict(), nearest=nearest)


def _now() -> datetime:
    return datetime.now(UTC)


PAGE = CityPage
