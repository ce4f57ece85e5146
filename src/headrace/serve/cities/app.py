"""The FastAPI application: routes over a city board, behind the security middleware.

A factory without global state: several applications can run in one process. The caller owns the board
and its feed; this module only reads.
"""

from collections.abc import Callable, Iterable
from importlib.metadata import version

from fastapi import FastAPI

from headrace.serve import page
from headrace.serve.assets import Assets
from headrace.serve.cities import routes
from headrace.serve.cities.board import CityBoard
from headrace.serve.cities.feed import FeedStatus
from headrace.serve.cities.live import LiveStreams, StreamIntervals
from headrace.serve.guard import LOOPBACK_NAMES, SecurityMiddleware

_DESCRIPTION = """\
What the ride analytics flows publish, city by city, in windows of five minutes.

Rows are corrected while their window is open: a later answer for the same window replaces an earlier one.
"""


def create_app(
    board: CityBoard,
    *,
    feed_status: Callable[[], FeedStatus] = FeedStatus,
    allowed_hosts: Iterable[str] = LOOPBACK_NAMES,
    pace: StreamIntervals | None = None,
) -> FastAPI:
    """Build the application that shows `board`.

    | argument      | default              | meaning                                              |
    |---------------|----------------------|------------------------------------------------------|
    | feed_status   | no feed              | asked for /health and for every event stream         |
    | allowed_hosts | names of loopback    | accepted Host names; others get 421                  |
    | pace          | see `StreamIntervals`           | how often event streams speak                        |
    """
    app = FastAPI(
        title="Headrace",
        summary="Live ride analytics.",
        description=_DESCRIPTION,
        version=version("headrace"),
        openapi_url="/api/v1/openapi.json",
        # FastAPI's own documentation pages load scripts from a CDN; /api/v1/docs is ours.
        docs_url=None,
        redoc_url=None,
    )
    app.state.board = board
    app.state.feed_status = feed_status
    app.state.live = LiveStreams(board, feed_status, pace or StreamIntervals())
    app.state.assets = Assets()
    app.include_router(routes.router, prefix="/api/v1")
    app.include_router(page.router)
    app.add_middleware(SecurityMiddleware, allowed_hosts=tuple(allowed_hosts))
    return app
