"""The IoT demo: its topics, its flows, and the comparison of every sink with the model."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

from pyspark.sql import SparkSession, functions as F

from headrace.clients.spark.delta_log import is_table
from headrace.demos.compare import Comparison, Row
from headrace.demos.protocol import DemoContext
from headrace.demos.records_demo import ModelVerdict, PatternGenerator, RecordsDemo, TargetComparison, read_records
from headrace.flow.duration import Duration
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.patterns.iot import flows as pattern, model
from headrace.patterns.iot.generator import IotTraffic
from headrace.patterns.records import ConsumedRecord, InvalidRecord
from headrace.patterns.window_model import BatchOffsets, WindowFlow, replay


def compare(
    spark: SparkSession, target: Target, flows: Sequence[Flow], settings: pattern.IotSettings
) -> tuple[Comparison, dict[str, object]]:
    """Compare all rows of the sinks, late rows and invalid rows with the model; also return the skew.

    The model gets only the records of the topic and the offsets of the batches from the offset logs. Call when the
    flows have stopped, before any repair.
    """
    records = read_records(target, settings.topic)
    comparison = TargetComparison(spark=spark, target=target)
    batches_by_flow: dict[str, Sequence[BatchOffsets]] = {}
    for flow in flows:
        batches = comparison.batches(flow)
        batches_by_flow[flow.name] = batches
        if flow.name == "device_metrics":
            outcome = replay(records, batches, metrics_model(settings))
            rows = [asdict(row) for batch in outcome.batches for row in batch]
            _compare_metrics(comparison, settings, rows)
            comparison.add_ledgers(flow.name, outcome.invalid, outcome.late)
        else:
            lengths = settings.silence, settings.forget, settings.watermark
            silence, forget, delay = (Duration.parse(length).ms for length in lengths)
            silences = model.replay_silences(records, batches, silence_ms=silence, forget_ms=forget, delay_ms=delay)
            statuses = [asdict(row) for row in silences.statuses]
            comparison.add_topic(settings.status_topic, statuses, repeats_allowed=False)
            comparison.add_ledgers(flow.name, silences.invalid, silences.late)
    return comparison, skew(records, batches_by_flow)


def metrics_model(settings: pattern.IotSettings) -> WindowFlow[model.Reading, model.DeviceMetrics]:
    """Return the model of the gold table with the numbers of the settings."""
    model_ = model.device_metrics(Decimal(settings.high_temp), Decimal(settings.high_humidity))
    window, delay = Duration.parse(settings.window).ms, Duration.parse(settings.watermark).ms
    return replace(model_, window_ms=window, delay_ms=delay)


def _compare_metrics(comparison: TargetComparison, settings: pattern.IotSettings, rows: Sequence[Row]) -> None:
    newest = {(row["window_start"], row["device_id"]): row for row in rows}
    comparison.add_table(settings.gold_table, newest.values())
    alerts = [row for row in rows if row["alert"] is not None]
    # If the driver dies between the table and the topic, the topic gets the batch twice.
    comparison.add_topic(settings.alerts_topic, alerts)


def skew(records: Sequence[ConsumedRecord], batches: Mapping[str, Sequence[BatchOffsets]]) -> dict[str, object]:
    """Return how skewed the readings are, and the size of the largest batch of each flow."""
    readings = [model.READING.parse(record) for record in records]
    by_device = Counter(reading.device_id for reading in readings if not isinstance(reading, InvalidRecord))
    by_partition = Counter(record.partition for record in records)
    device, most_readings = next(iter(by_device.most_common(1)), ("", 0))
    return {
        "busiest_device": device,
        "busiest_share": round(most_readings / max(1, by_device.total()), 4),
        "devices": len(by_device),
        "rows_by_partition": {str(number): rows for number, rows in sorted(by_partition.items())},
        "largest_batch": {flow: max(map(size, ranges), default=0) for flow, ranges in batches.items()},
    }


def size(batch: BatchOffsets) -> int:
    """Return how many records a batch has."""
    return sum(end - start for start, end in batch.values())


@dataclass(frozen=True)
class IotDemo(RecordsDemo):
    """The IoT pattern with its usual settings."""

    title: str = "IoT: figures per device, alerts, devices that fall silent"
    pattern_flows: Callable[[Any], list[Flow]] = pattern.flows
    generator: Callable[[Any], PatternGenerator] = lambda _settings: IotTraffic()
    settings: pattern.IotSettings = field(default_factory=pattern.IotSettings)

    def status(self, context: DemoContext, spark: SparkSession) -> Sequence[str]:
        """Return a line on the newest complete window of the gold table: the busiest device, and the alerts."""
        location = context.target.table(self.settings.gold_table)
        if not is_table(location, spark):
            return ()
        gold = spark.read.format("delta").load(location)
        newest = gold.agg(F.max("window_start")).collect()[0][0]
        if newest is None:
            return ()
        length = timedelta(milliseconds=Duration.parse(self.settings.window).ms)
        rows = gold.where(F.col("window_start") == F.lit(newest - length)).collect()
        return [status_line(newest - length, [row.asDict() for row in rows])] if rows else ()

    def compare(self, context: DemoContext, spark: SparkSession) -> ModelVerdict:
        """Compare every row of every sink with the model, and report the skew."""
        comparison, skew_ = compare(spark, context.target, self.flows(), self.settings)
        largest = cast("Mapping[str, int]", skew_["largest_batch"])
        notes = [
            f"{skew_['devices']} devices; {skew_['busiest_device']} sent {skew_['busiest_share']:.1%} of all readings.",
            *(f"The largest batch of {flow} had {rows:,} records, {self._bound}." for flow, rows in largest.items()),
        ]
        return ModelVerdict(comparison, {"skew": skew_}, notes)

    @property
    def _bound(self) -> str:
        bound = self.settings.max_offsets
        return f"of at most {bound:,}" if isinstance(bound, int) else "bounded by what fits the machine"


def status_line(window: datetime, rows: Sequence[Row]) -> str:
    """Describe a window in a line, with its time in UTC."""
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
