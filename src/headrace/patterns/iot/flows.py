"""IoT: what each device measured, which one is too hot or too damp, and which one has fallen silent.

Two flows over one topic of readings. The transforms are plain functions of DataFrames; the numbers are settings.

Silent devices are detected with custom state: one status row per silence, and one when the device is back. The state of
a device is a list of active periods: readings that follow each other without a silence. Nearly always there is one. A
status is emitted after the watermark has passed it: a delayed reading may still close a gap between two readings. So
the result does not depend on how rows are spread over batches: after an outage of the flow, hours of readings may come
in one call.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial

from pyspark.sql import Column, DataFrame, Row, functions as F
from pyspark.sql.types import DecimalType, StringType, TimestampType

from headrace.flow.duration import Duration
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import Every, OutputMode, Trigger, Watermark
from headrace.flow.source import AutoBatchSize
from headrace.patterns.schema import required
from headrace.sinks.delta.policy import TablePolicy
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sinks.fan_out import FanOut, Filtered
from headrace.sinks.kafka.exactly_once import KafkaExactlyOnceSink
from headrace.sinks.kafka.topic import KafkaSink
from headrace.sources.kafka.source import KafkaSource
from headrace.transforms.averages import exact_average
from headrace.transforms.keyed.keyed_state import EventTime, KeyedState
from headrace.transforms.keyed.on_spark import per_key
from headrace.transforms.keyed.state import Timers, ValueState
from headrace.transforms.windows import tumbling, window_bounds

SILENT, BACK = "SILENT", "BACK"


@dataclass
class ActivePeriod:
    """Readings without a silence between them."""

    first: datetime
    last: datetime


@dataclass
class DeviceHistory:
    """The state of a device: its active periods in order, and the last reading before a silence that was reported."""

    active_periods: list[ActivePeriod] = field(default_factory=list)
    silent_since: datetime | None = None


@dataclass
class DeviceStatus:
    """A status row. `at` is when the silence had lasted too long, or when the first reading after it was taken."""

    device_id: str
    status: str
    last_seen: datetime
    at: datetime
    silent_seconds: int


class Silence(KeyedState[DeviceHistory, DeviceStatus]):
    """Report a device that sends nothing for longer than `silence`.

    The state of a device without a reading for longer than `forget` is removed, and its return is not reported.
    """

    clock = EventTime("ts")

    def __init__(self, silence: timedelta, forget: timedelta) -> None:
        self.silence, self.forget = silence, forget

    def handle_rows(
        self, key: Row, rows: list[Row], state: ValueState[DeviceHistory], timers: Timers
    ) -> Iterator[DeviceStatus]:
        """Add readings to the active periods, and set the timer of the next status. Emits nothing."""
        history = state.value or DeviceHistory()
        history.active_periods = self._merge_periods(
            [*history.active_periods, *(ActivePeriod(row.ts, row.ts) for row in rows)]
        )
        state.value = history
        timers.register_only(self._next(history))
        return iter(())

    def handle_timer(
        self, key: Row, at: datetime, state: ValueState[DeviceHistory], timers: Timers
    ) -> Iterator[DeviceStatus]:
        """Emit the statuses that are certain: no later reading can be before the watermark."""
        history = state.value
        if history is None:
            return
        while history.active_periods and (moment := self._next(history)) <= timers.now:
            if history.silent_since is None:
                history.silent_since = history.active_periods.pop(0).last
                yield self._status(key, SILENT, history.silent_since, moment)
            else:
                if moment - history.silent_since <= self.forget:
                    yield self._status(key, BACK, history.silent_since, moment)
                history.silent_since = None
        if history.active_periods:
            timers.register(self._next(history))
        elif history.silent_since is not None and history.silent_since + self.forget > timers.now:
            timers.register(history.silent_since + self.forget)
        else:
            state.value = None

    def _next(self, history: DeviceHistory) -> datetime:
        """Return when the first active period changes the status: at its end, or at its start after a silence."""
        period = history.active_periods[0]
        return period.last + self.silence if history.silent_since is None else period.first

    def _merge_periods(self, periods: list[ActivePeriod]) -> list[ActivePeriod]:
        merged: list[ActivePeriod] = []
        for period in sorted(periods, key=lambda period: period.first):
            if merged and period.first - merged[-1].last <= self.silence:
                merged[-1].last = max(merged[-1].last, period.last)
            else:
                merged.append(period)
        return merged

    def _status(self, key: Row, status: str, last_seen: datetime, at: datetime) -> DeviceStatus:
        return DeviceStatus(key.device_id, status, last_seen, at, (at - last_seen) // timedelta(seconds=1))


# Decimals: an average is exact, whatever the order of the rows. A sensor that
# is broken says 99999: that does not fit, and goes to quarantine.
READING = required(
    device_id=StringType(), temperature=DecimalType(6, 2), humidity=DecimalType(5, 2), ts=TimestampType()
)
HIGH_TEMP, HIGH_HUMIDITY = "HIGH_TEMP", "HIGH_HUMIDITY"


@dataclass(frozen=True)
class IotSettings:
    """The numbers of the IoT pattern.

    | field         | default             | decides                                                            |
    |---------------|---------------------|--------------------------------------------------------------------|
    | topic         | iot-telemetry       | where readings are read                                            |
    | max_offsets   | 100,000             | the most readings of one batch                                     |
    | watermark     | 2 minutes           | how late a reading may be                                          |
    | window        | 5 minutes           | what the figures of a device are about                             |
    | high_temp     | 80                  | HIGH_TEMP above it, by the highest reading of a window             |
    | high_humidity | 90                  | HIGH_HUMIDITY above it, by the average of a window                 |
    | silence       | 15 minutes          | how long a device may say nothing                                  |
    | forget        | 30 days             | how long a silent device is remembered; later it is a new one      |
    | idle_timeout  | 5 minutes           | after how long without a reading the clock advances the watermark  |
    | trigger       | every 30 seconds    | freshness of the table and of the alerts                           |
    | gold_table    | gold/device_metrics | where the figures go                                               |
    | alerts_topic  | iot-alerts          | where windows with an alert go                                     |
    | status_topic  | iot-device-status   | where silent devices, and their return, are reported               |
    | policy        | `TablePolicy()`     | maintenance of the gold table: compaction, retention   |
    """

    topic: str = "iot-telemetry"
    max_offsets: int | AutoBatchSize = 100_000
    watermark: str = "2 minutes"
    window: str = "5 minutes"
    high_temp: int | Decimal = 80
    high_humidity: int | Decimal = 90
    silence: str = "15 minutes"
    forget: str = "30 days"
    idle_timeout: str = "5 minutes"
    trigger: Trigger = field(default_factory=lambda: Every("30 seconds"))
    gold_table: str = "gold/device_metrics"
    alerts_topic: str = "iot-alerts"
    status_topic: str = "iot-device-status"
    policy: TablePolicy | None = field(default_factory=TablePolicy)

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic that the flows read or write."""
        return self.topic, self.alerts_topic, self.status_topic


def device_metrics(
    readings: DataFrame, window: str, high_temp: int | Decimal, high_humidity: int | Decimal
) -> DataFrame:
    """Figures per device and window, and the alert that follows from them; null is none.

    Every figure can be put together from parts, so Spark adds up the rows of a task before it hands them on: a device
    that sends half of all readings is one row per task and window, like any other.
    """
    return (
        readings.groupBy(tumbling("ts", window), "device_id")
        .agg(
            exact_average(F.col("temperature")).alias("avg_temp"),
            F.max("temperature").alias("max_temp"),
            exact_average(F.col("humidity")).alias("avg_humidity"),
            F.count("*").alias("reading_count"),
        )
        .withColumn("alert", alert(F.col("max_temp"), F.col("avg_humidity"), high_temp, high_humidity))
        .select(*window_bounds(), "device_id", "avg_temp", "max_temp", "avg_humidity", "reading_count", "alert")
    )


def alert(max_temp: Column, avg_humidity: Column, high_temp: int | Decimal, high_humidity: int | Decimal) -> Column:
    """Return HIGH_TEMP, else HIGH_HUMIDITY, else null. A device that is too hot is not asked for its humidity."""
    return F.when(max_temp > F.lit(high_temp), HIGH_TEMP).when(avg_humidity > F.lit(high_humidity), HIGH_HUMIDITY)


def silent_devices(readings: DataFrame, silence: timedelta, forget: timedelta) -> DataFrame:
    """Say of each device when it has been silent for too long, once per silence, and when it is back."""
    return per_key(readings.select("device_id", "ts"), Silence(silence, forget), "device_id")


def flows(settings: IotSettings | None = None) -> list[Flow]:
    """Return the two flows of the IoT pattern."""
    settings = settings or IotSettings()
    source = KafkaSource(settings.topic, max_offsets_per_trigger=settings.max_offsets)
    silence, forget = (
        timedelta(milliseconds=Duration.parse(duration).ms) for duration in (settings.silence, settings.forget)
    )

    def readings(idle_timeout: str | None = None) -> Input:
        marked = Watermark("ts", settings.watermark, idle_timeout=idle_timeout)
        return Input(source, schema=READING, watermark=marked, key_required=True)

    return [
        Flow(
            name="device_metrics",
            description="Figures per device, with alerts",
            inputs=readings(),
            transform=partial(
                device_metrics,
                window=settings.window,
                high_temp=settings.high_temp,
                high_humidity=settings.high_humidity,
            ),
            sink=FanOut(
                DeltaUpsert(
                    settings.gold_table,
                    key=("window_start", "device_id"),
                    # A batch changes the last windows: files of older ones are not even read.
                    cluster_by=("window_start",),
                    prune_by="window_start",
                    policy=settings.policy,
                ),
                Filtered("alert IS NOT NULL", KafkaSink(settings.alerts_topic, key="device_id")),
            ),
            output_mode=OutputMode.UPDATE,
            trigger=settings.trigger,
        ),
        Flow(
            name="silent_devices",
            description="Devices that have fallen silent, and those that are back",
            # When all of them are silent nothing moves the watermark. Then the clock does (`Watermark.idle_timeout`).
            inputs=readings(idle_timeout=settings.idle_timeout),
            transform=partial(silent_devices, silence=silence, forget=forget),
            sink=KafkaExactlyOnceSink(
                settings.status_topic,
                key="device_id",
                order=("at",),
                # By the topic, not by the flow: another status topic begins a ledger of its own.
                ledger=f"headrace-ledger-{settings.status_topic}",
            ),
            trigger=settings.trigger,
        ),
    ]
