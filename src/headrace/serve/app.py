"""The FastAPI application of a page: its API, its event stream and its files, behind the security middleware.

A factory without global state: several applications can run in one process. The caller owns the page
and its feed; this module only reads.
"""

from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Literal

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from headrace.clients.topic_feed import FeedStatus
from headrace.patterns.page import FeedResponse, NotFoundError, Page, ServerHealth
from headrace.serve.assets import Assets
from headrace.serve.guard import LOOPBACK_NAMES, SecurityMiddleware
from headrace.serve.live import LiveStreams, StreamIntervals

_API = "/api/v1"


class EventStream(StreamingResponse):
    """A stream of server-sent events."""

    media_type = "text/event-stream"


def create_app(
    page: Page,
    *,
    feed_status: Callable[[], FeedStatus] = FeedStatus,
    allowed_hosts: Iterable[str] = LOOPBACK_NAMES,
    pace: StreamIntervals | None = None,
) -> FastAPI:
    """Build the application that shows `page`.

    | argument      | default              | meaning                                              |
    |---------------|----------------------|------------------------------------------------------|
    | feed_status   | no feed              | asked for /health and for every event stream         |
    | allowed_hosts | names of loopback    | accepted Host names; others get 421                  |
    | pace          | see `StreamIntervals`           | how often event streams speak                        |
    """
    app = FastAPI(
        title="Headrace",
        summary=page.title,
        description=page.description,
        version=version("headrace"),
        openapi_url=f"{_API}/openapi.json",
        # FastAPI's own documentation pages load scripts from a CDN; /api/v1/docs is ours.
        docs_url=None,
        redoc_url=None,
    )
    live = LiveStreams(page, feed_status, pace or StreamIntervals())
    app.state.live = live
    for endpoint in page.endpoints:
        not_found = {"model": endpoint.not_found, "description": "Nothing has this name."}
        app.add_api_route(
            _API + endpoint.path,
            endpoint.function,
            tags=[endpoint.tag],
            summary=endpoint.summary,
            responses={404: not_found} if endpoint.not_found else None,
        )
    app.add_api_route(
        f"{_API}/events",
        _events,
        name="events",
        tags=["live"],
        summary="Live changes, as server-sent events",
        description=page.update_description,
        response_class=EventStream,
        responses={503: {"description": "Too many open streams; try again later."}},
    )

    def health() -> ServerHealth:
        """Report the status of the server and of the feed behind it."""
        feed = feed_status()
        status: Literal["ok", "waiting", "degraded"] = "ok" if page.has_data else "waiting"
        server = {
            "status": "degraded" if feed.state in ("unreachable", "stopped") else status,
            "version": app.version,
            "live_connections": live.connections,
            "feed": FeedResponse.of(feed),
        }
        return page.health_response.model_validate(server | dict(page.health_fields()))

    response, summary = page.health_response, "Is the data current?"
    app.add_api_route(f"{_API}/health", health, tags=["health"], summary=summary, response_model=response)
    app.add_exception_handler(NotFoundError, _not_found)
    _add_files(app, Assets(page.files))
    app.add_middleware(SecurityMiddleware, allowed_hosts=tuple(allowed_hosts))
    return app


def _add_files(app: FastAPI, assets: Assets) -> None:
    """Add the routes of the files: the page, its scripts and styles, and the reference of the API."""
    # The reference is drawn by the page from the OpenAPI document. Some clients request /favicon.ico directly.
    pages = {"/": "index.html", f"{_API}/docs": "reference.html", "/favicon.ico": "icon.svg"}

    def page_route(name: str) -> Callable[[Request], Response]:
        def send_page(request: Request) -> Response:
            return assets.page(name).respond(request, immutable=False)

        return send_page

    def send_asset(request: Request, digest: str, name: str) -> Response:
        file = assets.find(digest, name)
        if file is None:
            raise HTTPException(status_code=404)
        return file.respond(request)

    for path, name in pages.items():
        app.add_api_route(path, page_route(name), include_in_schema=False)
    app.add_api_route("/assets/{digest}/{name}", send_asset, include_in_schema=False)


async def _events(request: Request) -> Response:
    live: LiveStreams = request.app.state.live
    if live.full:
        refusal = {"what": "Too many event streams are open.", "remedy": "Close some pages and try again."}
        return JSONResponse(refusal, status_code=503, headers={"retry-after": "10"})
    # A proxy that buffers would hold back a live stream.
    return EventStream(live.stream(), headers={"x-accel-buffering": "no"})


def _not_found(_request: Request, error: Exception) -> Response:
    assert isinstance(error, NotFoundError)  # noqa: S101 - the handler of this class
    return JSONResponse(error.body.model_dump(), status_code=404)
