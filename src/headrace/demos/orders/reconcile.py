"""A day of orders and payments computed anew as a batch, beside what the stream made of it, and its repair.

1. The lease of the flow is taken, and its table locked: the flow cannot run meanwhile. Batches that were committed and
   not audited are audited first, so that the ledger of late rows is whole.
2. The rows of the day are joined as a batch, by the same transform, from all records that the flow has read: those in
   time and those that were late, each of them once. Quarantined ones stay out.
3. The result is compared with the table. Rows that differ are told by cause.
4. The rows of the day are replaced in one commit that is recorded.

Only what is closed is looked at: rows whose bound the watermark has passed. The stream adds nothing to them any more.

| cause       | the table                                                                                     |
|-------------|-----------------------------------------------------------------------------------------------|
| `late`      | lacks a pair, or shows a side alone: a record came behind the watermark                        |
| `duplicate` | holds a row more than once: an order or a payment was sent twice. Where it should not be there |
|             | at all, one of them is `late` or `other`, and the rest are these                               |
| `other`     | differs for another reason: both came in one batch, behind the watermark by more than the bound |

What never came is no difference. The batch has no partner for it either; it is told apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from headrace.audit.flow_audit import FlowAudit, late_table
from headrace.clients.storage import file_store
from headrace.demos.orders import errors as refusals
from headrace.flow.duration import Duration
from headrace.flow.flow import Flow
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.operate.late.replayable_rows import RetainedRows
from headrace.patterns.orders.flows import joined
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.folder_lock import lock_sink_folders
from headrace.runtime.checkpoint.lease import ActiveLease, acquire_lease
from headrace.runtime.session import flow_session
from headrace.sinks.delta.append import DeltaAppend

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

# The step under which a reconciliation is recorded in the table, apart from those of the flow's batches.
_STEP = "reconcile"
# The most rows that a plan names, of each cause, of orders and of payments that stand alone. The numbers are of all.
_EXAMPLES = 20
_COLUMNS = ("order_id", "user_id", "order_time", "amount", "pay_time")


@dataclass(frozen=True)
class JoinPlan:
    """What a reconciliation found, and what its repair does.

    | field       | meaning                                                                                    |
    |-------------|--------------------------------------------------------------------------------------------|
    | start, end  | the time of the rows that were compared: of the order, or of a payment without one         |
    | whole       | whether that is the whole day                                                              |
    | rows        | how many rows the table should have for it                                                 |
    | added, removed | rows of the table that a repair adds and removes, by cause                              |
    | examples    | the first 20 of those rows by id, of each cause                                            |
    | never_came  | how many orders have no payment, and how many payments no order                            |
    | alone       | the first 20 of these by id, of either                                                     |
    """

    flow: str
    place: str
    start: datetime
    end: datetime
    whole: bool
    rows: int = 0
    added: Mapping[str, int] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    examples: Sequence[Mapping[str, object]] = ()
    never_came: Mapping[str, int] = field(default_factory=dict)
    alone: Sequence[Mapping[str, object]] = ()

    @property
    def changes(self) -> int:
        """How many rows of the table a repair adds or removes."""
        return sum(self.added.values()) + sum(self.removed.values())

    def as_dict(self) -> dict[str, object]:
        """The plan as `--json` prints it."""
        return {**vars(self), "start": self.start.isoformat(), "end": self.end.isoformat()}

    def lines(self) -> Iterator[str]:
        """Say what was found, for people."""
        part = "" if self.whole else " The rest of the day is not closed yet."
        yield f"{self.flow}: {self.start:%Y-%m-%d %H:%M:%S} to {self.end:%Y-%m-%d %H:%M:%S} UTC.{part}"
        if not self.changes:
            yield f"  {self.place} holds what a batch gives: {self.rows:,} row(s)."
        for cause in sorted({*self.added, *self.removed}):
            added, removed = self.added.get(cause, 0), self.removed.get(cause, 0)
            yield f"  {cause}: {added:,} row(s) are missing, {removed:,} too many."
        for what, count in self.never_came.items():
            yield f"  never came: {count:,} {what}."


class JoinReconciliation:
    """One reconciliation, while the lease is held. Made by `reconciling`; `plan` once, then perhaps `apply`."""

    def __init__(
        self, spark: SparkSession, target: Target, flow: Flow, checkpoint: Checkpoint, holding: ActiveLease
    ) -> None:
        self._target, self._flow, self._checkpoint, self._holding = target, flow, checkpoint, holding
        self._bound = _bound_of(flow)
        self._session = flow_session(spark, flow)
        self._rows: DataFrame | None = None

    def plan(self, day: date | None) -> JoinPlan:
        """Compute a day anew and compare it with the table; None is the last whole day. Changes nothing."""
        sink, committed = self._sink(), self._checkpoint.committed_batches()
        if not committed:
            raise refusals.nothing_read(self._flow)
        start, end, whole = self._span(committed[-1], day)
        retained = RetainedRows(self._session, self._target, self._flow, self._checkpoint)
        retained.read_up_to(committed[-1])
        gone = retained.missing((start - self._bound, end + self._bound))
        if gone is not None:
            raise refusals.rows_gone(self._flow, start, gone)
        frames = retained.frames(start - self._bound, end + self._bound + timedelta(milliseconds=1))
        once = {name: frame.dropDuplicates() for name, frame in frames.items()}
        inside = (_moment() >= F.lit(start)) & (_moment() < F.lit(end))
        self._rows = self._flow.apply(once).where(inside).persist(StorageLevel.MEMORY_AND_DISK)
        place = sink.folder(self._target)
        table = self._session.read.format("delta").load(place).where(inside)
        added, removed, examples = self._differences(table)
        counts, alone = self._never_came(once, inside)
        return JoinPlan(
            self._flow.name, place, start, end, whole, self._rows.count(), added, removed, examples, counts, alone
        )

    def apply(self, plan: JoinPlan) -> None:
        """Carry out a plan: one commit to the table."""
        sink, query_id = self._sink(), self._checkpoint.query_id()
        assert self._rows is not None  # noqa: S101 - `plan` made them
        assert query_id is not None  # noqa: S101 - a checkpoint with batches has its metadata
        with self._holding.checked():
            last = sink.committed_batches(self._session, self._flow.name, _STEP, self._target).last.get(query_id, -1)
            number = Batch(self._flow.name, query_id, last + 1, self._target, step=_STEP, fence=self._holding.token)
            moment = "COALESCE(order_time, pay_time)"
            where = f"{moment} >= {_literal(plan.start)} AND {moment} < {_literal(plan.end)}"
            sink.replace(self._rows, where, number)

    def close(self) -> None:
        """Forget the rows that were computed."""
        if self._rows is not None:
            self._rows.unpersist()

    def _sink(self) -> DeltaAppend:
        if not isinstance(self._flow.sink, DeltaAppend):
            raise refusals.not_a_join(self._flow)
        return self._flow.sink

    def _span(self, last: int, day: date | None) -> tuple[datetime, datetime, bool]:
        """Return the part of a day that is closed, and whether that is all of it."""
        watermark_ms = self._checkpoint.offset_entry(last).watermark_ms
        if not watermark_ms:
            raise refusals.no_watermark(self._flow)
        closed = datetime.fromtimestamp(watermark_ms / 1000, UTC) - self._bound
        start = datetime.combine(day or closed.date() - timedelta(days=1), datetime.min.time(), UTC)
        end = min(start + timedelta(days=1), closed)
        if end <= start:
            raise refusals.still_open(self._flow, start, closed)
        return start, end, end == start + timedelta(days=1)

    def _differences(self, table: DataFrame) -> tuple[dict[str, int], dict[str, int], list[dict[str, object]]]:
        """Return how many rows are missing and too many, by cause, and some of them."""
        assert self._rows is not None  # noqa: S101 - made before
        sides = [
            rows.select(*_COLUMNS, F.lit(held).alias("held"), F.lit(1 - held).alias("due"))
            for rows, held in ((table, 1), (self._rows, 0))
        ]
        both = reduce(DataFrame.unionAll, sides).groupBy(*_COLUMNS)
        counted = both.agg(F.sum("held").alias("held"), F.sum("due").alias("due")).where("held <> due")
        late = self._late_ids().withColumn("late", F.lit(True))
        caused = counted.join(late, "order_id", "left").orderBy("order_id", "order_time", "pay_time")
        added, removed, named = Counter[str](), Counter[str](), dict[str, list[dict[str, object]]]()
        for row in caused.toLocalIterator():
            for cause, surplus in surplus_by_cause(row.held, row.due, late=bool(row.late)).items():
                (removed if surplus > 0 else added)[cause] += abs(surplus)
                some = named.setdefault(cause, [])
                if len(some) < _EXAMPLES:
                    change = {"cause": cause, "change": "remove" if surplus > 0 else "add", "times": abs(surplus)}
                    some.append({**change, **{name: _said(row[name]) for name in _COLUMNS}})
        return dict(added), dict(removed), [each for cause in sorted(named) for each in named[cause]]

    def _late_ids(self) -> DataFrame:
        """Return the orders of which a record is in the ledger of late rows."""
        place = late_table(self._target, self._flow.name)
        if not self._checkpoint.files.names(f"{place}/_delta_log"):
            return self._session.createDataFrame([], "order_id string")
        ledger = self._session.read.format("delta").load(place)
        ledger = ledger.where(F.col("query_id") == F.lit(self._checkpoint.query_id()))
        # The ledger has rows as they reached the join: a payment's id has another name there.
        ids = F.coalesce(*(F.get_json_object("row", f"$.{name}") for name in ("order_id", "paid_order_id")))
        return ledger.select(ids.alias("order_id")).distinct()

    def _never_came(
        self, once: Mapping[str, DataFrame], inside: Column
    ) -> tuple[dict[str, int], list[dict[str, object]]]:
        """Return how many orders have no payment and payments no order, and some of them."""
        bound = f"{self._bound.total_seconds():f} seconds"
        lone = joined(once["orders"], once["payments"], "full", bound).where(inside)
        lone = lone.where(F.col("order_time").isNull() | F.col("pay_time").isNull())
        lone = lone.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts = lone.select(
                F.count_if(F.col("pay_time").isNull()), F.count_if(F.col("order_time").isNull())
            ).first()
            orders, payments = counts or (0, 0)
            sides = (lone.where(F.col(name).isNull()).orderBy("order_id") for name in ("pay_time", "order_time"))
            some = [{name: _said(row[name]) for name in _COLUMNS} for side in sides for row in side.take(_EXAMPLES)]
        finally:
            lone.unpersist()
        return {"payment(s) of an order": orders, "order(s) of a payment": payments}, some


@contextmanager
def reconciling(spark: SparkSession, target: Target, flow: Flow) -> Iterator[JoinReconciliation]:
    """Hold the flow's lease and its table, bring the ledger up to date, and yield the reconciliation.

    Raises when the flow is running (HR-302), or another process writes the table (HR-337).
    """
    checkpoint = Checkpoint.of(flow.name, target, file_store(target.checkpoints, spark))
    with acquire_lease(checkpoint, target.lease) as holding, lock_sink_folders(flow, target):
        work = JoinReconciliation(spark, target, flow, checkpoint, holding)
        if checkpoint.committed_batches():
            FlowAudit(spark, target, flow).catch_up()
        try:
            yield work
        finally:
            work.close()


def is_join(flow: Flow) -> bool:
    """Return whether a flow is a join of orders and payments, by the pattern's own transform."""
    return isinstance(flow.transform, partial) and flow.transform.func is joined and isinstance(flow.sink, DeltaAppend)


def _bound_of(flow: Flow) -> timedelta:
    if not isinstance(flow.transform, partial) or flow.transform.func is not joined:
        raise refusals.not_a_join(flow)
    return timedelta(milliseconds=Duration.parse(str(flow.transform.keywords["bound"])).ms)


def surplus_by_cause(held: int, due: int, *, late: bool) -> dict[str, int]:
    """Return how many rows too many a table holds of one row, by cause; below zero they are missing.

    Where the row belongs there, what is too much are duplicates. Where it does not, the stream told it once for a
    reason, and the rest are duplicates of that.
    """
    reason = "late" if late else "other"
    if held <= due:
        return {reason: held - due} if held < due else {}
    wrong = 0 if due else 1
    found = {reason: wrong, "duplicate": held - due - wrong}
    return {cause: rows for cause, rows in found.items() if rows}


def _moment() -> Column:
    """Return the time of a row: of the order, or of a payment without one."""
    return F.coalesce("order_time", "pay_time")


def _literal(moment: datetime) -> str:
    return f"TIMESTAMP '{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00:00'"


def _said(value: object) -> object:
    # Spark gives times without a zone, in the zone of the machine.
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else None if value is None else str(value)
