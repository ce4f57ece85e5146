"""Changes of a whole database into Delta tables: one flow, one checkpoint, one mirror per source table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import functions as F

from headrace.cdc.apply import replace as cdc_replace
from headrace.cdc.apply import tombstones
from headrace.cdc.apply.change_log import ChangeLog
from headrace.cdc.apply.history import History
from headrace.cdc.apply.maintenance import Upkeep
from headrace.cdc.apply.mirror import Mirror
from headrace.cdc.apply.published import Row, publish, published
from headrace.cdc.apply.schema_evolution import Dropped, Policy, follow
from headrace.cdc.apply.skipped import NotKept, pass_over
from headrace.cdc.apply.table import QUICK, Into, fields
from headrace.cdc.apply.transactions import PENDING, whole
from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.source_table import SourceTable
from headrace.cdc.capture.watch import CaptureWatch
from headrace.errors import DataError, FlowError, HeadraceError
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch, Held
from headrace.flow.target import Target
from headrace.sinks.batch.concurrency import at_once, meanwhile
from headrace.sinks.batch.persist import kept
from headrace.sinks.delta.log import snapshot, version
from headrace.sinks.delta.sql import settings
from headrace.sinks.delta.table import DeltaTableSink
from headrace.sinks.local_folder import require_writable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PUBLISHED = "_published"
Kept = Mirror | History | ChangeLog
# The columns that a row has.
Shape = frozenset[str]
# Tables that are written at the same time: while one waits for the driver, another one computes.
_AT_ONCE = 4


@dataclass(frozen=True)
class _Part:
    """What a batch has of one table."""

    topic: str
    rows: DataFrame
    table: SourceTable
    into: Into


@dataclass(frozen=True)
class DeltaCdc:
    """Apply the changes of every table in a batch of Debezium's envelopes, each to a Delta table of its own.

    | field  | meaning                                                                                         |
    |--------|-------------------------------------------------------------------------------------------------|
    | path   | the folder of the tables: below the lake, unless it is absolute                                 |
    | lookup | gives the source table of a topic; asked at each start, and when a batch has rows of other columns |
    | decode | makes typed changes of a table's envelopes                                                      |
    | keep   | what is kept of each table: `Mirror`, `History` or `ChangeLog`                                  |
    | capture | the capture that fills the topics, for `headrace capture`                                      |
    | dropped | whether a column that the source dropped stays (`keep`) or goes (`drop`)                       |
    | upkeep | when small files are joined, and old files and tombstones removed                               |
    | doubted | whether an envelope has a value that the table as it is known may give a wrong meaning; None is never |
    | together | apply whole transactions only; rows then need those of the topic of transactions beside them  |

    Rows need `topic`, `partition`, `offset` and `key` of Kafka beside the envelope. The tables are written side by
    side; `_published` in the same folder then says which version of each table belongs to the batch.

    Exactly once, on the conditions of `DeltaTableSink`: each table records the batch in the commit that holds its rows,
    and passes over a batch that it has. A crash between two tables is made good by the next attempt.
    """

    path: str
    lookup: Callable[[str, Target], SourceTable | NotKept] = field(repr=False)
    decode: Callable[[DataFrame, SourceTable], DataFrame] = field(repr=False)
    keep: Kept = field(default_factory=Mirror)
    capture: Capture | None = None
    dropped: Dropped = "keep"
    upkeep: Upkeep = field(default_factory=Upkeep)
    together: bool = False
    doubted: Callable[[SourceTable], Column | None] = field(default=lambda _table: None, repr=False)
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND})
    _known: dict[str, SourceTable] = field(default_factory=dict, init=False, compare=False, repr=False)
    # The sets of columns for which the source was asked already.
    _asked: dict[str, set[Shape]] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Return `delta-cdc:PATH`."""
        return f"delta-cdc:{self.path}"

    def folder(self, target: Target) -> str:
        """Return the folder of the tables: one process may write it, on a local disk."""
        return target.table(self.path)

    def held(self, spark: SparkSession, flow: str, step: str, target: Target) -> Held:
        """Return the batches that are published."""
        return DeltaTableSink(f"{self.path}/{PUBLISHED}").held(spark, flow, step, target)

    def preflight(self, target: Target) -> None:
        """Prove that a local folder can be written."""
        require_writable(self.folder(target))

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Forget what was known of the source: it may have changed while the flow was down."""
        self._known.clear()
        self._asked.clear()

    def watch_capture(self, flow: str, target: Target, hear: Callable[[str, HeadraceError], None]) -> CaptureWatch:
        """Return the watch of the capture that the declaration names."""
        return CaptureWatch(flow, () if self.capture is None else (self.capture,), target, hear)

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Apply the changes of the tables, then publish."""
        session = rows.sparkSession
        with settings(session, QUICK), self._ready(rows, batch) as once:
            parts = list[_Part]()
            with meanwhile(session, True, lambda: self._look_ahead(session, batch)):
                for topic, (shapes, doubts) in _topics(once, self._doubts()).items():
                    table, told = self._table(topic, shapes, batch.target, again=doubts), F.col("topic") == topic
                    if isinstance(table, NotKept):
                        pass_over(table, once.where(told), self.folder(batch.target), self.name, batch)
                    else:
                        parts.append(_Part(topic, once.where(told), table, self._into(table, batch)))
                unreadable = self._apply(session, parts)
            if unreadable:
                self._apply_as_it_is_now(session, unreadable, batch)
            self._publish(session, [part.into for part in parts], batch)

    def _look_ahead(self, session: SparkSession, batch: Batch) -> None:
        """Read the logs of the tables that the last batch wrote, while the records of this one are read.

        Each commit under an identity needs them: it asks whether the table has the batch already.
        """
        location = f"{self.folder(batch.target)}/{PUBLISHED}"
        before = published(session, location, batch).values()
        for path in [*(each.path for each in before if each.batch == batch.id - 1), location]:
            snapshot(session, path).transactions()

    def _ready(self, rows: DataFrame, batch: Batch) -> AbstractContextManager[DataFrame]:
        return whole(rows, f"{self.folder(batch.target)}/{PENDING}", batch) if self.together else kept(rows)

    def _apply(self, session: SparkSession, parts: Sequence[_Part]) -> list[tuple[_Part, DataError]]:
        """Apply parts of a batch side by side. Returns those with a text that does not fit its column (HR-540)."""
        # Columns first, and one table after the other: a statement must not run under the batch's identity.
        ready = [(part, self._followed(session, part)) for part in parts]
        failed = list[tuple[_Part, DataError]]()

        def apply(part: _Part, changes: DataFrame) -> None:
            try:
                self.keep.apply(changes, part.into)
            except DataError as error:
                if error.code != "HR-540":
                    raise
                failed.append((part, error))

        if parts:
            # Set here and not by each table: one that is done would take it from those that are not.
            with parts[0].into.commit(session):
                at_once(session, [partial(apply, part, changes) for part, changes in ready], _AT_ONCE)
        return failed

    def _apply_as_it_is_now(
        self, session: SparkSession, failed: Sequence[tuple[_Part, DataError]], batch: Batch
    ) -> None:
        """Try again with what the source says now: a column may have become wider since it was asked."""
        again = list[_Part]()
        for part, error in failed:
            fresh = self.lookup(part.topic, batch.target)
            if isinstance(fresh, NotKept) or fresh == part.table:
                raise error
            self._known[part.topic] = fresh
            again.append(replace(part, table=fresh))
        for _part, error in self._apply(session, again):
            raise error

    def _followed(self, session: SparkSession, part: _Part) -> DataFrame:
        """Bring the columns of a table to the source's, and return the changes."""
        changes, into = self.decode(part.rows, part.table).withColumn("_topic", F.lit(part.topic)), part.into
        key, after = fields(changes, "_key"), fields(changes, "_after")
        policy = Policy(self.dropped, cleared=isinstance(self.keep, Mirror))
        follow(session, into, into.location, self.keep.columns(key, after), policy)
        follow(session, into, into.tombstones, tombstones.columns(key), Policy())
        return changes

    def _publish(self, session: SparkSession, tables: Sequence[Into], batch: Batch) -> None:
        """Look after the tables of a batch, and say which versions belong together."""
        location, pending = (f"{self.folder(batch.target)}/{name}" for name in (PUBLISHED, PENDING))
        before, now, rows, cleans = published(session, location, batch), dt.datetime.now(dt.UTC), list[Row](), False
        for into in tables:
            known = before.get(into.table)
            # A table that was never cleaned has nothing old.
            cleaned = known.cleaned if known is not None and known.cleaned is not None else now
            was = cdc_replace.state(session, into)
            if self.upkeep.compact(session, into.location):
                cdc_replace.keep(session, into, was)
            self.upkeep.compact(session, into.tombstones)
            if self.upkeep.clean(session, into, cleaned, now):
                cleaned, cleans = now, True
            rows.append(Row(into.table, into.location, version(session, into.location), batch.id, cleaned))
        if cleans:
            # Both are written anew by every batch, and leave a file behind each time.
            self.upkeep.vacuum(session, [each for each in (location, pending) if version(session, each) >= 0])
        publish(session, location, rows, batch)

    def _into(self, table: SourceTable, batch: Batch) -> Into:
        folder = self.folder(batch.target)
        return Into(str(table), f"{folder}/{table.name}", f"{folder}/_tombstones/{table.name}", batch.app_id, batch.id)

    def _doubts(self) -> Column:
        """Return whether an envelope has a doubtful value, by what is known of its table."""
        found = F.lit(False)
        for topic, table in self._known.items():
            doubts = self.doubted(table)
            found = found if doubts is None else found | ((F.col("topic") == topic) & doubts)
        return found

    def _table(self, topic: str, shapes: frozenset[Shape], target: Target, *, again: bool) -> SourceTable | NotKept:
        """Return the table of a topic, as the source's catalogue has it now when the batch has rows of other columns.

        Records from before a change of columns go on having the old ones: the source is asked once for each shape. With
        `again` it is asked in any case.
        """
        known, asked = self._known.get(topic), self._asked.setdefault(topic, set())
        shape = None if known is None else frozenset(column.name for column in known.columns)
        if shapes == {shape}:
            # What comes with other columns from here on was written after another change of them.
            asked.clear()
        if known is None or again or not shapes <= {shape, *asked}:
            found = self.lookup(topic, target)
            if isinstance(found, NotKept):
                return found
            known = found
            others = [str(each) for at, each in self._known.items() if at != topic and each.name == known.name]
            if others:
                raise _same_place(known, others[0])
            self._known[topic] = known
            self._asked[topic] = set(shapes)
        return known


def _topics(rows: DataFrame, doubts: Column) -> dict[str, tuple[frozenset[Shape], bool]]:
    """Return the topics of a batch, each with the columns that its rows have and whether a value is doubtful.

    One pass over rows that are kept.
    """
    told = rows.where(F.col("op") != "m").groupBy("topic")
    shapes = F.collect_set(F.array_sort(F.map_keys("after"))).alias("shapes")
    ordered = sorted(told.agg(shapes, F.max(doubts).alias("doubts")).collect(), key=lambda row: str(row.topic))
    return {row.topic: (frozenset(frozenset(shape) for shape in row.shapes), row.doubts) for row in ordered}


def _same_place(table: SourceTable, other: str) -> FlowError:
    return FlowError(
        f"Tables {table} and {other} would share one folder.",
        why="The folder of a table is named as the table is, without its schema.",
        state="Nothing was written for the first of them in this batch.",
        remedy="Capture the schemas by two flows, each with a path of its own.",
        code="HR-247",
    )
