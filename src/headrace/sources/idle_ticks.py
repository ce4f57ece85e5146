"""The heartbeats of an input as a stream: a folder of tiny files, each holding one event time.

Not a source that flows declare: the runtime puts it beside an input whose watermark has an `idle`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def beats(spark: SparkSession, folder: str) -> DataFrame:
    """Return the stream of a folder that is there: one column, the event times.

    Called once per start of a flow for each input that may go quiet. Spark deletes a file when the batch that read it
    is committed and the next one is planned. A file that is gone, or that is not whole yet, is passed over: a beat is
    never needed, the next one says the same and more.
    """
    lines = (
        spark.readStream.format("text")
        .option("wholetext", "true")
        .option("cleanSource", "delete")
        .option("ignoreMissingFiles", "true")
        .load(folder)
    )
    times = lines.select(F.timestamp_millis(F.col("value").try_cast("long")).alias("at"))
    return times.where(F.col("at").isNotNull())
