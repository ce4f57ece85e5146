"""The routes of the server besides those of the cities: the event stream, the health, and the page with its files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from headrace.serve.assets import Assets
from headrace.serve.cities.board import CityBoard
from headrace.serve.cities.feed import FeedStatus
from headrace.serve.cities.responses import FeedResponse, HealthResponse, age
from headrace.serve.live import LiveStreams

api = APIRouter()
page = APIRouter(include_in_schema=False)


class EventStream(StreamingResponse):
    """A stream of server-sent events."""

    media_type = "text/event-stream"


@api.get(
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


@api.get("/health", tags=["health"], summary="Is the data current?")
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


@page.get("/")
def cities_page(request: Request) -> Response:
    """Send the live page of the cities."""
    return _page_files(request).page("index.html").respond(request, immutable=False)


@page.get("/api/v1/docs")
def reference_page(request: Request) -> Response:
    """Send the reference of the API, drawn by the page from the OpenAPI document."""
    return _page_files(request).page("reference.html").respond(request, immutable=False)


@page.get("/favicon.ico")
def icon(request: Request) -> Response:
    """Send the icon to clients that request /favicon.ico directly."""
    return _page_files(request).page("icon.svg").respond(request, immutable=False)


@page.get("/assets/{digest}/{name}")
def asset(request: Request, digest: str, name: str) -> Response:
    """Send one file of the page."""
    file = _page_files(request).find(digest, name)
    if file is None:
        raise HTTPException(status_code=404)
    return file.respond(request)


def _page_files(request: Request) -> Assets:
    assets: Assets = request.app.state.assets
    return assets
