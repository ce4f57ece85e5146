"""Real-time aggregates: revenue, orders and buyers per category, by five minutes, hour and day, and rolling.

Two flows over one topic of sales. Minutes, hours and days are in one table, which is changed in one commit per batch:
in each of its versions the hours are the sums of their five minutes, and the days those of their hours.
"""

import math
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.group import GroupedData
from pyspark.sql.types import DecimalType, StringType, TimestampType

from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import Every, OutputMode, Trigger, Watermark
from headrace.flow.source import AutoBatchSize
from headrace.patterns.schema import required
from headrace.sinks.delta.policy import TablePolicy
from headrace.sinks.delta.roll_ups import DeltaRollUps
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sources.kafka.source import KafkaSource
from headrace.transforms.windows import sliding, tumbling, window_bounds

# Money is a decimal: sums are exact, whatever the order of the rows.
SALE = required(
    product_id=StringType(), category=StringType(), amount=DecimalType(10, 2), user_id=StringType(), ts=TimestampType()
)
# Spark's own type of a sum of decimal(10,2). Sums of sums would get ever more digits.
_REVENUE = "decimal(20,2)"
_KEY = ("grain", "window_start", "category")
# Rows are clustered by category, then by time: a batch reads only the days that it changes.
_CLUSTERED = ("category", "window_start")


@dataclass(frozen=True)
class SalesSettings:
    """The numbers of real-time aggregates.

    | field             | default              | decides                                                      |
    |-------------------|----------------------|--------------------------------------------------------------|
    | topic             | sales                | where sales are read                                         |
    | window            | 5 minutes            | the shortest windows                                         |
    | watermark         | 1 minute             | how late a sale may be for them                              |
    | roll_ups          | 1 hour, 1 day        | the longer windows, each a multiple of the one before        |
    | sketch_lg_k       | 12                   | the size of a sketch of users, 2**12 bytes, and its error    |
    | rolling_window    | 10 minutes           | the length of rolling windows                                |
    | rolling_every     | 2 minutes            | the distance of two of them                                  |
    | rolling_watermark | 2 minutes            | how late a sale may be for them                              |
    | trigger           | every 30 seconds     | freshness of the tables                                      |
    | max_offsets       | fits the machine     | the most records of one batch                                |
    | gold_table        | gold/sales           | where windows and roll-ups go                                |
    | rolling_table     | gold/rolling_revenue | where rolling windows go                                     |
    | policy            | `TablePolicy()`      | maintenance of the tables: compaction, retention |
    """

    topic: str = "sales"
    window: str = "5 minutes"
    watermark: str = "1 minute"
    roll_ups: tuple[str, ...] = ("1 hour", "1 day")
    sketch_lg_k: int = 12
    rolling_window: str = "10 minutes"
    rolling_every: str = "2 minutes"
    rolling_watermark: str = "2 minutes"
    trigger: Trigger = field(default_factory=lambda: Every("30 seconds"))
    max_offsets: int | AutoBatchSize = field(default_factory=AutoBatchSize)
    gold_table: str = "gold/sales"
    rolling_table: str = "gold/rolling_revenue"
    policy: TablePolicy | None = field(default_factory=TablePolicy)

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic that the flows read."""
        return (self.topic,)

    @property
    def grains(self) -> tuple[str, ...]:
        """The lengths of all windows of the gold table, shortest first."""
        return self.window, *self.roll_ups

    @property
    def standard_error(self) -> float:
        """The relative standard error of `unique_users`: that of a merged HyperLogLog sketch of 2**lg_k registers."""
        return 1.04 / math.sqrt(2**self.sketch_lg_k)


def category_sales(sales: DataFrame, window: str, lg_k: int) -> DataFrame:
    """Revenue, orders and users per category and window.

    `unique_users` is the estimate of `users_sketch`. The sketch is stored too, because users cannot be added up:
    who buys in two windows of an hour is one user of the hour. Sketches can be merged.
    """
    return (
        sales.groupBy(tumbling("ts", window), "category")
        .agg(
            F.sum("amount").alias("revenue"),
            F.count("*").alias("orders"),
            F.hll_sketch_agg("user_id", lg_k).alias("users_sketch"),
        )
        .select(
            F.lit(window).alias("grain"),
            *window_bounds(),
            "category",
            "revenue",
            "orders",
            F.hll_sketch_estimate("users_sketch").alias("unique_users"),
            "users_sketch",
        )
    )


def roll_up(windows: GroupedData) -> DataFrame:
    """Make one row of the windows that a longer one consists of: sums add up, sketches merge."""
    return windows.agg(
        F.sum("revenue").cast(_REVENUE).alias("revenue"),
        F.sum("orders").alias("orders"),
        F.hll_union_agg("users_sketch").alias("users_sketch"),
    ).withColumn("unique_users", F.hll_sketch_estimate("users_sketch"))


def rolling_revenue(sales: DataFrame, window: str, every: str) -> DataFrame:
    """Revenue and orders per category over the last minutes, updated every few minutes."""
    return (
        sales.groupBy(sliding("ts", window, every=every), "category")
        .agg(F.sum("amount").alias("revenue"), F.count("*").alias("orders"))
        .select(*window_bounds(), "category", "revenue", "orders")
    )


def flows(settings: SalesSettings | None = None) -> list[Flow]:
    """Return the two flows of real-time aggregates."""
    settings = settings or SalesSettings()
    source = KafkaSource(settings.topic, max_offsets_per_trigger=settings.max_offsets)

    def sales(delay: str) -> Input:
        return Input(source, schema=SALE, watermark=Watermark("ts", delay))

    return [
        Flow(
            name="category_sales",
            description="Revenue, orders and users per category: 5 minutes, hours, days",
            inputs=sales(settings.watermark),
            transform=partial(category_sales, window=settings.window, lg_k=settings.sketch_lg_k),
            sink=DeltaRollUps(
                settings.gold_table,
                key=_KEY,
                cluster_by=_CLUSTERED,
                policy=settings.policy,
                grains=settings.grains,
                combine=roll_up,
            ),
            output_mode=OutputMode.UPDATE,
            trigger=settings.trigger,
        ),
        Flow(
            name="rolling_revenue",
            description="Revenue of the last minutes per category",
            inputs=sales(settings.rolling_watermark),
            transform=partial(rolling_revenue, window=settings.rolling_window, every=settings.rolling_every),
            sink=DeltaUpsert(
                settings.rolling_table,
                key=("window_start", "category"),
                cluster_by=_CLUSTERED,
                prune_by="window_start",
                policy=settings.policy,
            ),
            output_mode=OutputMode.UPDATE,
            trigger=settings.trigger,
        ),
    ]
