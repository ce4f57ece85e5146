"""The ride demo's own part: its topics, its flows, and every row of every sink against the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.clients.positions import Partition
from headrace.clients.topics import create_topics
from headrace.demos.compare import Comparison, Row, Tolerance, table_rows, topic_rows
from headrace.demos.feeder import Sent, generate
from headrace.demos.model_inputs import Filed, ModelVerdict, boundaries, compare_filed, consumed, past
from headrace.demos.protocol import Scene
from headrace.flow.flow import SINGLE_INPUT, Flow
from headrace.flow.levers import Every
from headrace.flow.target import Target
from headrace.patterns.rides import flows as pattern
from headrace.patterns.rides import model
from headrace.patterns.rides.generator import generator
from headrace.patterns.window_model import WindowFlow, replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# approx_count_distinct has a standard error of 5 %. Four of them are exceeded once in 16,000 windows; below ten drivers
# one collision in the sketch is more than that, hence the two.
_DRIVERS = Tolerance("active_drivers", share=0.2, least=2)


def _models(settings: pattern.RideSettings) -> dict[str, WindowFlow[model.Ride, Any]]:
    """Return the model of each flow, with the statuses and the surge pricing of the settings."""
    multiplier = partial(model.surge_multiplier, **asdict(settings.surge_pricing))
    return {
        "city_rides": model.city_rides(settings.statuses),
        "surge": model.surge(settings.statuses, multiplier),
        "driver_metrics": model.DRIVER_METRICS,
    }


def compare(spark: SparkSession, target: Target, flows: Sequence[Flow], settings: pattern.RideSettings) -> Comparison:
    """Compare every row of every sink, every late row and every bad row with the model.

    The model gets the records of the topic and the batches' boundaries from the offset logs, and nothing else. Called
    when the flows have stopped.
    """
    records, models = consumed(target, settings.topic), _models(settings)
    found = Comparison()
    for flow in flows:
        batches = [batch[SINGLE_INPUT] for batch in boundaries(spark, target, flow)]
        outcome = replay(records, batches, models[flow.name])
        rows: list[Row] = [asdict(row) for batch in outcome.batches for row in batch]
        _compare_sinks(found, _Where(spark, target, settings), flow.name, rows)
        compare_filed(found, spark, target, flow.name, Filed(outcome.bad, outcome.late))
    return found


def _compare_sinks(found: Comparison, where: _Where, flow: str, expected: list[Row]) -> None:
    settings, target = where.settings, where.target
    match flow:
        case "city_rides":
            topic = settings.city_topic
            found.add(f"kafka:{topic}", expected, topic_rows(target, topic), repeats_allowed=True, tolerance=_DRIVERS)
        case "surge":
            alerts = [row for row in expected if row["surge_multiplier"] != 1.0]
            for topic, rows in ((settings.surge_topic, expected), (settings.alerts_topic, alerts)):
                found.add(f"kafka:{topic}", rows, topic_rows(target, topic), repeats_allowed=True)
        case _:
            for kind, path in (("delta", settings.driver_table), ("parquet", settings.driver_files)):
                found.add(f"{kind}:{path}", expected, table_rows(where.spark, kind, target.table(path)))


class _Where(NamedTuple):
    spark: SparkSession
    target: Target
    settings: pattern.RideSettings


@dataclass(frozen=True)
class RidesDemo:
    """Ride analytics with its usual numbers, but for the drivers' trigger: five minutes are long to wait for."""

    title: str = "Ride analytics: cities live, surge alerts, driver metrics"
    parts: tuple[str, ...] = ("kafka",)
    has_page: bool = True
    spark: Mapping[str, str] = field(default_factory=dict)
    settings: pattern.RideSettings = field(
        default_factory=lambda: pattern.RideSettings(driver_trigger=Every("30 seconds"))
    )

    def prepare(self, scene: Scene) -> None:
        """Make the four topics of the pattern, two partitions each: one per core of a small machine."""
        create_topics(scene.target.kafka, dict.fromkeys(self.settings.topics, 2))

    def feed(self, scene: Scene, stop: Event) -> Sent:
        """Send the recent past at once, then ride traffic with late, repeated and malformed records in it."""
        wanted = scene.settings
        traffic = generator(rate=wanted.rate, late=0.02, duplicates=0.01, malformed=0.005, seed=wanted.seed)
        return generate(traffic, scene.target, backfill=past(scene.target, traffic.topic, wanted), stop=stop)

    def flows(self) -> Sequence[Flow]:
        """Return city rides, surge and driver metrics."""
        return pattern.flows(self.settings)

    def status(self, scene: Scene, spark: SparkSession) -> Sequence[str]:
        """Return nothing: the page shows how it stands."""
        return ()

    def awaited(self, scene: Scene) -> Mapping[str, Mapping[Partition, int]]:
        """Return each flow, without offsets: once it has read something, the model replays what there was."""
        return {flow.name: {} for flow in self.flows()}

    def compare(self, scene: Scene, spark: SparkSession) -> ModelVerdict:
        """Compare every row of every sink with the model."""
        return ModelVerdict(compare(spark, scene.target, self.flows(), self.settings))


DEMO = RidesDemo()
