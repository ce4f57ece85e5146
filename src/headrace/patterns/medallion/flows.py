"""Medallion: three tables, each made of the one before by a flow with a trigger and a checkpoint of its own.

    topic --bronze--> everything as it came --silver--> parsed, ruled, each order once --gold--> figures per day

Bronze judges nothing, so nothing is lost by a wrong schema or rule: silver and gold can always be made again from it.
"""

from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import DecimalType, IntegerType, StringType, TimestampType

from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import Every, OutputMode, Trigger, Watermark
from headrace.flow.rules import Rule
from headrace.flow.source import AutoBatchSize
from headrace.patterns.schema import required
from headrace.sinks.delta.policy import TablePolicy
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sinks.delta.write import DeltaAppend
from headrace.sources.delta.bronze import BronzeSource
from headrace.sources.delta.source import DeltaSource
from headrace.sources.kafka.source import KafkaSource
from headrace.transforms.averages import exact_average
from headrace.transforms.dedup import deduplicate

ORDER = required(
    order_id=StringType(),
    customer_id=StringType(),
    country=StringType(),
    amount=DecimalType(10, 2),
    items=IntegerType(),
    ordered_at=TimestampType(),
)

# When bronze got a record. Columns of the record go by Kafka's names in rules and transforms.
ARRIVAL = "timestamp"

RULES = (
    Rule("positive_amount", "amount > 0", "quarantine"),
    Rule("not_from_the_future", "ordered_at <= timestamp + INTERVAL 1 HOUR", "quarantine"),
    Rule("no_test_orders", "NOT startswith(customer_id, 'test-')", "drop"),
    Rule("few_items", "items <= 50", "warn"),
    # The producer changed the unit, for example to cents: stop, instead of quarantining all orders of a shop.
    Rule("sane_amount", "amount < 1000000", "fail"),
)

_KEEP_EVERYTHING = {
    # Whoever rebuilds silver reads the versions of bronze from the first on, and whoever rebuilds gold those of silver.
    "delta.logRetentionDuration": "interval 3650 days",
    # Every few versions a checkpoint of the log lists all files of the table, and stays as long as the log. With the
    # default of 10 versions, checkpoints would be most of a small bronze table.
    "delta.checkpointInterval": "100",
}
# Each round writes the joined file that is not full yet once more, of up to 64 MB, and nothing is ever removed.
_SELDOM = 1000


def _keep_everything() -> TablePolicy:
    """Join small files now and then, and remove none: a rebuild reads the files of old versions."""
    return TablePolicy(_KEEP_EVERYTHING, small_files=_SELDOM, retention=None)


@dataclass(frozen=True)
class MedallionSettings:
    """The numbers of the medallion pattern.

    | field          | default          | decides                                                                  |
    |----------------|------------------|--------------------------------------------------------------------------|
    | topic          | web-orders       | where orders are read                                                    |
    | max_offsets    | fits the machine | the most records of one batch of bronze                                  |
    | max_files      | 200              | the most files of one batch of silver and of gold                        |
    | bronze_trigger | every 30 seconds | freshness of bronze                                                      |
    | silver_trigger | every minute     | freshness of silver                                                      |
    | gold_trigger   | every 5 minutes  | freshness of gold                                                        |
    | dedup_within   | 1 hour           | within which time of arrival in bronze an order counts once              |
    | rules          | RULES            | what has to be true of an order                                          |
    | bronze_table   | bronze/web_orders | everything as it came                                                   |
    | silver_table   | silver/web_orders | each order once                                                         |
    | gold_table     | gold/daily_sales | figures per day and country                                              |
    | bronze_policy  | keep everything  | properties and maintenance of bronze                                     |
    | silver_policy  | keep everything  | properties and maintenance of silver                                     |
    | gold_policy    | a week           | properties and maintenance of gold                                       |
    """

    topic: str = "web-orders"
    max_offsets: int | AutoBatchSize = field(default_factory=AutoBatchSize)
    max_files: int = 200
    bronze_trigger: Trigger = field(default_factory=lambda: Every("30 seconds"))
    silver_trigger: Trigger = field(default_factory=lambda: Every("1 minute"))
    gold_trigger: Trigger = field(default_factory=lambda: Every("5 minutes"))
    dedup_within: str = "1 hour"
    rules: tuple[Rule, ...] = RULES
    bronze_table: str = "bronze/web_orders"
    silver_table: str = "silver/web_orders"
    gold_table: str = "gold/daily_sales"
    bronze_policy: TablePolicy | None = field(default_factory=_keep_everything)
    silver_policy: TablePolicy | None = field(default_factory=_keep_everything)
    gold_policy: TablePolicy | None = field(default_factory=TablePolicy)

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic that the flows read."""
        return (self.topic,)


def to_bronze(records: DataFrame) -> DataFrame:
    """Keep the unchanged record: key, value, headers and Kafka position. The offset log has the time of the batch."""
    return records.select(
        F.col("value").alias("payload"),
        "key",
        "headers",
        "topic",
        "partition",
        "offset",
        F.col("timestamp").alias("kafka_ts"),
        F.current_timestamp().alias("ingested_at"),
    )


def to_silver(orders: DataFrame, arrival: Watermark) -> DataFrame:
    """Keep the first of the records of an order, by the time of its arrival in bronze, whatever its event time says."""
    once = deduplicate(orders, "order_id", within=arrival)
    return once.select(*ORDER.names, F.to_date("ordered_at").alias("order_date"))


def daily_sales(orders: DataFrame) -> DataFrame:
    """Figures per day and country. Without a watermark: an order of last week changes the figures of last week."""
    return orders.groupBy("order_date", "country").agg(
        F.count("*").alias("orders"),
        F.sum("items").alias("items"),
        F.sum("amount").alias("revenue"),
        exact_average(F.col("amount")).alias("avg_order"),
        F.max("amount").alias("largest_order"),
    )


def flows(settings: MedallionSettings | None = None) -> list[Flow]:
    """Return bronze, silver and gold."""
    settings = settings or MedallionSettings()
    arrival = Watermark(ARRIVAL, settings.dedup_within)
    return [
        Flow(
            name="bronze",
            description="Everything as it came",
            inputs=Input(KafkaSource(settings.topic, max_offsets_per_trigger=settings.max_offsets, raw=True)),
            transform=to_bronze,
            sink=DeltaAppend(settings.bronze_table, policy=settings.bronze_policy),
            trigger=settings.bronze_trigger,
        ),
        Flow(
            name="silver",
            description="Parsed, ruled, each order once",
            inputs=Input(
                BronzeSource(
                    settings.bronze_table,
                    max_files_per_trigger=settings.max_files,
                    redriven="_headrace/silver/redriven",
                ),
                schema=ORDER,
                watermark=arrival,
                metadata_columns=(ARRIVAL,),
                rules=settings.rules,
            ),
            transform=partial(to_silver, arrival=arrival),
            sink=DeltaAppend(settings.silver_table, policy=settings.silver_policy),
            trigger=settings.silver_trigger,
        ),
        Flow(
            name="gold",
            description="Figures per day and country",
            inputs=Input(
                DeltaSource(
                    settings.silver_table,
                    max_files_per_trigger=settings.max_files,
                    starting_version=0,
                    wait_for_table=True,
                )
            ),
            transform=daily_sales,
            sink=DeltaUpsert(settings.gold_table, key=("order_date", "country"), policy=settings.gold_policy),
            output_mode=OutputMode.UPDATE,
            trigger=settings.gold_trigger,
        ),
    ]
