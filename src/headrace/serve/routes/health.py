"""The health route: whether the server has current data."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from fastapi import APIRouter, Request

from headrace.serve.cities.board import CityBoard
from headrace.serve.cities.feed import FeedStatus
from headrace.serve.cities.responses import FeedResponse, HealthResponse, age
from headrace.serve.live import LiveStreams

router = APIRouter(tags=["health"])


@router.get("/health", summary="Is the data current?")
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
