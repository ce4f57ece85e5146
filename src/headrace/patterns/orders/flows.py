"""Orders and payments: which order was paid, by which payment, and which was not.

Four flows over two topics, one for each join. A payment belongs to an order of the same id when it was made within the
bound after the order. The transforms are plain functions of DataFrames; the numbers are settings.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import DecimalType, StringType, StructField, StructType, TimestampType

from headrace.flow.checks.state import state_row_bytes
from headrace.flow.duration import Duration
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import Every, Trigger, Watermark
from headrace.flow.source import AutoBatchSize
from headrace.patterns.schema import required
from headrace.sinks.delta.write import DeltaAppend
from headrace.sources.kafka.source import KafkaSource
from headrace.transforms.windows import tumbling, window_bounds

Join = Literal["inner", "left", "right", "full"]

ORDER = required(order_id=StringType(), user_id=StringType(), order_time=TimestampType())
PAYMENT = StructType(
    [
        StructField("order_id", StringType(), nullable=False),
        # Money is a decimal: sums are exact, whatever the order of the rows.
        StructField("amount", DecimalType(12, 2), nullable=False),
        StructField("pay_time", TimestampType(), nullable=False),
    ]
)
# The flow of each join.
NAMES: dict[Join, str] = {
    "inner": "paid_orders",
    "left": "orders_with_payments",
    "right": "payments_with_orders",
    "full": "orders_and_payments",
}


@dataclass(frozen=True)
class OrderSettings:
    """The numbers of orders and payments.

    | field           | default          | decides                                                            |
    |-----------------|------------------|--------------------------------------------------------------------|
    | orders_topic    | orders           | where orders are read                                              |
    | payments_topic  | payments         | where payments are read                                            |
    | bound           | 1 hour           | how long after its order a payment may be made                     |
    | inner_watermark | 10 minutes       | how late a row may be for the inner join                           |
    | outer_watermark | 30 minutes       | how late a row may be for the outer joins                          |
    | idle_timeout    | None             | after how long an idle topic no longer holds the watermark back    |
    | trigger         | every 30 seconds | freshness of the tables                                            |
    | max_offsets     | fits the machine | the most records of one batch, of each topic                       |
    | folder          | silver           | where the tables are, each named as its flow                       |
    | joins           | all four         | which of them run                                                  |
    """

    orders_topic: str = "orders"
    payments_topic: str = "payments"
    bound: str = "1 hour"
    inner_watermark: str = "10 minutes"
    outer_watermark: str = "30 minutes"
    idle_timeout: str | None = None
    trigger: Trigger = field(default_factory=lambda: Every("30 seconds"))
    max_offsets: int | AutoBatchSize = field(default_factory=AutoBatchSize)
    folder: str = "silver"
    joins: tuple[Join, ...] = ("inner", "left", "right", "full")

    @property
    def topics(self) -> tuple[str, str]:
        """Every topic that the flows read."""
        return self.orders_topic, self.payments_topic

    def delay(self, how: Join) -> str:
        """Return how late a row may be for a join."""
        return self.inner_watermark if how == "inner" else self.outer_watermark

    def table(self, how: Join) -> str:
        """Return the table of a join, below the lake."""
        return f"{self.folder}/{NAMES[how]}"

    def expected_rows(self, how: Join, orders_per_second: float, payments_per_second: float) -> int:
        """Return the number of rows in the state of a join: the rate of each side, times how long its rows stay.

        An order stays until the watermark, which is the delay behind the newest row, has passed its bound. A payment
        can only match an earlier order, so it stays for the delay.
        """
        return round(sum(self._expected(how, orders_per_second, payments_per_second)))

    def expected_bytes(self, how: Join, orders_per_second: float, payments_per_second: float) -> int:
        """Return about how many bytes these rows take in a store, before it packs them."""
        orders, payments = self._expected(how, orders_per_second, payments_per_second)
        return round(
            orders * state_row_bytes(self.reads(how, "orders"))
            + payments * state_row_bytes(self.reads(how, "payments"))
        )

    def _expected(self, how: Join, orders_per_second: float, payments_per_second: float) -> tuple[float, float]:
        delay, bound = Duration.parse(self.delay(how)).seconds, Duration.parse(self.bound).seconds
        return orders_per_second * (delay + bound), payments_per_second * delay

    def reads(self, how: Join, side: Literal["orders", "payments"]) -> Input:
        """Return the input of a join for one side."""
        topic, schema, column = {
            "orders": (self.orders_topic, ORDER, "order_time"),
            "payments": (self.payments_topic, PAYMENT, "pay_time"),
        }[side]
        source = KafkaSource(topic, max_offsets_per_trigger=self.max_offsets)
        watermark = Watermark(column, self.delay(how), idle_timeout=self.idle_timeout)
        return Input(source, schema=schema, watermark=watermark, key_required=True)


def join_payments(orders: DataFrame, payments: DataFrame, how: Join, bound: str) -> DataFrame:
    """Return orders joined with their payments. If a side has no partner, its columns are null.

    The bound limits the state: no payment can match an order that the watermark has passed by more than the bound.
    Without it the state would grow forever, and a row without partner could never be emitted.
    """
    seconds = Duration.parse(bound).ms / 1000
    paid = payments.withColumnRenamed("order_id", "paid_order_id")
    within = F.expr(
        "order_id = paid_order_id AND pay_time >= order_time "
        f"AND pay_time <= order_time + INTERVAL '{seconds:f}' SECOND"
    )
    return orders.join(paid, within, how).select(
        F.coalesce("order_id", "paid_order_id").alias("order_id"), "user_id", "order_time", "amount", "pay_time"
    )


def hit_rate(rows: DataFrame) -> DataFrame:
    """Return the share of orders that found their payment, by the minute of the order.

    Of the rows of a left or full join. The last minutes of a stream are not final yet: an order counts as unpaid when
    the watermark has passed its bound, and as paid immediately.
    """
    orders = rows.where(F.col("order_time").isNotNull())
    paid = F.count_distinct(F.when(F.col("pay_time").isNotNull(), F.col("order_id")))
    return (
        orders.groupBy(tumbling("order_time", "1 minute"))
        .agg(F.count_distinct("order_id").alias("orders"), paid.alias("paid"))
        .select(*window_bounds(), "orders", "paid", F.round(F.col("paid") / F.col("orders"), 4).alias("hit_rate"))
    )


def flows(settings: OrderSettings | None = None) -> list[Flow]:
    """Return one flow for each join."""
    settings = settings or OrderSettings()
    return [
        Flow(
            name=NAMES[how],
            description=f"Orders with their payments, {how} join",
            inputs={"orders": settings.reads(how, "orders"), "payments": settings.reads(how, "payments")},
            transform=partial(join_payments, how=how, bound=settings.bound),
            sink=DeltaAppend(settings.table(how)),
            trigger=settings.trigger,
        )
        for how in settings.joins
    ]
