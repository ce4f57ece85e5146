"""Create the Delta table of a source table, and write to it under the identity of a batch."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, types as T

from headrace.clients.spark.delta_log import snapshot, version
from headrace.clients.spark.settings import session_settings
from headrace.clients.sql import quote_name
from headrace.flow.run_cache import RunCache
from headrace.sinks.delta.sql import idempotent_write, set_table_properties

# The position in the source's log of the last change of a row.
POSITION = "_headrace_position"
# Metadata of a column of changes, and a table property: the format of the texts, if the column type does not imply it.
TEXT_FORMAT = "headrace.text_format"

# Delta collects the minimum and maximum of this many columns per file. Files cannot be skipped by keys after them.
_WITH_STATISTICS = 32
# The maximum number of clustering columns of a table.
_MOST_CLUSTERED = 4
_MOVED_IN_FULL = (T.ArrayType, T.MapType, T.StructType, T.BooleanType, T.BinaryType, T.VariantType)

# Parquet does not allow these in the names of columns. Column mapping gives the columns other names in the files.
_NOT_IN_FILES = " ,;{}()\n\t="

_MERGE = {
    # The source of the MERGE is checkpointed already: Delta would store it a second time.
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
}
_VECTORS = "delta.enableDeletionVectors"
# Deletion vectors need extra jobs; rewriting files takes longer the larger they are. `bench/cdc.py --only vectors`: the
# same time at 8 MB; without deletion vectors 1.2 times the time at 28 MB, 1.3 at 83 MB, 2.5 at 275 MB.
_WORTH_VECTORS = 16 * 1024 * 1024
# A batch is a few dozen small queries: their cost is the number of jobs, not the number of rows.
SMALL_BATCH_CONF = {
    # Adaptive execution runs a job per stage, to choose between plans that are all fast here.
    "spark.sql.adaptive.enabled": "false",
    # Store the batches of a table with each version; otherwise every commit reads the whole log.
    "spark.databricks.delta.setTransactionsInCrc.writeOnCommit": "true",
    # All rows of a replaceWhere write have keys of its condition. Delta would check each row again.
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "false",
    # Spark filters thousands of keys itself. Pushed down to Parquet, their list would be packed and unpacked for each
    # file, which took half of the time. The ranges around the keys are still pushed down.
    "spark.sql.parquet.pushdown.inFilterThreshold": "0",
    # Keep a list of keys out of the generated code, however short it is: see `replace_where.key_condition`.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    "spark.sql.optimizer.inSetSwitchThreshold": "0",
    # A column may be named `${...}`: that is not a variable.
    "spark.sql.variable.substitute": "false",
}


@dataclass(frozen=True)
class TableWrite:
    """A table, and the attempt of a batch to write to it.

    | field      | meaning                                                                                       |
    |------------|-----------------------------------------------------------------------------------------------|
    | table      | the name for messages                                                                         |
    | location   | the path of the table                                                                         |
    | tombstones | the path of the tombstones of its deleted keys                                                |
    | app_id     | the identity of the writer, the same for every table of a batch                               |
    | batch_id   | the number of the batch                                                                       |
    | cache      | what the run remembers of the table                                                           |
    """

    table: str
    location: str
    tombstones: str
    app_id: str
    batch_id: int
    cache: RunCache = field(default_factory=RunCache, compare=False, repr=False)

    @contextmanager
    def commit(self, session: SparkSession) -> Iterator[None]:
        """Run the writes of a block under the identity of the batch: Delta skips a write if the table has the batch.

        MERGE, DELETE and UPDATE read it from the session only. Tables that are written concurrently share it.
        """
        with session_settings(session, {**_MERGE, **idempotent_write(self.app_id, self.batch_id)}):
            yield


def create_table(session: SparkSession, location: str, columns: T.StructType, key: Sequence[str]) -> None:
    """Create a table, clustered by its key, unless it exists."""
    if version(session, location) >= 0:
        return
    table = DeltaTable.createIfNotExists(session).location(location)
    # All columns are nullable: the next ALTER TABLE at the source may change which ones are.
    table = table.addColumns(T.StructType([T.StructField(column.name, column.dataType) for column in columns]))
    # Not every reader supports deletion vectors and type widening: they are enabled when a table needs them.
    table = table.property(_VECTORS, "false")
    if formats := text_formats_of(columns):
        table = table.property(TEXT_FORMAT, json.dumps(formats))
    clustered = [name for name in key if not isinstance(columns[name].dataType, _MOVED_IN_FULL)][:_MOST_CLUSTERED]
    if any(columns.names.index(name) >= _WITH_STATISTICS for name in key):
        first = [*key, *(name for name in columns.names if name not in key)][:_WITH_STATISTICS]
        table = table.property("delta.dataSkippingStatsColumns", ",".join(map(quote_name, first)))
    if clustered:
        table = table.clusterBy(*map(quote_name, clustered))
    if any(letter in name for name in _column_names(columns) for letter in _NOT_IN_FILES):
        table = table.property("delta.columnMapping.mode", "name")
    table.execute()


def _column_names(columns: T.StructType) -> Iterator[str]:
    for column in columns:
        yield column.name
        if isinstance(column.dataType, T.StructType):
            yield from _column_names(column.dataType)


def text_formats_of(schema: T.StructType) -> dict[str, str]:
    """Return the text formats in the metadata of columns."""
    formats: dict[str, str] = {}
    for column in schema:
        if isinstance(column.dataType, T.StructType):
            formats |= text_formats_of(column.dataType)
        elif TEXT_FORMAT in (column.metadata or {}):
            formats[column.name] = str(column.metadata[TEXT_FORMAT])
    return formats


def enable_deletion_vectors(session: SparkSession, location: str) -> None:
    """Enable deletion vectors for a table that has grown, instead of rewriting the files of deleted rows.

    A separate commit, once in the lifetime of a table.
    """
    now = snapshot(session, location)
    if now.table_property(_VECTORS) == "true":
        return
    table_size = now.files_and_bytes
    if table_size is not None and table_size[1] > _WORTH_VECTORS:
        set_table_properties(session, location, {_VECTORS: "true"})


def struct_fields(rows: DataFrame, name: str) -> T.StructType:
    """Return the columns within a struct of changes: `_key` or `_after`."""
    struct = rows.schema[name].dataType
    assert isinstance(struct, T.StructType)  # noqa: S101 - the frame of changes says so
    return struct
