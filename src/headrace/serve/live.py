"""Server-sent events: push changes of a page to every browser that shows it.

A connection stores one number, the version it has sent last. When the page changes, it wakes up, waits
a moment for more changes, and sends what is newer. A slow client needs no buffer: while its socket is full,
later changes replace earlier ones in the page.

A reconnecting client gets everything again. That is small, and right after any kind of gap, also
after a restart of the server, so `Last-Event-ID` is accepted and needs no attention.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass

from headrace.clients.topic_feed import FeedStatus
from headrace.patterns.page import FeedResponse, Page


@dataclass(frozen=True)
class StreamIntervals:
    """How often an event stream sends, in seconds.

    | field     | default | reason                                                                 |
    |-----------|---------|------------------------------------------------------------------------|
    | coalesce  | 0.25    | four updates a second look live; one batch of the flow becomes one      |
    | heartbeat | 10      | below the 30 s after which proxies and the page take silence for death  |
    | retry     | 2       | the page is back soon after a restart, without hammering the port       |
    """

    coalesce: float = 0.25
    heartbeat: float = 10.0
    retry: float = 2.0


class LiveStreams:
    """All open event streams of one application. Created once, used on the event loop."""

    # A browser tab holds one stream; hundreds of them on a local page are a leak or an attack.
    MAX_CONNECTIONS = 200

    def __init__(self, page: Page, feed_status: Callable[[], FeedStatus], pace: StreamIntervals) -> None:
        self._page = page
        self._feed_status = feed_status
        self._pace = pace
        self._wakers: set[asyncio.Event] = set()
        self._closed = False

    @property
    def connections(self) -> int:
        """Return how many streams are open."""
        return len(self._wakers)

    @property
    def full(self) -> bool:
        """Return whether one more stream would be too many."""
        return self.connections >= self.MAX_CONNECTIONS

    def close(self) -> None:
        """End every stream, so that the server can stop without waiting for its clients."""
        self._closed = True
        for waker in self._wakers:
            waker.set()

    async def stream(self) -> AsyncIterator[str]:
        """Yield the snapshot, then changes and heartbeats, until the client leaves or `close`."""
        waker = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            # Called on the feed's thread, perhaps while this loop is shutting down.
            if not waker.is_set():
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(waker.set)

        stop_listening = self._page.subscribe(wake)
        self._wakers.add(waker)
        if self._closed:
            waker.set()
        try:
            sent, everything = self._page.update()
            feed = FeedResponse.of(self._feed_status())
            yield f"retry: {int(self._pace.retry * 1000)}\n\n"
            if everything is not None:
                yield _event("snapshot", everything.model_dump_json(), sent)
            yield _event("feed", feed.model_dump_json())
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(waker.wait(), self._pace.heartbeat)
                if self._closed:
                    return
                if not waker.is_set():
                    # The comment keeps proxies awake; the page sees only events, so it gets one too.
                    yield ": heartbeat\n\n" + _event("feed", FeedResponse.of(self._feed_status()).model_dump_json())
                    continue
                await asyncio.sleep(self._pace.coalesce)
                waker.clear()
                sent, changes = self._page.update(sent)
                if changes is not None:
                    yield _event("change", changes.model_dump_json(), sent)
        finally:
            stop_listening()
            self._wakers.discard(waker)


def _event(name: str, data: str, identity: int | None = None) -> str:
    # JSON as pydantic writes it has no line breaks, so one data line is always enough.
    head = f"id: {identity}\n" if identity is not None else ""
    return f"{head}event: {name}\ndata: {data}\n\n"
