"""Word count without a socket: as a batch, and as a stream with a crash in it."""

from collections import Counter
from datetime import UTC, datetime

from flows import word_count, words
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from headrace.testing import Arrive, Crash, Point, rehearse

LINES = ["To be, or not to be:", "that is the question.", "", "to be continued"]
COUNTS = Counter("to be or not to be that is the question to be continued".split())

# The columns of a socket.
LINE = StructType([StructField("value", StringType()), StructField("timestamp", TimestampType())])
NOW = datetime(2026, 3, 2, tzinfo=UTC)


def test_words_of_a_batch_are_counted(spark):
    counted = word_count(spark.createDataFrame([(line, NOW) for line in LINES], LINE))
    assert {row.word: row["count"] for row in counted.collect()} == COUNTS


def test_a_crash_counts_no_word_twice(spark, tmp_path):
    first, *rest = ({"value": line, "timestamp": NOW} for line in LINES)
    script = [Arrive(first), Crash(Point.AFTER_SINK), Arrive(*rest)]
    result = rehearse(words, script, spark=spark, folder=tmp_path, columns={"rows": LINE})
    assert {row.word: row["count"] for row in result.batches[-1]} == COUNTS
