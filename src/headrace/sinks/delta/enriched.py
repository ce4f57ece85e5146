"""Rows with the columns of a dimension beside them, in one Delta table; those that it lacks wait there for it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import functions as F

from headrace.errors import FlowError
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.sinks.delta.dimension import Dimension, DimensionInUse, Loaded, require_there
from headrace.sinks.delta.log import version
from headrace.sinks.delta.sql import settings
from headrace.sinks.delta.table import DeltaTableSink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ENRICHED, VERSION = "enriched", "dimension_version"
# Rows of a batch may go anywhere while those that waited are replaced.
_REPLACE = {"spark.databricks.delta.replaceWhere.constraintCheck.enabled": "false"}


@dataclass
class _Tried:
    """With which version the rows that wait were last looked up, as far as this run knows, and whether it wrote yet."""

    identity: tuple[str, int] | None = None
    wrote: bool = False


@dataclass(frozen=True)
class DeltaEnriched(DeltaTableSink):
    """Append each micro-batch to a Delta table with the columns of a dimension, joined by broadcast.

    | field     | meaning                                                                                        |
    |-----------|------------------------------------------------------------------------------------------------|
    | key       | the column of the rows that names a row of the dimension                                       |
    | dimension | the table to join with, and when it is read again                                              |

    The table is partitioned by `enriched`. A row that the dimension does not have yet stands under `enriched = false`,
    the columns of the dimension null. A batch that is the first to see another version of the dimension looks these
    rows up again; who is found moves to `enriched = true`, and is never touched again. `dimension_version` is the
    version that a row was looked up in last.

    While no rows come there are no batches. Give the input's watermark an `idle`: then the runtime makes a batch
    without rows when rows wait and the dimension is another one (`Waiting`).

    The rows of a batch and the rows that waited change in one commit, so that in every version of the table each row is
    there once: enriched or waiting. The commit tells the batch and the version of the dimension in its `userMetadata`.

    Exactly once, on the conditions of `DeltaTableSink`. A batch that is run again may meet a newer version of the
    dimension: it is in as the first attempt wrote it or as the second one does, never half of each.
    """

    key: str
    dimension: Dimension
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND})
    in_use: DimensionInUse = field(default_factory=DimensionInUse, compare=False, repr=False)
    _tried: _Tried = field(default_factory=_Tried, init=False, compare=False, repr=False)

    def preflight(self, target: Target) -> None:
        """Prove that a local folder can be written, and that the dimension is there."""
        super().preflight(target)
        require_there(self.dimension, target)

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Read the dimension: one that is too large, or not as declared, is refused before the query starts."""
        super().prepare(spark, target)
        self.in_use.begin()
        self._tried.identity, self._tried.wrote = None, False
        self.in_use.current(self.dimension, spark, target)

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write the rows, and those that waited if the dimension is another one, in one commit that records the batch.

        1. Choose the version of the dimension, by its policy.
        2. Take the rows that wait into the batch, unless they were looked up in this version before.
        3. Join, and commit: the rows of the batch are added, the rows that waited replaced.
        """
        self._require_own_names(rows)
        session, location = rows.sparkSession, self.folder(batch.target)
        loaded = self.in_use.current(self.dimension, session, batch.target)
        found = (loaded.identity, loaded.version)
        again = found != self._tried.identity and version(session, location) >= 0
        if again:
            waiting = session.read.format("delta").load(location).where(~F.col(ENRICHED))
            rows = rows.unionByName(waiting.select(*(_quoted(name) for name in rows.columns)))
        told = {"batch": batch.id, "query_id": batch.query_id, VERSION: loaded.version}
        writer = (
            self._joined(rows, loaded)
            .write.format("delta")
            .option("txnAppId", batch.app_id)
            .option("txnVersion", str(batch.id))
            .option("userMetadata", json.dumps(told))
            .options(**self.properties)
            .partitionBy(ENRICHED)
        )
        with settings(session, _REPLACE):
            if again:
                writer.mode("overwrite").option("replaceWhere", f"{ENRICHED} = false").save(location)
            else:
                writer.mode("append").save(location)
        # The first batch of a run may be in from an earlier attempt, which saw another version, and be passed over now.
        self._tried.identity = found if self._tried.wrote else None
        self._tried.wrote = True
        self.look_after(session, batch.target)

    def is_due(self, session: SparkSession, target: Target) -> bool:
        """Whether rows wait that were not looked up yet in the version of the dimension that a batch would see now."""
        found, location = self.in_use.upcoming(self.dimension, session, target), self.folder(target)
        if found is None or found == self._tried.identity or version(session, location) < 0:
            return False
        return not session.read.format("delta").load(location).where(~F.col(ENRICHED)).isEmpty()

    def _joined(self, rows: DataFrame, loaded: Loaded) -> DataFrame:
        dimension = self.dimension
        known = {name: F.col(f"_dimension.`{name}`") for name in loaded.rows.columns}
        here = F.broadcast(loaded.rows.select(F.struct("*").alias("_dimension")))
        condition = _quoted(self.key) == known[dimension.key]
        if dimension.as_of is not None:
            at, since = _quoted(dimension.as_of.time), known[dimension.as_of.valid_from]
            until = known[dimension.as_of.valid_to]
            condition &= (since.isNull() | (at >= since)) & (until.isNull() | (at < until))
        return rows.join(here, condition, "left").select(
            *(_quoted(name) for name in rows.columns),
            *(known[name].alias(name) for name in dimension.names),
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


def _quoted(name: str) -> Column:
    return F.col(f"`{name}`")
