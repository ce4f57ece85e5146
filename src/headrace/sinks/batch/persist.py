"""Persist the rows of a batch, so that a sink can read them more than once."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame
from pyspark.storagelevel import StorageLevel

from headrace.clients.spark.jvm import java_dataset


@contextmanager
def persisted(rows: DataFrame) -> Iterator[DataFrame]:
    """Persist the rows until the end of the block.

    Does not unpersist a DataFrame that the caller has already persisted, such as a fan-out: the next sink would
    compute the batch, and its state, again.
    """
    if rows.storageLevel != StorageLevel.NONE:
        yield rows
        return
    cached = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield cached
    finally:
        cached.unpersist()


@contextmanager
def locally_checkpointed(rows: DataFrame) -> Iterator[DataFrame]:
    """Write the rows to a local checkpoint until the end of the block, as the source of a MERGE.

    Delta rejects persisted rows as the source of a MERGE that does not materialize them, because they can be
    unpersisted while the MERGE runs. It accepts a local checkpoint, whose plan does not depend on the cache.
    """
    checkpointed = rows.localCheckpoint(eager=False, storageLevel=StorageLevel.MEMORY_AND_DISK)
    try:
        yield checkpointed
    finally:
        java_dataset(checkpointed).queryExecution().logical().rdd().unpersist(False)
