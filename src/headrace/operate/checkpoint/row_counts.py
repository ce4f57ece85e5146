"""Count the rows in the state of a flow with Spark's state store reader."""

from collections.abc import Iterable
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.operate.checkpoint.show import StoreSize
from headrace.operate.checkpoint.state import DEFAULT_STORE
from headrace.runtime.checkpoint.checkpoint import Checkpoint


def count_rows(spark: SparkSession, checkpoint: Checkpoint, state: Iterable[StoreSize]) -> tuple[StoreSize, ...]:
    """Return the stores with their row counts after the last committed batch. Reads every key of the state.

    Stores that Spark cannot read, such as those of custom state with several variables, keep `rows` None.
    """
    stores = list(state)
    rows: dict[tuple[int, str], dict[int, int]] = {}
    for operator, name in dict.fromkeys((store.operator, store.store) for store in stores):
        reader = spark.read.format("statestore").option("operatorId", operator)
        if name != DEFAULT_STORE:
            reader = reader.option("storeName", name)
        try:
            counts = reader.load(checkpoint.location).groupBy("partition_id").count().collect()
        except PySparkException:
            continue
        rows[operator, name] = {row["partition_id"]: row["count"] for row in counts}
    return tuple(
        replace(store, rows=rows[store.operator, store.store].get(store.partition, 0))
        if (store.operator, store.store) in rows
        else store
        for store in stores
    )
