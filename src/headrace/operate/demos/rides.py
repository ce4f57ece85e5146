"""The ride demo's own part: its topics, its flows, and every row of every sink against the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.clients.filesystem import files_for
from headrace.clients.kafka import newest_timestamp, read_topic
from headrace.clients.positions import Partition
from headrace.clients.topics import create_topics
from headrace.flow.flow import Flow
from headrace.flow.levers import Every
from headrace.flow.target import Target
from headrace.observe.flow_audit import late_table, quarantine_table
from headrace.operate.compare import Comparison, Row, Tolerance, table_rows, topic_rows
from headrace.operate.generate import Sent, generate
from headrace.operate.scene import Scene
from headrace.patterns.rides import flows as pattern
from headrace.patterns.rides import model
from headrace.patterns.rides.generator import generator
from headrace.runtime.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# approx_count_distinct has a standard error of 5 %. Four of them are exceeded once in 16,000 windows; below ten drivers
# one collision in the sketch is more than that, hence the two.
_DRIVERS = Tolerance("active_drivers", share=0.2, least=2)

# The most differences that are printed.
_FEW = 20

_MODELS: dict[str, model.RideFlow[Any]] = {
    "city_rides": model.CITY_RIDES,
    "surge": model.SURGE,
    "driver_metrics": model.DRIVER_METRICS,
}


def compare(spark: SparkSession, target: Target, flows: Sequence[Flow], settings: pattern.RideSettings) -> Comparison:
    """Compare every row of every sink, every late row and every bad row with the model.

    The model gets the records of the topic and the batches' boundaries from the offset logs, and nothing else. Called
    when the flows have stopped.
    """
    records = [
        model.Consumed(
            message.partition() or 0,
            message.offset() or 0,
            message.timestamp()[1],
            message.key(),
            message.value(),
        )
        for message in read_topic(target, settings.topic)
    ]
    found = Comparison()
    for flow in flows:
        outcome = model.replay(records, boundaries(spark, target, flow.name), _MODELS[flow.name])
        rows: list[Row] = [asdict(row) for batch in outcome.batches for row in batch]
        _compare_sinks(found, _Where(spark, target, settings), flow.name, rows)
        found.add(
            f"quarantine of {flow.name}",
            [asdict(bad) for bad in outcome.bad],
            _columns(table_rows(spark, "delta", quarantine_table(target, flow.name)), "partition", "offset", "reason"),
        )
        found.add(
            f"late rows of {flow.name}",
            [{"batch_id": number} for number, late in enumerate(outcome.late) for _ in range(late)],
            _columns(table_rows(spark, "delta", late_table(target, flow.name)), "batch_id"),
        )
    return found


def boundaries(spark: SparkSession | None, target: Target, flow: str) -> list[model.Batch]:
    """Return the batches that a flow has committed, as the ranges of offsets that each one read."""
    checkpoint = Checkpoint.of(flow, target, files_for(target.checkpoints, spark))
    return [_span(checkpoint.range(batch_id, 0)) for batch_id in checkpoint.committed()]


def _span(offsets: tuple[str, str] | None) -> model.Batch:
    if offsets is None:
        return {}
    (start,), (end,) = (json.loads(each).values() for each in offsets)
    return {int(partition): (start.get(partition, 0), last) for partition, last in end.items()}


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


def _columns(rows: Sequence[Row], *names: str) -> list[Row]:
    return [{name: row[name] for name in names} for row in rows]


@dataclass(frozen=True)
class RidesVerdict:
    """Every sink beside the model."""

    comparison: Comparison

    @property
    def equal(self) -> bool:
        """Whether no row differs."""
        return self.comparison.equal

    def as_dict(self) -> Mapping[str, object]:
        """Return `rows_out` and `model`."""
        return {"rows_out": self.comparison.rows_of_sinks(), "model": self.comparison.as_dict()}

    def lines(self) -> Sequence[str]:
        """Return how many rows were compared, or the first differences."""
        if self.equal:
            rows = sum(self.comparison.rows.values())
            return [f"Equal to the model: {rows:,} rows of every sink, late and bad ones included."]
        first = [f"  {difference}" for difference in self.comparison.differences[:_FEW]]
        return [f"{len(self.comparison.differences)} differences from the model:", *first]


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
        newest = newest_timestamp(scene.target, self.settings.topic)
        # Go on after what an earlier run has sent: the same hour sent twice would only be late.
        gap = datetime.now(UTC) - newest if newest else wanted.backfill
        traffic = generator(rate=wanted.rate, late=0.02, duplicates=0.01, malformed=0.005, seed=wanted.seed)
        past = max(timedelta(0), min(gap, wanted.backfill))
        return generate(traffic, scene.target, backfill=past, stop=stop)

    def flows(self) -> Sequence[Flow]:
        """Return city rides, surge and driver metrics."""
        return pattern.flows(self.settings)

    def status(self, scene: Scene, spark: SparkSession) -> Sequence[str]:
        """Return nothing: the page shows how it stands."""
        return ()

    def awaited(self, scene: Scene) -> Mapping[str, Mapping[Partition, int]]:
        """Return nothing: the model replays the batches that there were."""
        return {}

    def compare(self, scene: Scene, spark: SparkSession) -> RidesVerdict:
        """Compare every row of every sink with the model."""
        return RidesVerdict(compare(spark, scene.target, self.flows(), self.settings))


DEMO = RidesDemo()
