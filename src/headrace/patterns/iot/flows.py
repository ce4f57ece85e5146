"""IoT: what each device measured, which one is too hot or too damp, and which one has fallen silent.

Two flows over one topic of readings. The transforms are plain functions of DataFrames; the numbers are settings.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from functools import partial

from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import DecimalType, StringType, TimestampType

from headrace.flow.duration import Duration
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import Every, OutputMode, Trigger, Watermark
from headrace.flow.source import AutoBatchSize
from headrace.patterns.iot.silence import Silence
from headrace.patterns.schema import required
from headrace.sinks.delta.policy import TablePolicy
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sinks.fan_out import FanOut, Filtered
from headrace.sinks.kafka.exactly_once import KafkaExactlyOnceSink
from headrace.sinks.kafka.topic import KafkaSink
from headrace.sources.kafka.source import KafkaSource
from headrace.transforms.averages import exact_average
from headrace.transforms.keyed.on_spark import per_key
from headrace.transforms.windows import tumbling, window_bounds

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
