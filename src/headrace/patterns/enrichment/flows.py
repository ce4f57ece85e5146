"""Enrichment: purchases joined with a table of products that changes while they come.

Two flows. `products` keeps the newest state of each product in a table, the dimension. `purchases` writes each purchase
with its product, or lets it wait in the same table until the product arrives.
"""

from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.types import DecimalType, IntegerType, StringType, StructField, StructType, TimestampType

from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import Every, OutputMode, Trigger, Watermark
from headrace.flow.source import AutoBatchSize
from headrace.patterns.schema import required
from headrace.sinks.delta.dimension import AsOf, Dimension, OnNewVersion, Refresh
from headrace.sinks.delta.enriched import DeltaEnriched
from headrace.sinks.delta.policy import TablePolicy
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sources.kafka.source import KafkaSource

PURCHASE = required(
    purchase_id=StringType(), product_id=StringType(), user_id=StringType(), quantity=IntegerType(), ts=TimestampType()
)
# What a purchase gets of its product.
PRODUCT_COLUMNS = StructType(
    [StructField("name", StringType()), StructField("category", StringType()), StructField("price", DecimalType(10, 2))]
)
PRODUCT = required(
    product_id=StringType(),
    name=StringType(),
    category=StringType(),
    price=DecimalType(10, 2),
    updated_at=TimestampType(),
)


@dataclass(frozen=True)
class EnrichmentSettings:
    """The numbers of enrichment.

    | field            | default          | decides                                                             |
    |------------------|------------------|---------------------------------------------------------------------|
    | topic            | purchases        | where purchases are read                                            |
    | dimension        | dim/products     | the table of products                                               |
    | refresh          | on a new version | when purchases meet a newer version of it: `OnNewVersion()`,        |
    |                  |                  | `EachBatch()`, `EveryInterval("5 minutes")`                         |
    | as_of            | None             | `AsOf("ts")`: join with the product as it was when it was bought;   |
    |                  |                  | the dimension then says from when to when each row was valid, by    |
    |                  |                  | the columns that `AsOf` names, and somebody else writes it          |
    | broadcast_limit  | 100 MB           | the most that the dimension may take in memory                      |
    | trigger          | every 30 seconds | freshness of the purchases                                          |
    | idle_timeout     | 1 minute         | after how long without purchases those that wait are looked up when |
    |                  |                  | the dimension has changed; None waits for the next purchase         |
    | products_topic   | products         | where changes of products are read                                  |
    | products_trigger | every 10 seconds | how soon a product is known                                         |
    | max_offsets      | fits the machine | the most records of one batch                                       |
    | table            | silver/purchases | where purchases go, enriched and waiting ones                       |
    | policy           | `TablePolicy()`  | maintenance of both tables: compaction, retention      |
    """

    topic: str = "purchases"
    dimension: str = "dim/products"
    refresh: Refresh = field(default_factory=OnNewVersion)
    as_of: AsOf | None = None
    broadcast_limit: str = "100 MB"
    trigger: Trigger = field(default_factory=lambda: Every("30 seconds"))
    idle_timeout: str | None = "1 minute"
    products_topic: str = "products"
    products_trigger: Trigger = field(default_factory=lambda: Every("10 seconds"))
    max_offsets: int | AutoBatchSize = field(default_factory=AutoBatchSize)
    table: str = "silver/purchases"
    policy: TablePolicy | None = field(default_factory=TablePolicy)

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic that the flows read."""
        return self.topic, self.products_topic


def pass_through(rows: DataFrame) -> DataFrame:
    """Return the rows: what makes this pattern is done by its sinks, batch by batch."""
    return rows


def flows(settings: EnrichmentSettings | None = None) -> list[Flow]:
    """Return the flow of purchases, and before it that of products, unless the dimension is somebody else's."""
    settings = settings or EnrichmentSettings()
    purchases = Flow(
        name="purchases",
        description="Purchases with their products",
        inputs=Input(
            KafkaSource(settings.topic, max_offsets_per_trigger=settings.max_offsets),
            schema=PURCHASE,
            # Nothing is ever late here, without state. A time of the year 2099 is invalid all the same.
            watermark=Watermark("ts", "0 seconds", idle_timeout=settings.idle_timeout),
        ),
        transform=pass_through,
        sink=DeltaEnriched(
            settings.table,
            key="product_id",
            dimension=Dimension(
                settings.dimension,
                key="product_id",
                columns=PRODUCT_COLUMNS,
                refresh=settings.refresh,
                as_of=settings.as_of,
                broadcast_limit=settings.broadcast_limit,
                required=settings.as_of is not None,
            ),
            policy=settings.policy,
        ),
        trigger=settings.trigger,
    )
    if settings.as_of is not None:
        return [purchases]
    products = Flow(
        name="products",
        description="The newest state of each product",
        inputs=Input(
            KafkaSource(settings.products_topic, max_offsets_per_trigger=settings.max_offsets), schema=PRODUCT
        ),
        transform=pass_through,
        sink=DeltaUpsert(settings.dimension, key=("product_id",), sequence="updated_at", policy=settings.policy),
        output_mode=OutputMode.UPDATE,
        trigger=settings.products_trigger,
    )
    return [products, purchases]
