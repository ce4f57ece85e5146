"""Ride analytics: rides and fares per city, surge pricing, driver metrics.

Three flows over one topic of ride events. The transforms are plain functions of DataFrames; the numbers are settings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import DecimalType, DoubleType, StringType, StructField, StructType, TimestampType

from headrace.errors import FlowError
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import Every, OutputMode, Trigger, Watermark
from headrace.flow.source import AutoBatchSize
from headrace.sinks.console import Console
from headrace.sinks.delta.write import DeltaAppend
from headrace.sinks.fan_out import FanOut, Filtered
from headrace.sinks.files import FileSink
from headrace.sinks.kafka.topic import KafkaSink
from headrace.sources.kafka.source import KafkaSource
from headrace.transforms.averages import exact_average
from headrace.transforms.windows import exact_distinct, tumbling, window_bounds

# A field that is not nullable is required: a record without it goes to quarantine.
RIDE = StructType(
    [
        StructField("ride_id", StringType(), nullable=False),
        StructField("driver_id", StringType(), nullable=False),
        StructField("rider_id", StringType(), nullable=False),
        StructField("city", StringType(), nullable=False),
        StructField("pickup_lat", DoubleType(), nullable=False),
        StructField("pickup_lon", DoubleType(), nullable=False),
        StructField("dropoff_lat", DoubleType()),
        StructField("dropoff_lon", DoubleType()),
        # Money is a decimal: sums are exact, whatever the order of the rows.
        StructField("fare_amount", DecimalType(10, 2)),
        StructField("status", StringType(), nullable=False),
        StructField("event_time", TimestampType(), nullable=False),
    ]
)
STATUSES = ("completed", "cancelled", "in_progress")


@dataclass(frozen=True)
class SurgePricing:
    """Price multipliers by active rides per available driver. Without a surge the multiplier is 1.0."""

    above: float = 2
    multiplier: float = 1.5
    high_above: float = 3
    high_multiplier: float = 2.0


DEFAULT_PRICING = SurgePricing()


@dataclass(frozen=True)
class RideSettings:
    """The numbers of ride analytics.

    | field               | default            | decides                                               |
    |---------------------|--------------------|-------------------------------------------------------|
    | topic               | ride-events        | where ride events are read                            |
    | city_window         | 5 minutes          | windows of city rides and surge                       |
    | city_watermark      | 10 minutes         | how late a ride may be for a city                     |
    | city_trigger        | every 30 seconds   | freshness of the live page                            |
    | statuses            | completed, cancelled, in_progress | rides that count; must have completed and in_progress |
    | surge_above         | 2                  | active rides per available driver above which prices surge |
    | surge_multiplier    | 1.5                | the price multiplier of a surge                       |
    | high_surge_above    | 3                  | active rides per available driver of a high surge     |
    | high_surge_multiplier | 2.0              | the price multiplier of a high surge                  |
    | driver_window       | 15 minutes         | windows of driver metrics                             |
    | driver_watermark    | 30 minutes         | how late a ride may be for a driver                   |
    | driver_trigger      | every 5 minutes    | freshness of the drivers' tables                      |
    | max_offsets         | fits the machine   | the most records of one batch                         |
    | city_topic          | city-ride-metrics  | where city rides go                                   |
    | surge_topic         | city-surge         | where every multiplier goes                           |
    | alerts_topic        | surge-alerts       | where multipliers above 1.0 go                        |
    | driver_table        | gold/driver_metrics | where driver metrics go, as a Delta table            |
    | driver_files        | gold/driver_metrics_parquet | the same, as Parquet files                   |
    """

    topic: str = "ride-events"
    city_window: str = "5 minutes"
    city_watermark: str = "10 minutes"
    city_trigger: Trigger = field(default_factory=lambda: Every("30 seconds"))
    statuses: tuple[str, ...] = STATUSES
    surge_above: float = 2
    surge_multiplier: float = 1.5
    high_surge_above: float = 3
    high_surge_multiplier: float = 2.0
    driver_window: str = "15 minutes"
    driver_watermark: str = "30 minutes"
    driver_trigger: Trigger = field(default_factory=lambda: Every("5 minutes"))
    max_offsets: int | AutoBatchSize = field(default_factory=AutoBatchSize)
    city_topic: str = "city-ride-metrics"
    surge_topic: str = "city-surge"
    alerts_topic: str = "surge-alerts"
    driver_table: str = "gold/driver_metrics"
    driver_files: str = "gold/driver_metrics_parquet"

    def __post_init__(self) -> None:
        """Raise HR-261 for statuses or surge pricing that cannot give a right answer."""
        missing = {"completed", "in_progress"} - set(self.statuses)
        if missing or len(set(self.statuses)) < len(self.statuses):
            raise _refused(
                f"its statuses are {self.statuses}",
                "The metrics need completed and in_progress, and each status once.",
                'statuses=("completed", "cancelled", "in_progress")',
            )
        if not (0 < self.surge_above < self.high_surge_above < math.inf):
            raise _refused(
                f"surge_above is {self.surge_above:g} and high_surge_above is {self.high_surge_above:g}",
                "Both are ratios of active rides to available drivers: above 0, and the second above the first.",
                "surge_above=2, high_surge_above=3",
            )
        if not (1 < self.surge_multiplier <= self.high_surge_multiplier < math.inf):
            raise _refused(
                f"surge_multiplier is {self.surge_multiplier:g} and high_surge_multiplier is "
                f"{self.high_surge_multiplier:g}",
                "A surge multiplies the price by more than 1.0, and a high surge by no less than a surge.",
                "surge_multiplier=1.5, high_surge_multiplier=2.0",
            )

    @property
    def surge_pricing(self) -> SurgePricing:
        """The surge pricing of these settings."""
        return SurgePricing(self.surge_above, self.surge_multiplier, self.high_surge_above, self.high_surge_multiplier)

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic that the flows read or write."""
        return self.topic, self.city_topic, self.surge_topic, self.alerts_topic


def _refused(what: str, why: str, remedy: str) -> FlowError:
    return FlowError(
        f"RideSettings cannot be used: {what}.",
        why=why,
        remedy=f"Correct the settings, for example `RideSettings({remedy})`.",
        code="HR-261",
    )


def counted_rides(rides: DataFrame, statuses: Sequence[str] = STATUSES) -> DataFrame:
    """Return the rides with one of the statuses; add the day and the hour of the event."""
    return (
        rides.where(F.col("status").isin(*statuses))
        .withColumn("event_date", F.to_date("event_time"))
        .withColumn("hour_of_day", F.hour("event_time"))
    )


def city_rides(rides: DataFrame, window: str, statuses: Sequence[str] = STATUSES) -> DataFrame:
    """Rides, fares and drivers per city and window.

    `active_drivers` is approximate (5 % standard error): its sketch has a fixed size, however many drivers there are.
    """
    completed = F.col("status") == "completed"
    return (
        counted_rides(rides, statuses)
        .groupBy(tumbling("event_time", window), "city")
        .agg(
            F.count("*").alias("ride_count"),
            F.count_if(completed).alias("completed_rides"),
            exact_average(F.when(completed, F.col("fare_amount"))).alias("avg_fare"),
            F.approx_count_distinct("driver_id", rsd=0.05).alias("active_drivers"),
        )
        .withColumn("completion_rate", F.round(F.col("completed_rides") / F.col("ride_count"), 4))
        .select(
            *window_bounds(), "city", "ride_count", "completed_rides", "avg_fare", "active_drivers", "completion_rate"
        )
    )


def surge(
    rides: DataFrame, window: str, statuses: Sequence[str] = STATUSES, pricing: SurgePricing = DEFAULT_PRICING
) -> DataFrame:
    """Demand against free drivers per city and window, and the price multiplier that follows from it.

    A driver is available who finished or cancelled a ride in the window. The count is exact (the set of drivers of a
    city in five minutes is small), because a wrong driver more or less would flip a multiplier at its threshold.
    """
    active = F.col("status") == "in_progress"
    return (
        counted_rides(rides, statuses)
        .groupBy(tumbling("event_time", window), "city")
        .agg(
            F.count("*").alias("total_requests"),
            F.count_if(active).alias("active_rides"),
            exact_distinct(F.when(~active, F.col("driver_id"))).alias("available_drivers"),
        )
        .withColumn("surge_multiplier", surge_multiplier(F.col("active_rides"), F.col("available_drivers"), pricing))
        .select(*window_bounds(), "city", "total_requests", "active_rides", "available_drivers", "surge_multiplier")
    )


def surge_multiplier(active: Column, available: Column, pricing: SurgePricing = DEFAULT_PRICING) -> Column:
    """Return the price multiplier. Default: 2.0 above three active rides per available driver, 1.5 above two, else 1.0.

    Compared as products, so that no division by zero can occur: with nobody available, any active ride is a surge.
    """
    high = F.when(active > available * pricing.high_above, float(pricing.high_multiplier))
    return high.when(active > available * pricing.above, float(pricing.multiplier)).otherwise(1.0)


def driver_metrics(rides: DataFrame, window: str, statuses: Sequence[str] = STATUSES) -> DataFrame:
    """Completed rides, fares and exactly counted riders per driver and window.

    A driver meets few riders in 15 minutes, so the sets of riders stay small.
    """
    return (
        counted_rides(rides, statuses)
        .where(F.col("status") == "completed")
        .groupBy(tumbling("event_time", window), "driver_id")
        .agg(
            F.count("*").alias("completed_rides"),
            exact_average(F.col("fare_amount")).alias("avg_fare"),
            exact_distinct("rider_id").alias("unique_riders"),
        )
        .select(*window_bounds(), "driver_id", "completed_rides", "avg_fare", "unique_riders")
    )


def flows(settings: RideSettings | None = None) -> list[Flow]:
    """Return the three flows of ride analytics."""
    settings = settings or RideSettings()
    source = KafkaSource(settings.topic, max_offsets_per_trigger=settings.max_offsets)

    def rides(delay: str) -> Input:
        return Input(source, schema=RIDE, watermark=Watermark("event_time", delay), key_required=True)

    surging = "surge_multiplier > 1.0"
    return [
        Flow(
            name="city_rides",
            description="Rides, fares and drivers per city",
            inputs=rides(settings.city_watermark),
            transform=partial(city_rides, window=settings.city_window, statuses=settings.statuses),
            sink=KafkaSink(settings.city_topic, key="city"),
            output_mode=OutputMode.UPDATE,
            trigger=settings.city_trigger,
        ),
        Flow(
            name="surge",
            description="Demand against free drivers per city, with alerts",
            inputs=rides(settings.city_watermark),
            transform=partial(
                surge, window=settings.city_window, statuses=settings.statuses, pricing=settings.surge_pricing
            ),
            sink=FanOut(
                KafkaSink(settings.surge_topic, key="city"),
                Filtered(surging, KafkaSink(settings.alerts_topic, key="city")),
                Filtered(surging, Console(rows=5)),
            ),
            output_mode=OutputMode.UPDATE,
            trigger=settings.city_trigger,
        ),
        Flow(
            name="driver_metrics",
            description="Completed rides, fares and riders per driver",
            inputs=rides(settings.driver_watermark),
            transform=partial(driver_metrics, window=settings.driver_window, statuses=settings.statuses),
            sink=FanOut(DeltaAppend(settings.driver_table), FileSink(settings.driver_files)),
            output_mode=OutputMode.APPEND,
            trigger=settings.driver_trigger,
        ),
    ]
