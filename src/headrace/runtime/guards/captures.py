"""Watches the captures that fill the topics of a flow, through sinks that implement `WatchesCapture`."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import HeadraceError
from headrace.flow.flow import Flow
from headrace.flow.sink import WatchesCapture, leaf_sinks
from headrace.flow.target import Target
from headrace.runtime.events import CaptureUnhealthy


class CaptureGuard:
    """The capture watches of one run of a flow. Call `begin` before it, `start` when it runs, `close` at its end."""

    def __init__(self, flow: Flow, target: Target, on_event: Callable[[CaptureUnhealthy], None]) -> None:
        def on_problem(capture: str, error: HeadraceError) -> None:
            on_event(CaptureUnhealthy(flow.name, capture, error))

        sinks = [sink for _, sink in leaf_sinks(flow.sink) if isinstance(sink, WatchesCapture)]
        self._watches = [sink.watch_capture(flow.name, target, on_problem) for sink in sinks]

    def begin(self) -> None:
        """Check once. Raises HR-522."""
        for watch in self._watches:
            watch.begin()

    def start(self, on_loss: Callable[[HeadraceError], None]) -> None:
        """Check regularly on separate threads, which call `on_loss` with HR-522."""
        for watch in self._watches:
            watch.start(on_loss)

    def close(self) -> None:
        """Stop checking. Returns immediately."""
        for watch in self._watches:
            watch.close()
