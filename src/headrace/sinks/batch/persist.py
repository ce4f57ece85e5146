"""Rows that are computed once and read as often as a sink likes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.storagelevel import StorageLevel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@contextmanager
def kept(rows: DataFrame) -> Iterator[DataFrame]:
    """Keep the rows on the executors from their first reading to the end of the block.

    Rows that are kept already, by a fan-out for instance, stay so: who keeps them lets go of them. Letting go here
    would make the next sink compute the batch, and its state, again.
    """
    if rows.storageLevel != StorageLevel.NONE:
        yield rows
        return
    held = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield held
    finally:
        held.unpersist()


@contextmanager
def pinned(rows: DataFrame) -> Iterator[DataFrame]:
    """Keep the rows as `kept` does, for a MERGE that keeps no copy of its own.

    Delta refuses rows of Spark's cache then, since anybody might let go of them under the MERGE. It takes these: their
    plan ends in the rows themselves.
    """
    held = rows.localCheckpoint(eager=False, storageLevel=StorageLevel.MEMORY_AND_DISK)
    try:
        yield held
    finally:
        held._jdf.queryExecution().logical().rdd().unpersist(False)
