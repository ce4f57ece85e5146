"""How many rows the state of a flow holds, counted by Spark's own reader of state stores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from headrace.operate.checkpoint.show import StoreSize
from headrace.operate.checkpoint.state import DEFAULT
from headrace.runtime.checkpoint.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def counted(spark: SparkSession, checkpoint: Checkpoint, state: Iterable[StoreSize]) -> tuple[StoreSize, ...]:
    """Return the stores with their rows, as of the last committed batch. Reads every key of the state.

    Stores that Spark cannot read as a whole, such as those of custom state with several variables, stay uncounted.
    """
    stores = list(state)
    rows: dict[tuple[int, str], dict[int, int]] = {}
    for operator, name in dict.fromkeys((store.operator, store.store) for store in stores):
        reader = spark.read.format("statestore").option("operatorId", operator)
        if name != DEFAULT:
            reader = reader.option("storeName", name)
        try:
            found = reader.load(checkpoint.location).groupBy("partition_id").count().collect()
        except PySparkException:
            continue
        rows[operator, name] = {row["partition_id"]: row["count"] for row in found}
    return tuple(
        replace(store, rows=rows[store.operator, store.store].get(store.partition, 0))
        if (store.operator, store.store) in rows
        else store
        for store in stores
    )
