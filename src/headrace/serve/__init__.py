"""The web server: results that flows publish, as an API and a live page.

The server reads snapshots, never objects of the engine. Start it with `python -m headrace.serve`, or build
the application with `create_app` and run it where other services run.
"""

from headrace.serve.cities.app import create_app
from headrace.serve.cities.board import BoardSnapshot, CityBoard, RideMetrics, SurgeReading
from headrace.serve.cities.feed import Feed, FeedStatus, FeedTopics

__all__ = [
    "BoardSnapshot",
    "CityBoard",
    "Feed",
    "FeedStatus",
    "FeedTopics",
    "RideMetrics",
    "SurgeReading",
    "create_app",
]
