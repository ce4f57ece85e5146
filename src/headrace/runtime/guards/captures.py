"""Watches the captures that fill the topics of a flow: each sink that has one brings its watch (`WatchesCapture`)."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import HeadraceError
from headrace.flow.flow import Flow
from headrace.flow.sink import WatchesCapture, leaves
from headrace.flow.target import Target
from headrace.runtime.events import CaptureUnhealthy


class CaptureGuard:
    """The watches of one run of a flow. `begin` before it, `start` when it runs, `close` when it has ended."""

    def __init__(self, flow: Flow, target: Target, hear: Callable[[CaptureUnhealthy], None]) -> None:
        def troubled(capture: str, error: HeadraceError) -> None:
            hear(CaptureUnhealthy(flow.name, capture, error))

        sinks = [sink for _, sink in leaves(flow.sink) if isinstance(sink, WatchesCapture)]
        self._watches = [sink.watch_capture(flow.name, target, troubled) for sink in sinks]

    def begin(self) -> None:
        """Look once. Raises HR-522."""
        for watch in self._watches:
            watch.begin()

    def start(self, end: Callable[[HeadraceError], None]) -> None:
        """Keep looking, on threads of their own; `end` is called there with HR-522."""
        for watch in self._watches:
            watch.start(end)

    def close(self) -> None:
        """Stop looking. Returns at once."""
        for watch in self._watches:
            watch.close()
