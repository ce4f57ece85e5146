"""Topics of a capture whose changes are not kept: they are passed over, aloud, so that one table stops no other.

A capture by a pattern reads every topic of its prefix, and so also those of tables that it does not choose any more,
and of tables that were dropped before anything of them was kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import DataError
from headrace.flow.sink import Batch, SetAside
from headrace.sinks.delta.log import version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class NotKept:
    """What the lookup of a topic says whose table is not to be kept.

    `error` is raised in place of passing over where something of the table was kept: it would no longer be equal.
    """

    topic: str
    why: str
    error: DataError | None = None


def pass_over(found: NotKept, rows: DataFrame, folder: str, sink: str, batch: Batch) -> None:
    """Say how many changes of a topic are passed over, or raise. Called once per batch that has any."""
    kept = f"{folder}/{found.topic.rpartition('.')[2]}"
    if found.error is not None and version(rows.sparkSession, kept) >= 0:
        raise found.error
    batch.tell(SetAside(sink, rows.count(), found.why, f"In the topic {found.topic}, as long as it keeps them."))
