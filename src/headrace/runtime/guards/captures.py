"""Watches the captures that fill the topics of a flow, through sinks that implement `WatchesCapture`."""

from collections.abc import Callable

from pyspark.sql import SparkSession

from headrace.errors import HeadraceError
from headrace.flow.flow import Flow
from headrace.flow.sink import WatchesCapture, leaf_sinks
from headrace.flow.target import Target
from headrace.runtime.events import CaptureUnhealthy
from headrace.runtime.guards.guard import Guard, Stop


class CaptureGuard(Guard):
    """The capture watches of one run of a flow."""

    def __init__(self, flow: Flow, target: Target, on_event: Callable[[CaptureUnhealthy], None], stop: Stop) -> None:
        def on_problem(capture: str, error: HeadraceError) -> None:
            on_event(CaptureUnhealthy(flow.name, capture, error))

        sinks = [sink for _, sink in leaf_sinks(flow.sink) if isinstance(sink, WatchesCapture)]
        self._watches = [sink.watch_capture(flow.name, target, on_problem) for sink in sinks]
        self._stop = stop

    def before_start(self, session: SparkSession) -> None:
        """Check once, which raises HR-522, then regularly on separate threads, which stop the query with HR-522."""
        self.check()
        for watch in self._watches:
            watch.start(self._stop)

    def check(self) -> None:
        """Check once. Raises HR-522."""
        for watch in self._watches:
            watch.check()

    def on_end(self, error: HeadraceError | None) -> HeadraceError | None:
        """Stop checking. Returns immediately."""
        for watch in self._watches:
            watch.stop()
        return error
