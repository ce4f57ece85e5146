"""Upsert rows into a Delta table by key."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, functions as F, types as T

from headrace.clients.spark.settings import session_settings
from headrace.clients.sql import column_named, quote_name, typed_literal
from headrace.errors import FlowError
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch
from headrace.sinks.batch.persist import persisted
from headrace.sinks.delta.sql import idempotent_write
from headrace.sinks.delta.table import DeltaTableSink


@dataclass(frozen=True)
class DeltaUpsert(DeltaTableSink):
    """Merge each micro-batch into a Delta table by key: a row replaces the row with its key, or is inserted.

    | field    | meaning                                                                                          |
    |----------|--------------------------------------------------------------------------------------------------|
    | key      | the columns that identify a row; null is a value like any other                                  |
    | sequence | a column that grows with each change: an older row never replaces a newer one, and of several rows |
    |          | of one key in a batch the newest wins. Without it a key may occur once per batch                 |
    | cluster_by | columns for liquid clustering; declared when the table is created                              |
    | prune_by | a timestamp, date or integer column of the key. A batch reads only files whose value range       |
    |          | overlaps its own: its cost does not grow with the age of the table                               |

    Exactly once, on the conditions of `DeltaTableSink`.
    """

    key: Sequence[str]
    sequence: str | None = None
    cluster_by: Sequence[str] = ()
    prune_by: str | None = field(default=None, kw_only=True)
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND, OutputMode.UPDATE})

    def __post_init__(self) -> None:
        """Raise if `prune_by` is not part of the key."""
        if self.prune_by is not None and self.prune_by not in self.key:
            raise self._prune_error(
                "is not in its key",
                "A row may replace one with another value there, which would not be looked for, and be in twice.",
            )

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Merge the rows in one commit that also records the batch."""
        self.create_if_missing(rows.sparkSession, rows.schema, batch)
        self.merge(rows, batch)

    def create_if_missing(self, session: SparkSession, schema: T.StructType, batch: Batch) -> DeltaTable:
        """Return the table; create it with this schema if it does not exist."""
        table = DeltaTable.createIfNotExists(session).location(batch.target.table(self.path)).addColumns(schema)
        for name, value in self.properties.items():
            table = table.property(name, value)
        return (table.clusterBy(*self.cluster_by) if self.cluster_by else table).execute()

    def merge(self, rows: DataFrame, batch: Batch, *, within: str = "") -> None:
        """Merge the rows. `within` is a condition that every matching row of the table meets."""
        location, session = batch.target.table(self.path), rows.sparkSession
        newer = None if self.sequence is None else f"new.{quote_name(self.sequence)} >= old.{quote_name(self.sequence)}"
        conditions = [f"old.{quote_name(name)} <=> new.{quote_name(name)}" for name in self.key]
        # MERGE reads its source twice, but a batch must be computed only once.
        with (
            persisted(self.newest(rows)) as cached,
            session_settings(session, idempotent_write(batch.app_id, batch.id)),
        ):
            bounds = within or self._prune_condition(cached)
            if bounds:
                conditions.append(bounds)
            (
                DeltaTable.forPath(session, location)
                .alias("old")
                .merge(cached.alias("new"), " AND ".join(conditions))
                .whenMatchedUpdateAll(newer)
                .whenNotMatchedInsertAll()
                .execute()
            )
        # Changes no row: after a crash before it, the next batch compacts the small files.
        self.run_maintenance(session, batch)

    def _prune_condition(self, rows: DataFrame) -> str:
        """Return the condition on `prune_by` that every matching row of the table meets; empty without `prune_by`."""
        if self.prune_by is None:
            return ""
        column, data_type = column_named(self.prune_by), rows.schema[self.prune_by].dataType
        lowest, highest, null = rows.agg(F.min(column), F.max(column), F.bool_or(column.isNull())).collect()[0]
        old, bounds = f"old.{quote_name(self.prune_by)}", []
        if lowest is not None:
            if not isinstance(data_type, T.TimestampType | T.TimestampNTZType | T.DateType | T.IntegralType):
                raise self._prune_error(
                    f"is a {data_type.simpleString()}", "Only times, dates and whole numbers are looked up."
                )
            first, last = (typed_literal(bound, data_type) for bound in (lowest, highest))
            bounds.append(f"({old} >= {first} AND {old} <= {last})")
        if null:
            bounds.append(f"{old} IS NULL")
        return f"({' OR '.join(bounds)})" if bounds else "false"

    def _prune_error(self, what: str, why: str) -> FlowError:
        return FlowError(
            f"{self.name} is to be pruned by '{self.prune_by}', which {what}.",
            why=why,
            state="Nothing was written.",
            remedy=f"Name another one of {', '.join(self.key)} as `prune_by`, or leave it out.",
            code="HR-569",
        )

    def newest(self, rows: DataFrame) -> DataFrame:
        """Return the rows to merge: with a sequence only the newest of each key. Also used by repairs."""
        if self.sequence is None:
            return rows
        sequence = column_named(self.sequence)
        # max_by ignores rows whose order is null. This order is never null; a row without a sequence is the oldest.
        order = F.struct(sequence.isNotNull(), sequence)
        newest_row = F.max_by(F.struct(*(column_named(name) for name in rows.columns)), order).alias("_headrace_row")
        return rows.groupBy(*(column_named(name) for name in self.key)).agg(newest_row).select("_headrace_row.*")
