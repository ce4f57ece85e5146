"""The changes of one table of orders, as Debezium writes them, and the table that they go into."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.cdc.capture.source_table import SourceColumn, SourceTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "shop.public.orders"
ORDERS = SourceTable(
    "public",
    "orders",
    (
        SourceColumn("id", "bigint", nullable=False),
        SourceColumn("customer", "bigint", nullable=True),
        SourceColumn("state", "text", nullable=True),
        SourceColumn("amount", "numeric(12,2)", nullable=True),
        SourceColumn("note", "text", nullable=True),
        SourceColumn("changed", "timestamp with time zone", nullable=True),
    ),
    ("id",),
    "postgres",
)
# A row as it was before the changes; a thousand positions of the log are left for each of them.
ROW = (
    "id",
    "id % 5000 AS customer",
    "'new' AS state",
    "CAST(id % 100000 / 100 AS DECIMAL(12,2)) AS amount",
    "sha2(CAST(id AS STRING), 256) AS note",
    "timestamp_seconds(1767225600 + id) AS changed",
)
_CREATED, _UPDATED = 0.4, 0.9
_OVERLAPPING = 20


@dataclass(frozen=True)
class Orders:
    """So many orders, numbered from 0, and batches of changes of a fixed size.

    Of a batch, four in ten are new orders, five are updates and one is a delete. Nine updates or deletes in ten are of
    the last twentieth of the orders, as in a shop; the tenth is of any.
    """

    rows: int
    batch: int
    seed: int = 7

    def table(self, spark: SparkSession) -> DataFrame:
        """Return the orders before the first change, in the order of their key."""
        return spark.range(0, self.rows, 1, max(1, self.rows // 250_000)).selectExpr(*ROW)

    def write(self, spark: SparkSession, folder: Path, number: int) -> str:
        """Write one batch as records of the topic, and return where."""
        path = f"{folder}/changes-{self.rows}-{number}"
        records = list(self._records(number))
        frame = spark.createDataFrame(records, "offset bigint, op string, id bigint, lsn bigint")
        after = F.struct(
            F.col("id"),
            F.expr("id % 5000").alias("customer"),
            F.concat(F.lit("state-"), F.col("lsn").cast("string")).alias("state"),
            F.expr("CAST(CAST(lsn % 100000 / 100 AS DECIMAL(12,2)) AS STRING)").alias("amount"),
            F.expr("sha2(CAST(lsn AS STRING), 256)").alias("note"),
            F.expr("date_format(timestamp_seconds(1767225600 + id), \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'\")").alias(
                "changed"
            ),
        )
        source = F.struct(
            F.lit("public").alias("schema"), F.lit("orders").alias("table"), "lsn", F.lit(1).alias("ts_ms")
        )
        value = F.struct(
            F.when(F.col("op") == "d", F.struct("id")).alias("before"),
            F.when(F.col("op") != "d", after).alias("after"),
            source.alias("source"),
            "op",
        )
        frame.select(
            F.lit(TOPIC).alias("topic"),
            F.lit(0).alias("partition"),
            "offset",
            F.to_json(F.struct("id")).cast("binary").alias("key"),
            F.to_json(value, {"ignoreNullFields": "false"}).alias("value"),
        ).coalesce(2).write.parquet(path)
        return path

    def _records(self, number: int) -> Iterator[tuple[int, str, int, int]]:
        chance = random.Random(f"{self.seed}/{number}")  # noqa: S311 - not for secrets
        created = self.rows + number * self.batch
        for index in range(self.batch):
            drawn = chance.random()
            recent = chance.random() < 0.9
            old = created - 1 - int(chance.random() * (created // 20 if recent else created))
            op, key = ("c", created) if drawn < _CREATED else ("u" if drawn < _UPDATED else "d", old)
            created += op == "c"
            offset = number * self.batch + index
            # Transactions that overlap: the first orders of a batch were written before the last changes of the one
            # before it, and committed after them.
            back = 2 * _OVERLAPPING * 1000 - 500 if op == "c" and index < _OVERLAPPING else 0
            yield offset, op, key, self.rows * 1000 + offset * 1000 - back
