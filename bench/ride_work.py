"""The work of the comparisons: ride events in a topic, and what is made of them. The same for every contender."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from headrace import Target
from headrace.clients.topics import create_topics
from headrace.patterns.rides.flows import RIDE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
_CORRUPT = "_corrupt"
WATERMARK, WINDOW = "10 minutes", "5 minutes"

# A ride of about 260 bytes as JSON. Two hours of rides, whatever their number, so that windows open and close.
# `{step_ms}` is the time from one ride to the next.
_RIDE = (
    "concat('ride-', id) as ride_id",
    "concat('driver-', pmod(xxhash64(id), 5000)) as driver_id",
    "concat('rider-', pmod(xxhash64(id, 1), 20000)) as rider_id",
    "concat('city ', id % 50) as city",
    "round(40 + rand(1), 6) as pickup_lat",
    "round(-74 + rand(2), 6) as pickup_lon",
    "round(40 + rand(3), 6) as dropoff_lat",
    "round(-74 + rand(4), 6) as dropoff_lon",
    "cast(round(5 + rand(5) * 90, 2) as decimal(10,2)) as fare_amount",
    "array('completed', 'cancelled', 'in_progress')[id % 3] as status",
    "timestamp_millis(1760000000000 + id * {step_ms}) as event_time",
)
_HISTORY_MS = 2 * 3600 * 1000
RIDE_COLUMNS = [column.format(step_ms=1) for column in _RIDE]


@dataclass(frozen=True)
class Rides:
    """A topic with so many ride events."""

    topic: str
    rows: int


def filled(spark: SparkSession, target: Target, rows: int) -> Rides:
    """Make a topic with ride events, in the order of their times."""
    rides = Rides(f"bench-rides-{rows}", rows)
    create_topics(target.kafka, {rides.topic: PARTITIONS})
    columns = [column.format(step_ms=max(1, _HISTORY_MS // rows)) for column in _RIDE]
    (
        spark.range(0, rows, 1, PARTITIONS)
        .selectExpr(*columns)
        .select(F.col("ride_id").alias("key"), F.to_json(F.struct("*")).alias("value"))
        .write.format("kafka")
        .option("kafka.bootstrap.servers", str(target.kafka["bootstrap.servers"]))
        .option("topic", rides.topic)
        .save()
    )
    return rides


def per_city(rides: DataFrame) -> DataFrame:
    """Count rides and fares per city and window."""
    return rides.groupBy(F.window("event_time", WINDOW), "city").agg(
        F.count("*").alias("rides"),
        F.count_if(F.col("status") == "completed").alias("completed"),
        F.sum("fare_amount").alias("fares"),
    )


def pass_through(rides: DataFrame) -> DataFrame:
    """Hand every ride on."""
    return rides


def completed(rides: DataFrame) -> DataFrame:
    """Keep the rides that came to their end."""
    return rides.where(F.col("status") == "completed").select(
        "ride_id", "driver_id", "city", "fare_amount", "event_time"
    )


def parsed(records: DataFrame) -> DataFrame:
    """Read the payload and check nothing: what cannot be read becomes a row of nulls."""
    return records.select(F.from_json(F.col("value").cast("string"), RIDE).alias("ride")).select("ride.*")


def checked(records: DataFrame) -> DataFrame:
    """Read the payload, count what cannot be read or lacks a field, and keep it out.

    The count is there for another reason, too: without something between them Spark moves the condition down to the
    records, and reads every payload twice.
    """
    schema = StructType([StructField(field.name, field.dataType) for field in RIDE]).add(_CORRUPT, "string")
    options = {"columnNameOfCorruptRecord": _CORRUPT}
    rides = records.select(F.from_json(F.col("value").cast("string"), schema, options).alias("ride")).select("ride.*")
    is_complete = F.col(_CORRUPT).isNull()
    for field in RIDE:
        if not field.nullable:
            is_complete = is_complete & F.col(field.name).isNotNull()
    judged = rides.withColumn("is_complete", is_complete).drop(_CORRUPT)
    counted = judged.observe("read", F.count(F.lit(1)).alias("rows"), F.count_if(~F.col("is_complete")).alias("bad"))
    return counted.where("is_complete").drop("is_complete")
