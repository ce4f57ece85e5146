"""Skip the topics of tables that are not captured, and report them, so that one table does not stop the others.

A capture with a pattern reads every topic of its prefix. This includes topics of tables that it no longer selects, and
of tables that were dropped before any of their changes was applied.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame

from headrace.clients.spark.delta_log import version
from headrace.errors import DataError
from headrace.flow.sink import Batch, DeadLetters


@dataclass(frozen=True)
class SkippedTable:
    """A topic whose changes are skipped, and why.

    `error` is raised instead if the table was written before: it would no longer match its source.
    """

    topic: str
    why: str
    error: DataError | None = None


def skip(skipped: SkippedTable, rows: DataFrame, folder: str, sink: str, batch: Batch) -> None:
    """Report the number of skipped changes of a topic, or raise. Called once per batch that has any."""
    location = f"{folder}/{skipped.topic.rpartition('.')[2]}"
    if skipped.error is not None and version(rows.sparkSession, location) >= 0:
        raise skipped.error
    batch.on_dead_letters(
        DeadLetters(sink, rows.count(), skipped.why, f"In the topic {skipped.topic}, until its retention removes them.")
    )
