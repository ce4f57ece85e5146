"""Compute closed windows anew with the rows that came too late for them: planned, explained, then done.

1. The lease of the flow is taken, and its table locked: the flow cannot run meanwhile. Batches that were committed and
   not audited are audited first, so that the ledger is whole.
2. The windows of the ledger that no repair covers yet are computed as a batch, by the same transform, from all rows of
   the source up to the last audited batch: those in time and those that were late. Quarantined rows stay out.
3. The result is compared with the table, and the table is changed in one commit: `DeltaUpsert` merges by its keys and
   keeps to its sequence, `DeltaAppend` replaces the rows of those windows. Of a fan-out the one table in it is
   repaired; what its other sinks were sent stays as it was.
4. The windows are marked, with the batch up to which their late rows are in.

A repair that is cut off between 3 and 4 finds, when it is run again, that the table holds what it would write, and only
marks. A row that comes late for a window after its repair is in the ledger under a later batch: the window is due
again.

A window is left alone when it cannot be shown that all of its rows are still there: a result computed from fewer rows
than the stream had would be worse than the one without the late rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType
from pyspark.storagelevel import StorageLevel

from headrace.audit.flow_audit import FlowAudit, late_table
from headrace.clients.storage import file_store
from headrace.flow.flow import Flow
from headrace.flow.sink import Batch, Sink
from headrace.flow.target import Target
from headrace.operate.late import errors as refusals
from headrace.operate.late.plan import Changed, Left, RepairPlan
from headrace.operate.late.replayable_rows import RetainedRows
from headrace.operate.late.summary import Window, is_repaired, repaired_table, repaired_up_to
from headrace.operate.ledgers import Row, filed_rows
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.folder_lock import lock_sink_folders
from headrace.runtime.checkpoint.lease import ActiveLease, acquire_lease
from headrace.runtime.session import flow_session
from headrace.sinks.delta.append import DeltaAppend
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.spark_plan.windows import NotAWindowedAggregation, WindowResults

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The step under which a repair is recorded in the table, apart from those of the flow's batches.
_STEP = "repair"

# How many changed rows a plan shows. The numbers are of all.
_EXAMPLES = 20


class Repair:
    """One repair, while the lease is held. Made by `repairing`; `plan` once, then perhaps `apply`."""

    def __init__(
        self, spark: SparkSession, target: Target, flow: Flow, checkpoint: Checkpoint, holding: ActiveLease
    ) -> None:
        self._target, self._flow, self._checkpoint, self._holding = target, flow, checkpoint, holding
        self._session = flow_session(spark, flow)
        self._retained = RetainedRows(self._session, target, flow, checkpoint)
        self._rows: DataFrame | None = None
        self._where = ""

    def plan(self) -> RepairPlan:
        """Compute the windows anew and compare them with the table. Changes nothing."""
        sink = self._table
        up_to, query_id = self._checkpoint.committed_batches()[-1:], self._checkpoint.query_id()
        place = f"the Delta table {sink.folder(self._target)}"
        due, left = self._due(query_id)
        if not up_to or not due:
            return RepairPlan(self._flow.name, place, up_to[-1] if up_to else -1, {}, tuple(left))
        self._retained.read_up_to(up_to[-1])
        closed = datetime.fromtimestamp(self._checkpoint.offset_entry(up_to[-1]).watermark_ms / 1000, UTC)
        for window, why in [(each, why) for each in due if (why := self._standing(each, closed)) is not None]:
            left.append(Left(window, due.pop(window), why))
        if not due:
            return RepairPlan(self._flow.name, place, up_to[-1], {}, tuple(left))
        starts = [start for start, _ in due]
        try:
            results = WindowResults.of(self._flow.apply(self._retained.frames(min(starts), max(end for _, end in due))))
        except NotAWindowedAggregation as error:
            raise refusals.no_window(self._flow, str(error)) from error
        rows = results.for_windows(starts)
        rows = sink.newest(rows) if isinstance(sink, DeltaUpsert) else rows
        self._rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
        before, keys = self._present(sink, results, list(due))
        return self._compared(RepairPlan(self._flow.name, place, up_to[-1], due, tuple(left)), before, keys)

    def apply(self, plan: RepairPlan) -> None:
        """Carry out a plan: one commit to the table, unless it holds the result already, then the marks."""
        sink, query_id = self._table, self._checkpoint.query_id()
        assert self._rows is not None  # noqa: S101 - `plan` made them
        assert query_id is not None  # noqa: S101 - a checkpoint with batches has its metadata
        with self._holding.checked():
            if plan.changes:
                last = sink.committed_batches(self._session, self._flow.name, _STEP, self._target).last.get(
                    query_id, -1
                )
                number = Batch(self._flow.name, query_id, last + 1, self._target, step=_STEP, fence=self._holding.token)
                if isinstance(sink, DeltaUpsert):
                    sink.write(self._rows, number)
                else:
                    sink.replace(self._rows, self._where, number)
            self._mark(plan, query_id)

    def close(self) -> None:
        """Forget the rows that were computed."""
        if self._rows is not None:
            self._rows.unpersist()

    @property
    def _table(self) -> DeltaAppend | DeltaUpsert:
        """The sink whose table is repaired: the only one, also within a fan-out. Not behind a condition."""
        within: Sequence[Sink] = getattr(self._flow.sink, "sinks", (self._flow.sink,))
        tables = [each for each in within if isinstance(each, DeltaAppend | DeltaUpsert)]
        if len(tables) != 1:
            raise refusals.other_sink(self._flow)
        return tables[0]

    def _due(self, query_id: str | None) -> tuple[dict[Window, int], list[Left]]:
        """Return the windows that are to be repaired with their late rows, and what of the ledger cannot be."""
        columns = ("query_id", "batch_id", "operator", "window_start", "window_end")
        entries = filed_rows(late_table(self._target, self._flow.name), columns, lambda: self._session)
        marks = ("query_id", "window_start", "window_end", "up_to")
        done = repaired_up_to(filed_rows(repaired_table(self._target, self._flow.name), marks, lambda: self._session))
        due: dict[Window, int] = {}
        others: Counter[str] = Counter()
        for entry in (each for each in entries if not is_repaired(each, done)):
            window = (entry["window_start"], entry["window_end"])
            why = _unrepairable(entry, query_id)
            if why is not None:
                others[why] += 1
            elif isinstance(window[0], datetime) and isinstance(window[1], datetime):
                due[window[0], window[1]] = due.get((window[0], window[1]), 0) + 1
        return dict(sorted(due.items())), [Left(None, rows, why) for why, rows in others.items()]

    def _standing(self, window: Window, closed: datetime) -> str | None:
        """Return why a window has to stay as it is: it is open, or rows of it are gone. None when it is repaired."""
        # The ledger holds closed windows. A checkpoint that was restored since may have them open again.
        if window[1] > closed:
            return (
                f"It is open again: the watermark of the flow is {closed:%Y-%m-%d %H:%M:%S}Z. The flow takes the rows."
            )
        return self._retained.missing(window)

    def _present(
        self, sink: DeltaAppend | DeltaUpsert, results: WindowResults, windows: Sequence[Window]
    ) -> tuple[DataFrame, list[str]]:
        """Return the rows of the table that the repair is about, and the columns that tell its rows apart."""
        assert self._rows is not None  # noqa: S101 - made before
        table = self._session.read.format("delta").load(sink.folder(self._target))
        if isinstance(sink, DeltaUpsert):
            # Without the window in the key, or an order of changes, an old window would replace a newer one.
            held = [results.holds.get(name) for name in sink.key]
            if sink.sequence is None and not {"window", "start", "end"} & set(held):
                raise refusals.key_without_window(self._flow, sink.key)
            return _matching(table, self._rows, sink.key), list(sink.key)
        column = next((name for name, what in results.holds.items() if what != "key"), None)
        if column is None:
            raise refusals.no_window_column(self._flow)
        what = results.holds[column]
        bounds = ", ".join(_literal(end if what == "end" else start) for start, end in windows)
        self._where = f"`{column}`{'.start' if what == 'window' else ''} IN ({bounds})"
        return table.where(self._where), list(results.holds)

    def _compared(self, plan: RepairPlan, before: DataFrame, keys: Sequence[str]) -> RepairPlan:
        """Return the plan with what differs between the table and what was computed."""
        assert self._rows is not None  # noqa: S101 - made before
        sequence = getattr(self._table, "sequence", None)
        columns = [F.col(f"`{name}`") for name in self._rows.columns]
        was, now = (
            each.select(
                F.struct(*(F.col(f"`{name}`") for name in keys)).alias(f"{side}_key"), F.struct(*columns).alias(side)
            )
            for side, each in (("before", before), ("after", self._rows))
        )
        both = was.join(now, F.col("before_key").eqNullSafe(F.col("after_key")), "full_outer")
        differs = ~F.col("before").eqNullSafe(F.col("after"))
        if sequence is not None:
            # The table keeps a row that is newer by the order of its changes.
            is_older = F.col("after").getField(sequence) < F.col("before").getField(sequence)
            differs &= ~F.coalesce(is_older, F.lit(False))
        different = both.where(differs).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts = different.select(
                F.count_if(F.col("before").isNotNull() & F.col("after").isNotNull()),
                F.count_if(F.col("before").isNull()),
                F.count_if(F.col("after").isNull()),
            ).first()
            changed, added, removed = counts or (0, 0, 0)
            shown = different.orderBy(F.coalesce("after_key", "before_key")).limit(_EXAMPLES)
            # Sketches and the like tell people nothing.
            bytes_ = [f"`{each.name}`" for each in self._rows.schema if isinstance(each.dataType, BinaryType)]
            sides = [F.col(side).dropFields(*bytes_) if bytes_ else F.col(side) for side in ("before", "after")]
            examples = shown.select(*map(F.to_json, sides)).collect()
        finally:
            different.unpersist()
        told = tuple(Changed(*row) for row in examples)
        return replace(plan, changed=changed, added=added, removed=removed, examples=told)

    def _mark(self, plan: RepairPlan, query_id: str) -> None:
        """Record the windows. A mark that is there twice says nothing else than once."""
        now = datetime.now(UTC)
        marks = [(query_id, *window, plan.up_to, rows, now) for window, rows in plan.windows.items()]
        columns = "query_id string, window_start timestamp, window_end timestamp, up_to long, late long, at timestamp"
        place = repaired_table(self._target, self._flow.name)
        self._session.createDataFrame(marks, columns).coalesce(1).write.format("delta").mode("append").save(place)


@contextmanager
def repairing(spark: SparkSession, target: Target, flow: Flow) -> Iterator[Repair]:
    """Hold the flow's lease and its table, bring the ledger up to date, and yield the repair.

    Raises when the flow is running (HR-302), or another process writes the table (HR-337).
    """
    checkpoint = Checkpoint.of(flow.name, target, file_store(target.checkpoints, spark))
    with acquire_lease(checkpoint, target.lease) as holding, lock_sink_folders(flow, target):
        if checkpoint.committed_batches():
            FlowAudit(spark, target, flow).catch_up()
        repair = Repair(spark, target, flow, checkpoint, holding)
        try:
            yield repair
        finally:
            repair.close()


def _matching(table: DataFrame, rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the rows of a table whose key is among those of other rows; null is a value like any other."""
    wanted = rows.select(*(F.col(f"`{name}`").alias(f"_headrace_{number}") for number, name in enumerate(keys)))
    same = [F.col(f"`{name}`").eqNullSafe(F.col(f"_headrace_{number}")) for number, name in enumerate(keys)]
    return table.join(wanted, reduce(lambda one, other: one & other, same), "left_semi")


def _unrepairable(entry: Row, query_id: str | None) -> str | None:
    if entry["query_id"] != query_id:
        return "They came while the flow had another checkpoint: its rows are not known any more."
    if entry["window_end"] is None or entry["operator"] not in ("window", None):
        return f"They were dropped by a {entry['operator']}. Only windows of a fixed length are repaired."
    return None


def _literal(moment: datetime) -> str:
    return f"TIMESTAMP '{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00:00'"
