"""How far `unique_users` of real-time aggregates is from the exact count: `python bench/sketch_error.py`.

Each group is an hour of twelve windows whose users overlap, so that the number that is measured comes out of merged
sketches. Prints a line per number of users and size of sketch.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession, functions as F

from headrace.patterns.sales.flows import SalesSettings, category_sales, roll_up
from headrace.testing.rehearsal import local_session

_GROUPS = 100
_WINDOWS = 12
_HOUR = datetime(2026, 3, 2, 10, tzinfo=UTC).timestamp()


def sales(spark: SparkSession, users: int) -> DataFrame:
    """Return sales of `_GROUPS` categories: each user buys in one window of the hour, every third one in two."""
    group, user = F.expr(f"id % {_GROUPS}"), F.expr(f"id div {_GROUPS}")
    windows = F.when(user % 3 == 0, F.array(user % _WINDOWS, (user + 5) % _WINDOWS)).otherwise(F.array(user % _WINDOWS))
    return (
        spark.range(_GROUPS * users)
        .select(group.alias("category"), user.alias("user"), F.explode(windows).alias("window"))
        .select(
            F.col("category").cast("string").alias("category"),
            F.lit("1.00").cast("decimal(10,2)").alias("amount"),
            F.concat_ws("-", F.lit("u"), "category", "user").alias("user_id"),
            F.timestamp_seconds(F.lit(_HOUR) + F.col("window") * 300).alias("ts"),
        )
    )


def measured(spark: SparkSession, users: int, lg_k: int) -> tuple[float, float]:
    """Return the root mean square and the largest of the errors, as shares of the exact number."""
    windows = category_sales(sales(spark, users), "5 minutes", lg_k)
    off = [
        row.unique_users / users - 1 for row in roll_up(windows.groupBy("category")).select("unique_users").collect()
    ]
    return math.sqrt(sum(error**2 for error in off) / len(off)), max(map(abs, off))


def main() -> None:
    """Measure, and print a table."""
    with TemporaryDirectory() as folder, local_session(Path(folder)) as spark:
        print("| `sketch_lg_k` | users | standard error, stated | measured, 100 hours | the largest of them |")
        print("|---|---|---|---|---|")
        for lg_k in (10, 12, 14):
            for users in (100, 1_000, 10_000, 30_000):
                measured_error, largest = measured(spark, users, lg_k)
                stated = SalesSettings(sketch_lg_k=lg_k).standard_error
                print(f"| {lg_k} | {users:,} | {stated:.2%} | {measured_error:.2%} | {largest:.2%} |", flush=True)


if __name__ == "__main__":
    main()
