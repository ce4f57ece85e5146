"""The serving room: what flows have published, as an API and as a live page.

Serving reads snapshots, never live engine objects. Start it with `python -m headrace.serve`, or build
the application with `create_app` and run it where other services run.
"""

from headrace.serve.app import create_app
from headrace.serve.cities.board import CityBoard, RideMetrics, Snapshot, SurgeReading
from headrace.serve.cities.feed import Feed, FeedStatus, Topics

__all__ = [
    "CityBoard",
    "Feed",
    "FeedStatus",
    "RideMetrics",
    "Snapshot",
    "SurgeReading",
    "Topics",
    "create_app",
]
