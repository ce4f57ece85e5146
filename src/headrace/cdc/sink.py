"""Sink that applies Debezium changes of a whole database to Delta tables."""

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from headrace.cdc.apply import replace_where, tombstones
from headrace.cdc.apply.change_log import ChangeLog
from headrace.cdc.apply.history import History
from headrace.cdc.apply.maintenance import CdcMaintenance
from headrace.cdc.apply.mirror import Mirror
from headrace.cdc.apply.published import PublishedTable, publish, read_published
from headrace.cdc.apply.schema_evolution import DroppedColumns, EvolutionPolicy, evolve_columns
from headrace.cdc.apply.table import SMALL_BATCH_CONF, TableWrite, struct_fields
from headrace.cdc.apply.transactions import PENDING, complete_transactions
from headrace.cdc.capture.declaration import Capture, HasCapture
from headrace.cdc.capture.source_table import SourceTable
from headrace.cdc.capture.watch import CaptureMonitor
from headrace.clients.spark.delta_log import snapshot, version
from headrace.clients.spark.settings import session_settings
from headrace.errors import DataError, FlowError, HeadraceError, UnreadableChange
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.run_cache import CachedFact
from headrace.flow.sink import (
    BaseSink,
    Batch,
    CaptureWatch,
    CommittedBatches,
    DeadLetters,
    TracksBatches,
    WatchesCapture,
    WritesFolder,
)
from headrace.flow.target import Target
from headrace.sinks.batch.concurrency import in_background, run_concurrently
from headrace.sinks.batch.persist import persisted
from headrace.sinks.delta.table import DeltaTableSink
from headrace.sinks.local_folder import require_writable

PUBLISHED = "_published"
StoredAs = Mirror | History | ChangeLog
# The column names of a row.
Shape = frozenset[str]
# Number of tables written concurrently: while one waits for the driver, another one computes.
_CONCURRENT_TABLES = 4


# Turns the envelopes of one table into typed changes.
Decoder = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class SkippedTable:
    """A topic whose changes are skipped, and why: so one table does not stop the others.

    A capture with a pattern reads every topic of its prefix. This includes topics of tables that it no longer selects,
    and of tables that were dropped before any of their changes was applied.

    `error` is raised instead if the table was written before: it would no longer match its source.
    """

    topic: str
    why: str
    error: DataError | None = None


@dataclass
class _CatalogTable:
    """A source table as the run last read it from the catalogue, and the decoder of its envelopes."""

    table: SourceTable
    decode: Decoder
    # The sets of columns for which the catalogue was read.
    shapes: set[Shape] = field(default_factory=set)


@dataclass
class _CatalogTableCache(CachedFact):
    """The source tables that the run has read, by topic. A new run reads them again: the source may have changed."""

    by_topic: dict[str, _CatalogTable] = field(default_factory=dict)


@dataclass(frozen=True)
class _TableBatch:
    """The rows of one table in a batch."""

    topic: str
    rows: DataFrame
    source: _CatalogTable
    into: TableWrite


@dataclass(frozen=True)
class DeltaCdc(BaseSink, WritesFolder, TracksBatches, WatchesCapture, HasCapture):
    """Apply the Debezium envelopes of a batch to Delta tables, one for each source table.

    | field               | meaning                                                                                    |
    |---------------------|--------------------------------------------------------------------------------------------|
    | path                | folder of the tables, below the lake unless it is absolute                                 |
    | find_table          | returns the source table of a topic; called at each start, and if a batch has new columns  |
    | decoder             | returns the function that turns the envelopes of a table into typed changes                |
    | stored_as           | how each table is stored: `Mirror`, `History` or `ChangeLog`                               |
    | capture             | the capture that fills the topics, for `headrace capture`                                  |
    | dropped_columns     | `keep` or `drop` a column that the source dropped                                          |
    | maintenance         | when to compact small files, and to remove old files and tombstones                        |
    | atomic_transactions | apply complete transactions only; needs the rows of the transaction topic                  |
    | is_ambiguous        | condition for a value that may have another meaning since the type of its column changed   |

    Rows need Kafka's `topic`, `partition`, `offset` and `key` in addition to the envelope. The tables are written
    concurrently. `_published` in the same folder then records which version of each table belongs to the batch.

    Exactly once, on the conditions of `DeltaTableSink`: each table records the batch in the commit that contains its
    rows, and skips a batch that it already has. After a crash between two tables, the retry writes the missing ones.
    """

    path: str
    find_table: Callable[[str, Target], SourceTable | SkippedTable] = field(repr=False)
    decoder: Callable[[SourceTable], Decoder] = field(repr=False)
    stored_as: StoredAs = field(default_factory=Mirror)
    capture: Capture | None = None
    dropped_columns: DroppedColumns = "keep"
    maintenance: CdcMaintenance = field(default_factory=CdcMaintenance)
    atomic_transactions: bool = False
    is_ambiguous: Callable[[SourceTable], Column | None] = field(default=lambda _source_table: None, repr=False)
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND})

    @property
    def name(self) -> str:
        """Return `delta-cdc:PATH`."""
        return f"delta-cdc:{self.path}"

    def folder(self, target: Target) -> str:
        """Return the folder of the tables: one process may write it, on a local disk."""
        return target.table(self.path)

    def committed_batches(self, spark: SparkSession, flow: str, step: str, target: Target) -> CommittedBatches:
        """Return the batches that are published."""
        return DeltaTableSink(f"{self.path}/{PUBLISHED}").committed_batches(spark, flow, step, target)

    def preflight(self, target: Target) -> None:
        """Prove that a local folder can be written."""
        require_writable(self.folder(target))

    def watch_capture(
        self, flow: str, target: Target, on_problem: Callable[[str, HeadraceError], None]
    ) -> CaptureWatch:
        """Return the watch of the capture that this sink declares."""
        return CaptureMonitor(flow, () if self.capture is None else (self.capture,), target, on_problem)

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Apply the changes to the tables, then publish their versions."""
        session, pending = rows.sparkSession, f"{self.folder(batch.target)}/{PENDING}"
        prepared = complete_transactions(rows, pending, batch) if self.atomic_transactions else persisted(rows)
        with session_settings(session, SMALL_BATCH_CONF), prepared as once:
            parts = list[_TableBatch]()
            with in_background(session, True, lambda: self._preload_delta_logs(session, batch)):
                for topic, (shapes, ambiguous) in _topics_of_batch(once, self._ambiguous_condition(batch)).items():
                    table = self._source_table(topic, shapes, batch, again=ambiguous)
                    changes = once.where(F.col("topic") == topic)
                    if isinstance(table, SkippedTable):
                        _skip(table, changes, self.folder(batch.target), self.name, batch)
                    else:
                        parts.append(_TableBatch(topic, changes, table, self._table_write(table.table, batch)))
                failed_parts = self._apply(session, parts)
            if failed_parts:
                self._retry_with_current_tables(session, failed_parts, batch)
            self._publish(session, [part.into for part in parts], batch)

    def _preload_delta_logs(self, session: SparkSession, batch: Batch) -> None:
        """Load the Delta logs of the tables that the last batch wrote, while the records of this one are read.

        Each idempotent commit needs them to check whether the table already has the batch.
        """
        location = f"{self.folder(batch.target)}/{PUBLISHED}"
        before = read_published(session, location, batch).values()
        for path in [*(table.path for table in before if table.batch == batch.id - 1), location]:
            snapshot(session, path).load_transactions()

    def _apply(self, session: SparkSession, parts: Sequence[_TableBatch]) -> list[tuple[_TableBatch, UnreadableChange]]:
        """Apply the parts of a batch concurrently. Returns those with a value that does not fit its column (HR-540)."""
        # Schema changes first, one table after the other: they must not run under the identity of the batch.
        ready = [(part, self._evolved_changes(session, part)) for part in parts]
        failed = list[tuple[_TableBatch, UnreadableChange]]()

        def apply(part: _TableBatch, changes: DataFrame) -> None:
            try:
                self.stored_as.apply(changes, part.into)
            except UnreadableChange as error:
                failed.append((part, error))

        if parts:
            # Set once for all tables: a table that finishes first would unset it for the others.
            with parts[0].into.commit(session):
                run_concurrently(
                    session, [partial(apply, part, changes) for part, changes in ready], _CONCURRENT_TABLES
                )
        return failed

    def _retry_with_current_tables(
        self, session: SparkSession, failed: Sequence[tuple[_TableBatch, UnreadableChange]], batch: Batch
    ) -> None:
        """Retry with the current source catalogue: a column may have become wider since it was read."""
        again = list[_TableBatch]()
        for part, error in failed:
            current = self.find_table(part.topic, batch.target)
            if isinstance(current, SkippedTable) or current == part.source.table:
                raise error
            part.source.table, part.source.decode = current, self.decoder(current)
            again.append(part)
        for _part, error in self._apply(session, again):
            raise error

    def _evolved_changes(self, session: SparkSession, part: _TableBatch) -> DataFrame:
        """Evolve the columns of a table to match its source, and return the changes."""
        changes, into = part.source.decode(part.rows).withColumn("_topic", F.lit(part.topic)), part.into
        key, after = struct_fields(changes, "_key"), struct_fields(changes, "_after")
        policy = EvolutionPolicy(self.dropped_columns, cleared=isinstance(self.stored_as, Mirror))
        evolve_columns(session, into, into.location, self.stored_as.columns(key, after), policy)
        evolve_columns(session, into, into.tombstones, tombstones.columns(key), EvolutionPolicy())
        return changes

    def _publish(self, session: SparkSession, tables: Sequence[TableWrite], batch: Batch) -> None:
        """Maintain the tables of a batch, and record which versions belong together."""
        location, pending = (f"{self.folder(batch.target)}/{name}" for name in (PUBLISHED, PENDING))
        before, now = read_published(session, location, batch), dt.datetime.now(dt.UTC)
        rows, cleans = list[PublishedTable](), False
        for into in tables:
            last = before.get(into.table)
            # A table that was never cleaned has nothing old.
            cleaned = last.cleaned if last is not None and last.cleaned is not None else now
            was = replace_where.table_id_and_version(session, into)
            if self.maintenance.compact(session, into.location, batch.cache):
                replace_where.revalidate_cache(session, into, was)
            self.maintenance.compact(session, into.tombstones, batch.cache)
            if self.maintenance.clean(session, into, cleaned, now):
                cleaned, cleans = now, True
            rows.append(PublishedTable(into.table, into.location, version(session, into.location), batch.id, cleaned))
        if cleans:
            # Every batch rewrites both tables and leaves an old file each time.
            self.maintenance.vacuum(session, [path for path in (location, pending) if version(session, path) >= 0])
        publish(session, location, rows, batch)

    def _table_write(self, table: SourceTable, batch: Batch) -> TableWrite:
        location, tombstones = (
            f"{self.folder(batch.target)}/{name}" for name in (table.name, f"_tombstones/{table.name}")
        )
        return TableWrite(str(table), location, tombstones, batch.app_id, batch.id, batch.cache)

    def _read_tables(self, batch: Batch) -> dict[str, _CatalogTable]:
        return batch.cache.get(_CatalogTableCache, self.folder(batch.target)).by_topic

    def _ambiguous_condition(self, batch: Batch) -> Column:
        """Return the condition that an envelope has an ambiguous value."""
        condition = F.lit(False)
        for topic, read in self._read_tables(batch).items():
            ambiguous = self.is_ambiguous(read.table)
            condition = condition if ambiguous is None else condition | ((F.col("topic") == topic) & ambiguous)
        return condition

    def _source_table(
        self, topic: str, shapes: frozenset[Shape], batch: Batch, *, again: bool
    ) -> _CatalogTable | SkippedTable:
        """Return the source table of a topic. Reads the catalogue when the batch has new columns.

        Records from before a schema change still have the old columns, so the catalogue is read once for each set of
        columns. With `again` it is always read.
        """
        tables = self._read_tables(batch)
        if (read := tables.get(topic)) is not None:
            shape = frozenset(column.name for column in read.table.columns)
            if shapes == {shape}:
                # Other columns after this one mean another schema change.
                read.shapes.clear()
            if not again and shapes <= {shape, *read.shapes}:
                return read
        table = self.find_table(topic, batch.target)
        if isinstance(table, SkippedTable):
            return table
        same_name = [read.table for other, read in tables.items() if other != topic and read.table.name == table.name]
        if same_name:
            raise FlowError(
                f"Tables {table} and {same_name[0]} would share one folder.",
                why="The folder of a table has the table's name, without its schema.",
                state="Nothing was written for the first of them in this batch.",
                remedy="Capture the schemas with two flows, each with its own path.",
                code="HR-247",
            )
        tables[topic] = _CatalogTable(table, self.decoder(table), set(shapes))
        return tables[topic]


def _topics_of_batch(rows: DataFrame, ambiguous: Column) -> dict[str, tuple[frozenset[Shape], bool]]:
    """Return the topics of a batch, with the column sets of their rows and whether a value is ambiguous.

    One pass over persisted rows.
    """
    by_topic = rows.where(F.col("op") != "m").groupBy("topic")
    shapes = F.collect_set(F.array_sort(F.map_keys("after"))).alias("shapes")
    ordered = sorted(
        by_topic.agg(shapes, F.max(ambiguous).alias("ambiguous")).collect(), key=lambda row: str(row.topic)
    )
    return {row.topic: (frozenset(frozenset(shape) for shape in row.shapes), row.ambiguous) for row in ordered}


def _skip(skipped: SkippedTable, rows: DataFrame, folder: str, sink: str, batch: Batch) -> None:
    """Report the number of skipped changes of a topic, or raise. Called once per batch that has any."""
    location = f"{folder}/{skipped.topic.rpartition('.')[2]}"
    if skipped.error is not None and version(rows.sparkSession, location) >= 0:
        raise skipped.error
    batch.on_dead_letters(
        DeadLetters(sink, rows.count(), skipped.why, f"In the topic {skipped.topic}, until its retention removes them.")
    )
