"""The API of the cities: their newest windows, the history of one, the event stream, and the health of the feed."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from headrace.errors import DataError
from headrace.serve.cities.board import MAX_HISTORY, BoardSnapshot, CityBoard
from headrace.serve.cities.feed import FeedStatus
from headrace.serve.cities.live import LiveStreams
from headrace.serve.cities.responses import (
    CitiesResponse,
    FeedResponse,
    HealthResponse,
    HistoryResponse,
    UnknownCityResponse,
    WindowResponse,
    age,
)

router = APIRouter()

_DEFAULT_LIMIT = 48  # four hours of 5-minute windows


@router.get("/cities", tags=["cities"], summary="All cities, newest window each")
def list_cities(request: Request) -> CitiesResponse:
    """Return the newest window of every city that has data, with its surge, sorted by name."""
    return CitiesResponse.of(_snapshot(request), datetime.now(UTC))


@router.get(
    "/cities/{city:path}/history",
    tags=["cities"],
    summary="Windows of one city",
    response_model=HistoryResponse,
    responses={404: {"model": UnknownCityResponse, "description": "No such city on the board."}},
)
def city_history(
    request: Request,
    city: Annotated[str, Path(description="Name of the city, as `/cities` spells it.", max_length=200)],
    limit: Annotated[
        int, Query(ge=1, le=MAX_HISTORY, description="How many windows, counted from the newest.")
    ] = _DEFAULT_LIMIT,
) -> HistoryResponse | JSONResponse:
    """Return the newest windows of one city, oldest first."""
    snapshot = _snapshot(request)
    city_state = snapshot.cities.get(city)
    if city_state is None:
        return JSONResponse(_unknown(city, snapshot).model_dump(), status_code=404)
    windows = [WindowResponse.of(window) for window in city_state.windows[-limit:]]
    return HistoryResponse(city=city, available=len(city_state.windows), windows=windows)


class EventStream(StreamingResponse):
    """A stream of server-sent events."""

    media_type = "text/event-stream"


@router.get(
    "/events",
    tags=["live"],
    summary="Live changes, as server-sent events",
    response_class=EventStream,
    responses={503: {"description": "Too many open streams; try again later."}},
)
async def events(request: Request) -> Response:
    """Stream the board.

    | event      | data                                                    | when                           |
    |------------|---------------------------------------------------------|--------------------------------|
    | `snapshot` | the answer of `/cities`                                  | once, on connect               |
    | `change`   | the same, `cities` holding only those that changed       | at most four times a second    |
    | `feed`     | the `feed` part of `/health`                             | on connect, with each heartbeat|

    The id of an event is the version of the board.
    """
    live: LiveStreams = request.app.state.live
    if live.full:
        refusal = {"what": "Too many event streams are open.", "remedy": "Close some pages and try again."}
        return JSONResponse(refusal, status_code=503, headers={"retry-after": "10"})
    # A proxy that buffers would hold back a live stream.
    return EventStream(live.stream(), headers={"x-accel-buffering": "no"})


@router.get("/health", tags=["health"], summary="Is the data current?")
def health(request: Request) -> HealthResponse:
    """Report the status of the server and of the feed behind it."""
    board: CityBoard = request.app.state.board
    live: LiveStreams = request.app.state.live
    feed: FeedStatus = request.app.state.feed_status()
    snapshot = board.snapshot()
    status: Literal["ok", "waiting", "degraded"]
    if feed.state in ("unreachable", "stopped"):
        status = "degraded"
    elif snapshot.cities:
        status = "ok"
    else:
        status = "waiting"
    return HealthResponse(
        status=status,
        version=request.app.version,
        cities=len(snapshot.cities),
        as_of=snapshot.as_of,
        freshness_seconds=age(snapshot.as_of, datetime.now(UTC)),
        live_connections=live.connections,
        feed=FeedResponse.of(feed),
    )


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


def _snapshot(request: Request) -> BoardSnapshot:
    board: CityBoard = request.app.state.board
    return board.snapshot()
