"""Append rows with the columns of a dimension; rows without a match wait in the table until the dimension has one."""

import json
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession, functions as F

from headrace.clients.spark.delta_log import version
from headrace.clients.spark.settings import session_settings
from headrace.clients.sql import column_named, quote_name
from headrace.errors import FlowError
from headrace.flow.levers import OutputMode
from headrace.flow.run_cache import CachedFact, RunCache
from headrace.flow.sink import Batch, HasPendingRows
from headrace.flow.target import Target
from headrace.sinks.delta.dimension import Dimension, DimensionCache, LoadedDimension, require_table_exists
from headrace.sinks.delta.table import DeltaTableSink

ENRICHED, VERSION = "enriched", "dimension_version"
# A replaceWhere write replaces the waiting rows, and may also add rows outside of its condition.
_REPLACE = {"spark.databricks.delta.replaceWhere.constraintCheck.enabled": "false"}


@dataclass
class _LastLookup(CachedFact):
    """The dimension version in which waiting rows were last looked up by this run, and whether it has written."""

    version: tuple[str, int] | None = None
    wrote: bool = False


@dataclass(frozen=True)
class DeltaEnriched(DeltaTableSink, HasPendingRows):
    """Append each micro-batch to a Delta table with the columns of a dimension, joined by broadcast.

    | field     | meaning                                                                                        |
    |-----------|------------------------------------------------------------------------------------------------|
    | key       | the column of the rows that references the key of the dimension                                |
    | dimension | the table to join with, and when it is refreshed                                               |

    The table is partitioned by `enriched`. A row without a match has `enriched = false` and null dimension columns.
    The first batch that sees another version of the dimension looks these rows up again; a row with a match moves to
    `enriched = true` and never changes again. `dimension_version` is the version of the row's last lookup.

    While no rows come there are no batches. Give the input's watermark an `idle_timeout`: then the runtime makes a
    batch without rows when rows wait and the dimension is another one (`HasPendingRows`).

    The rows of a batch and the waiting rows are written in one commit, so every version of the table contains each row
    once: enriched or waiting. The `userMetadata` of the commit has the batch and the version of the dimension.

    Exactly once, on the conditions of `DeltaTableSink`. A retried batch may see a newer version of the dimension: its
    rows are those of the first attempt or those of the second, never a mix.
    """

    key: str
    dimension: Dimension
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND})

    def preflight(self, target: Target) -> None:
        """Check that a local folder is writable, and that the dimension exists."""
        super().preflight(target)
        require_table_exists(self.dimension, target)

    def prepare(self, spark: SparkSession, target: Target, cache: RunCache) -> None:
        """Load the dimension, so that one that is too large or not as declared fails before the query starts."""
        super().prepare(spark, target, cache)
        cache.get(DimensionCache, self.folder(target)).current(self.dimension, spark, target)

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write the rows, and the waiting rows if the dimension has changed, in one commit that records the batch.

        1. Choose the version of the dimension by its refresh policy.
        2. Add the waiting rows to the batch, unless they were already looked up in this version.
        3. Join and commit: append the rows of the batch, replace the waiting rows.
        """
        self._require_own_names(rows)
        session, location = rows.sparkSession, self.folder(batch.target)
        last_lookup = batch.cache.get(_LastLookup, location)
        loaded = batch.cache.get(DimensionCache, location).current(self.dimension, session, batch.target)
        loaded_version = (loaded.identity, loaded.version)
        retry_waiting = loaded_version != last_lookup.version and version(session, location) >= 0
        if retry_waiting:
            waiting = session.read.format("delta").load(location).where(~F.col(ENRICHED))
            rows = rows.unionByName(waiting.select(*(column_named(name) for name in rows.columns)))
        metadata = {"batch": batch.id, "query_id": batch.query_id, VERSION: loaded.version}
        writer = (
            self.writer(self._joined(rows, loaded), batch)
            .option("userMetadata", json.dumps(metadata))
            .partitionBy(ENRICHED)
        )
        with session_settings(session, _REPLACE):
            if retry_waiting:
                writer.mode("overwrite").option("replaceWhere", f"{ENRICHED} = false").save(location)
            else:
                writer.mode("append").save(location)
        # Delta may skip the first batch of a run: an earlier attempt, with another version, has committed it.
        last_lookup.version = loaded_version if last_lookup.wrote else None
        last_lookup.wrote = True
        self.run_maintenance(session, batch)

    def is_due(self, session: SparkSession, target: Target, cache: RunCache) -> bool:
        """Whether rows wait that were not yet looked up in the version of the dimension that a batch would use now."""
        location = self.folder(target)
        next_version = cache.get(DimensionCache, location).peek_version(self.dimension, session, target)
        if next_version == cache.get(_LastLookup, location).version or version(session, location) < 0:
            return False
        return not session.read.format("delta").load(location).where(~F.col(ENRICHED)).isEmpty()

    def _joined(self, rows: DataFrame, loaded: LoadedDimension) -> DataFrame:
        dimension = self.dimension
        dimension_columns = {name: F.col(f"_dimension.{quote_name(name)}") for name in loaded.rows.columns}
        broadcast = F.broadcast(loaded.rows.select(F.struct("*").alias("_dimension")))
        condition = column_named(self.key) == dimension_columns[dimension.key]
        if dimension.as_of is not None:
            event_time, since = column_named(dimension.as_of.time), dimension_columns[dimension.as_of.valid_from]
            until = dimension_columns[dimension.as_of.valid_to]
            condition &= (since.isNull() | (event_time >= since)) & (until.isNull() | (event_time < until))
        return rows.join(broadcast, condition, "left").select(
            *(column_named(name) for name in rows.columns),
            *(dimension_columns[name].alias(name) for name in dimension.names),
            F.col("_dimension").isNotNull().alias(ENRICHED),
            F.lit(loaded.version).cast("long").alias(VERSION),
        )

    def _require_own_names(self, rows: DataFrame) -> None:
        taken = sorted(set(rows.columns) & {*self.dimension.names, ENRICHED, VERSION})
        if taken:
            raise FlowError(
                f"Rows of {self.name} have columns already that the dimension {self.dimension.path} would give them.",
                why=f"Both have {', '.join(taken)}.",
                state="Nothing was written.",
                remedy="Rename them in the transform, or leave them out of the dimension's columns.",
                code="HR-564",
            )
