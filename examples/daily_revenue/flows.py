"""Revenue per day and region: one function, which a stream runs all day and a batch at night."""

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import DecimalType, StringType, StructField, StructType, TimestampType

from headrace import AvailableNow, DeltaUpsert, FileSource, Flow, Input, Watermark, exact_distinct, tumbling

# Money is a decimal: sums are exact, in whatever order the rows come.
SALE = StructType(
    [
        StructField("sale_id", StringType()),
        StructField("region", StringType()),
        StructField("customer_id", StringType()),
        StructField("amount", DecimalType(10, 2)),
        StructField("sold_at", TimestampType()),
    ]
)
SALES, TABLE = "sales", "gold/daily_revenue"
KEY = ("day", "region")


def daily_revenue(sales: DataFrame) -> DataFrame:
    """What each region sold on a day (UTC), in how many sales, to how many customers."""
    return (
        sales.groupBy(tumbling("sold_at", "1 day"), "region")
        .agg(
            F.sum("amount").cast("decimal(18,2)").alias("revenue"),
            F.count("*").alias("sales"),
            exact_distinct("customer_id").alias("customers"),
        )
        .select(F.to_date("window.start").alias("day"), "region", "revenue", "sales", "customers")
    )


revenue = Flow(
    name="daily_revenue",
    # A sale that is reported more than two days late is not in the stream's answer. It is in the batch's.
    inputs=Input(FileSource(SALES, "json", SALE, max_files_per_trigger=1), watermark=Watermark("sold_at", "2 days")),
    transform=daily_revenue,
    sink=DeltaUpsert(TABLE, key=KEY),
    output_mode="update",
    trigger=AvailableNow(),
)
