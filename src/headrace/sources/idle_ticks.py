"""The idle ticks of an input as a stream: a folder of tiny files, each containing one event time.

Flows do not declare this source: the runtime adds it to an input whose watermark has an `idle_timeout`.
"""

from pyspark.sql import DataFrame, SparkSession, functions as F


def idle_ticks(spark: SparkSession, folder: str) -> DataFrame:
    """Return the stream of an existing folder: one column `at`, the event times.

    Called once per start of a flow for each input with an idle timeout. Spark deletes a file when the batch that read
    it is committed and the next one is planned. A missing or incomplete file is ignored: the next tick replaces it.
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
