"""Ride analytics on a real broker: what its tests send, run and compare."""

from __future__ import annotations

from headrace.clients.topics import create_topics
from headrace.demos.feeder import generate
from headrace.flow.flow import Flow
from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.patterns.rides.flows import RideSettings, flows
from headrace.patterns.rides.generator import generator
from systems.past_traffic import Past

KILLED = "killed"
# The flows of the driver that is killed, each with the batch in which that happens.
KILLED_IN = {"driver_metrics": 1}


def settings_for(name: str) -> RideSettings:
    return RideSettings(
        topic=f"{name}-events",
        city_topic=f"{name}-city",
        surge_topic=f"{name}-surge",
        alerts_topic=f"{name}-alerts",
        city_trigger=AvailableNow(),
        driver_trigger=AvailableNow(),
        max_offsets=5000,
    )


def flows_to_kill() -> list[Flow]:
    return [flow for flow in flows(settings_for(KILLED)) if flow.name in KILLED_IN]


def past_rides(rate: float, *, oversized: bool = False) -> Past:
    records = generator(rate=rate, late=0.03, duplicates=0.01, malformed=0.01, seed=11, oversized=oversized)
    return Past(records, hours=1.5)


def filled(target: Target, settings: RideSettings, records: Past) -> int:
    """Make the topics, send the records, and return how many there are."""
    # Large enough for the 5 MB record: the flow is to judge it, not the topic.
    create_topics(target.kafka, dict.fromkeys(settings.topics, 2), {"max.message.bytes": "10485760"})
    return generate(records, target, topic=settings.topic).records


def send_before_the_kill(target: Target) -> None:
    filled(target, settings_for(KILLED), past_rides(rate=3, oversized=True))
