"""The event stream of the board."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from headrace.serve.live import LiveStreams

router = APIRouter(tags=["live"])


class EventStream(StreamingResponse):
    """A stream of server-sent events."""

    media_type = "text/event-stream"


@router.get(
    "/events",
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
