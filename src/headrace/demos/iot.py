"""The IoT demo's own part: its topics, its flows, and every row of every sink against the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from threading import Event
from typing import TYPE_CHECKING, cast

from pyspark.sql import functions as F

from headrace.clients.positions import Partition
from headrace.clients.storage import file_store
from headrace.clients.topics import create_topics
from headrace.demos.compare import Comparison, Row, table_rows, topic_rows
from headrace.demos.feeder import Sent, generate
from headrace.demos.model_inputs import Filed, ModelVerdict, boundaries, compare_filed, consumed, past
from headrace.demos.protocol import Scene
from headrace.flow.duration import Duration
from headrace.flow.flow import SINGLE_INPUT, Flow
from headrace.flow.target import Target
from headrace.patterns.iot import flows as pattern
from headrace.patterns.iot import model
from headrace.patterns.iot.generator import generator
from headrace.patterns.records import ConsumedRecord, InvalidRecord
from headrace.patterns.window_model import BatchOffsets, WindowFlow, replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compare(
    spark: SparkSession, target: Target, flows: Sequence[Flow], settings: pattern.IotSettings
) -> tuple[Comparison, dict[str, object]]:
    """Compare every row of every sink, every late row and every bad row with the model; return how uneven it was, too.

    The model gets the records of the topic and the batches' boundaries from the offset logs, and nothing else. Called
    when the flows have stopped, before any repair.
    """
    records = consumed(target, settings.topic)
    found = Comparison()
    cut: dict[str, Sequence[BatchOffsets]] = {}
    for flow in flows:
        batches = [batch[SINGLE_INPUT] for batch in boundaries(spark, target, flow)]
        cut[flow.name] = batches
        if flow.name == "device_metrics":
            outcome = replay(records, batches, metrics_model(settings))
            rows = [asdict(row) for batch in outcome.batches for row in batch]
            _compare_metrics(found, spark, target, settings, rows)
            compare_filed(found, spark, target, flow.name, Filed(outcome.bad, outcome.late))
        else:
            lengths = settings.silence, settings.forget, settings.watermark
            silence, forget, delay = (Duration.parse(each).ms for each in lengths)
            told = model.silences(records, batches, silence_ms=silence, forget_ms=forget, delay_ms=delay)
            topic = settings.status_topic
            found.add(f"kafka:{topic}", [asdict(each) for each in told.statuses], topic_rows(target, topic))
            compare_filed(found, spark, target, flow.name, Filed(told.bad, told.late))
    return found, skew(records, cut)


def metrics_model(settings: pattern.IotSettings) -> WindowFlow[model.Reading, model.DeviceMetrics]:
    """Return the model of the gold table with the numbers of the settings."""
    known = model.device_metrics(Decimal(settings.high_temp), Decimal(settings.high_humidity))
    window, delay = Duration.parse(settings.window).ms, Duration.parse(settings.watermark).ms
    return replace(known, window_ms=window, delay_ms=delay)


def _compare_metrics(
    found: Comparison, spark: SparkSession, target: Target, settings: pattern.IotSettings, rows: Sequence[Row]
) -> None:
    newest = {(row["window_start"], row["device_id"]): row for row in rows}
    table = table_rows(spark, "delta", target.table(settings.gold_table))
    found.add(f"delta:{settings.gold_table}", newest.values(), table)
    alerts = [row for row in rows if row["alert"] is not None]
    # The table may have it and the topic not yet, when the driver dies: then the topic gets the batch twice.
    topic = settings.alerts_topic
    found.add(f"kafka:{topic}", alerts, topic_rows(target, topic), repeats_allowed=True)


def skew(records: Sequence[ConsumedRecord], batches: Mapping[str, Sequence[BatchOffsets]]) -> dict[str, object]:
    """Return how uneven the readings were, and how large the largest batch of each flow: figures of the demo."""
    judged = [model.judge(record) for record in records]
    by_device = Counter(each.device_id for each in judged if not isinstance(each, InvalidRecord))
    by_partition = Counter(record.partition for record in records)
    device, most = next(iter(by_device.most_common(1)), ("", 0))
    return {
        "busiest_device": device,
        "busiest_share": round(most / max(1, by_device.total()), 4),
        "devices": len(by_device),
        "rows_by_partition": {str(number): rows for number, rows in sorted(by_partition.items())},
        "largest_batch": {flow: max(map(size, cut), default=0) for flow, cut in batches.items()},
    }


def size(batch: BatchOffsets) -> int:
    """Return how many records a batch holds."""
    return sum(end - start for start, end in batch.values())


@dataclass(frozen=True)
class IotDemo:
    """The IoT pattern with its usual numbers."""

    title: str = "IoT: figures per device, alerts, devices that fall silent"
    parts: tuple[str, ...] = ("kafka",)
    has_page: bool = False
    spark: Mapping[str, str] = field(default_factory=dict)
    settings: pattern.IotSettings = field(default_factory=pattern.IotSettings)

    def prepare(self, scene: Scene) -> None:
        """Make the three topics of the pattern, two partitions each: one per core of a small machine."""
        create_topics(scene.target.kafka, dict.fromkeys(self.settings.topics, 2))

    def feed(self, scene: Scene, stop: Event) -> Sent:
        """Send the recent past at once, then readings with late, repeated and malformed records among them."""
        wanted = scene.settings
        traffic = generator(rate=wanted.rate, late=0.02, duplicates=0.01, malformed=0.005, seed=wanted.seed)
        topic = self.settings.topic
        return generate(traffic, scene.target, topic=topic, backfill=past(scene.target, topic, wanted), stop=stop)

    def flows(self) -> Sequence[Flow]:
        """Return the figures per device and the silent devices."""
        return pattern.flows(self.settings)

    def status(self, scene: Scene, spark: SparkSession) -> Sequence[str]:
        """Return the newest whole window of the gold table in a line: who sends most, and who raises an alert."""
        location = scene.target.table(self.settings.gold_table)
        if not file_store(location, spark).names(f"{location}/_delta_log"):
            return ()
        gold = spark.read.format("delta").load(location)
        newest = gold.agg(F.max("window_start")).collect()[0][0]
        if newest is None:
            return ()
        length = timedelta(milliseconds=Duration.parse(self.settings.window).ms)
        rows = gold.where(F.col("window_start") == F.lit(newest - length)).collect()
        return [status_line(newest - length, [row.asDict() for row in rows])] if rows else ()

    def awaited(self, scene: Scene) -> Mapping[str, Mapping[Partition, int]]:
        """Return each flow, without offsets: once it has read something, the model replays what there was."""
        return {flow.name: {} for flow in self.flows()}

    def compare(self, scene: Scene, spark: SparkSession) -> ModelVerdict:
        """Compare every row of every sink with the model, and say how uneven the readings were."""
        found, spread = compare(spark, scene.target, self.flows(), self.settings)
        largest = cast("Mapping[str, int]", spread["largest_batch"])
        told = [
            f"{spread['devices']} devices; {spread['busiest_device']} sent {spread['busiest_share']:.1%} of all "
            "readings.",
            *(f"The largest batch of {flow} had {rows:,} records, {self._bound}." for flow, rows in largest.items()),
        ]
        return ModelVerdict(found, {"skew": spread}, told)

    @property
    def _bound(self) -> str:
        bound = self.settings.max_offsets
        return f"of at most {bound:,}" if isinstance(bound, int) else "bounded by what fits the machine"


def status_line(window: datetime, rows: Sequence[Row]) -> str:
    """Say in a line what a window holds. Its time is shown in UTC, whatever the zone of the machine."""
    counts = {str(row["device_id"]): int(str(row["reading_count"])) for row in rows}
    busiest = max(counts, key=lambda device: counts[device])
    share = counts[busiest] / sum(counts.values())
    alerts = [f"{row['device_id']} {row['alert']}" for row in rows if row["alert"] is not None]
    return (
        f"window {window.astimezone(UTC):%Y-%m-%d %H:%M}Z: {len(rows)} devices, "
        f"{sum(counts.values()):,} readings, {share:.0%} of them by {busiest}; "
        f"alerts: {', '.join(alerts) or 'none'}"
    )


DEMO = IotDemo()
