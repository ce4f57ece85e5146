"""Recompute a day of orders and payments as a batch, compare it with the stream's result, and repair the difference.

1. The reconciliation takes the lease of the flow and locks its table, so the flow cannot run. It audits committed
   batches that are not audited yet, so that the ledger of late rows is complete.
2. The same transform joins the rows of the day as a batch, from all records that the flow has read: on time or late,
   each of them once, without quarantined records.
3. The result is compared with the table. Differing rows are reported by cause.
4. The rows of the day are replaced in one recorded commit.

Only closed rows are compared, those whose bound the watermark has passed: the stream does not change them any more.

| cause       | the table                                                                                     |
|-------------|-----------------------------------------------------------------------------------------------|
| `late`      | lacks a pair, or has an unmatched row: a record arrived behind the watermark                   |
| `duplicate` | has a row more than once: an order or a payment was sent twice. If the row is unexpected, one  |
|             | copy counts as `late` or `other`, and the others as `duplicate`                                |
| `other`     | differs for another reason: both came in one batch, behind the watermark by more than the bound |

An order or payment without a match is not a difference: the batch does not have one either. It is reported separately.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial, reduce
from itertools import groupby, islice

from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.storagelevel import StorageLevel

from headrace.audit.flow_audit import late_table
from headrace.clients.spark.delta_log import is_table
from headrace.clients.sql import timestamp_literal
from headrace.demos.reconciliation import Reconciliation
from headrace.errors import RecoveryError
from headrace.flow.duration import Duration
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.operate.late.replayable_rows import Recomputation
from headrace.patterns.orders.flows import join_payments
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.lease import ActiveLease
from headrace.sinks.delta.write import DeltaAppend

# The step under which a reconciliation is recorded in the table, separate from the flow's batches.
_STEP = "reconcile"
# The maximum number of rows that a plan lists, per cause and per unmatched side. The counts cover all rows.
_EXAMPLES = 20
# The maximum number that is printed of them.
_MAX_ROWS_PRINTED = 3
_UNCHANGED = "Nothing was changed."
_COLUMNS = ("order_id", "user_id", "order_time", "amount", "pay_time")


@dataclass(frozen=True)
class JoinPlan:
    """The differences that a reconciliation found, and what its repair does.

    | field       | meaning                                                                                    |
    |-------------|--------------------------------------------------------------------------------------------|
    | start, end  | the time of the rows that were compared: of the order, or of a payment without one         |
    | is_full_day | whether that is the whole day                                                              |
    | rows        | how many rows the table should have for it                                                 |
    | added, removed | rows of the table that a repair adds and removes, by cause                              |
    | examples    | the first 20 of those rows by id, of each cause                                            |
    | unmatched  | how many orders have no payment, and how many payments no order                            |
    | alone       | the first 20 of these by id, of either                                                     |
    """

    flow: str
    place: str
    start: datetime
    end: datetime
    is_full_day: bool
    rows: int = 0
    added: Mapping[str, int] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    examples: Sequence[Mapping[str, object]] = ()
    unmatched: Mapping[str, int] = field(default_factory=dict)
    alone: Sequence[Mapping[str, object]] = ()

    @property
    def changes(self) -> int:
        """How many rows of the table a repair adds or removes."""
        return sum(self.added.values()) + sum(self.removed.values())

    def as_dict(self) -> dict[str, object]:
        """The plan as `--json` prints it."""
        return {**vars(self), "start": self.start.isoformat(), "end": self.end.isoformat()}

    def lines(self) -> Iterator[str]:
        """Describe the differences, for people."""
        part = "" if self.is_full_day else " The rest of the day is not closed yet."
        yield f"{self.flow}: {self.start:%Y-%m-%d %H:%M:%S} to {self.end:%Y-%m-%d %H:%M:%S} UTC.{part}"
        if not self.changes:
            yield f"  {self.place} equals the batch result: {self.rows:,} row(s)."
        for cause in sorted({*self.added, *self.removed}):
            added, removed = self.added.get(cause, 0), self.removed.get(cause, 0)
            yield f"  {cause}: {added:,} row(s) are missing, {removed:,} too many."
        for what, count in self.unmatched.items():
            yield f"  never came: {count:,} {what}."
        for _cause, rows in groupby(self.examples, key=lambda row: row["cause"]):
            for row in islice(rows, _MAX_ROWS_PRINTED):
                yield f"  {row['change']} ({row['cause']}): {_describe(row)}"
        for missing, rows in groupby(self.alone, key=lambda row: "order" if row["order_time"] is None else "payment"):
            for row in islice(rows, _MAX_ROWS_PRINTED):
                yield f"  no {missing}: {_describe(row)}"


def _describe(row: Mapping[str, object]) -> str:
    values = {name: value for name, value in row.items() if name not in ("cause", "change", "times")}
    return ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)


class JoinReconciliation(Recomputation):
    """A reconciliation that holds the lease, from `JoinReconciliation.open`; call `plan` once, then `apply` or not."""

    def __init__(
        self, spark: SparkSession, target: Target, flow: Flow, checkpoint: Checkpoint, active_lease: ActiveLease
    ) -> None:
        self._bound = _time_bound(flow)
        super().__init__(spark, target, flow, checkpoint, active_lease)

    def plan(self, day: date | None) -> JoinPlan:
        """Recompute a day and compare it with the table; None is the last full day. Changes nothing."""
        sink, committed = self._sink(), self._checkpoint.committed_batches()
        if not committed:
            raise RecoveryError(
                f"Flow '{self._flow.name}' has not committed a batch.",
                why="The expected rows are computed from the records that the flow has read.",
                state=_UNCHANGED,
                remedy=f"Run it first: `headrace run {self._flow.name}`.",
                code="HR-356",
            )
        start, end, is_full_day = self._span(committed[-1], day)
        retained = self._replayable
        retained.read_up_to(committed[-1])
        missing = retained.missing((start - self._bound, end + self._bound))
        if missing is not None:
            raise RecoveryError(
                f"{start:%Y-%m-%d} cannot be recomputed for flow '{self._flow.name}'.",
                why=missing,
                state=f"{_UNCHANGED} With fewer rows than the stream had, the result would be worse.",
                remedy="Keep the topics for longer than the time between a day and its reconciliation, and run it "
                "every night.",
                code="HR-357",
            )
        frames = retained.frames(start - self._bound, end + self._bound + timedelta(milliseconds=1))
        inputs = {name: frame.dropDuplicates() for name, frame in frames.items()}
        inside = (_event_time() >= F.lit(start)) & (_event_time() < F.lit(end))
        self._rows = self._flow.apply(inputs).where(inside).persist(StorageLevel.MEMORY_AND_DISK)
        location = sink.folder(self._target)
        table = self._session.read.format("delta").load(location).where(inside)
        added, removed, examples = self._differences(table)
        counts, alone = self._count_unmatched(inputs, inside)
        return JoinPlan(
            self._flow.name,
            location,
            start,
            end,
            is_full_day,
            self._rows.count(),
            added,
            removed,
            examples,
            counts,
            alone,
        )

    def apply(self, plan: JoinPlan) -> None:
        """Apply a plan in one commit to the table."""
        assert self._rows is not None  # noqa: S101 - `plan` made them
        with self._lease.checked():
            event_time = "COALESCE(order_time, pay_time)"
            where = f"{event_time} >= {timestamp_literal(plan.start)} AND {event_time} < {timestamp_literal(plan.end)}"
            sink = self._sink()
            sink.replace(self._rows, where, self._next_batch(sink, _STEP))

    def _sink(self) -> DeltaAppend:
        if not isinstance(self._flow.sink, DeltaAppend):
            raise _not_a_join(self._flow)
        return self._flow.sink

    def _span(self, last: int, day: date | None) -> tuple[datetime, datetime, bool]:
        """Return the closed part of a day, and whether that is the full day."""
        watermark_ms = self._checkpoint.offset_entry(last).watermark_ms
        if not watermark_ms:
            raise RecoveryError(
                f"Nothing is closed yet for flow '{self._flow.name}': every day is still open.",
                why="It has no watermark yet. The watermark advances after rows of both topics have arrived.",
                state=_UNCHANGED,
                remedy="Keep the flow running until both topics have rows.",
                code="HR-356",
            )
        closed = datetime.fromtimestamp(watermark_ms / 1000, UTC) - self._bound
        start = datetime.combine(day or closed.date() - timedelta(days=1), datetime.min.time(), UTC)
        end = min(start + timedelta(days=1), closed)
        if end <= start:
            raise RecoveryError(
                f"Nothing of {start:%Y-%m-%d} is closed for flow '{self._flow.name}'.",
                why=f"The watermark has passed the bound of orders before {closed:%Y-%m-%d %H:%M:%S} UTC. The flow may "
                "still match later orders.",
                state=_UNCHANGED,
                remedy="Keep the flow running, or name an earlier day with --day.",
                code="HR-356",
            )
        return start, end, end == start + timedelta(days=1)

    def _differences(self, table: DataFrame) -> tuple[dict[str, int], dict[str, int], list[dict[str, object]]]:
        """Return how many rows are missing and surplus, by cause, with examples."""
        assert self._rows is not None  # noqa: S101 - made before
        sides = [
            rows.select(*_COLUMNS, F.lit(in_table).alias("in_table"), F.lit(1 - in_table).alias("expected"))
            for rows, in_table in ((table, 1), (self._rows, 0))
        ]
        both = reduce(DataFrame.unionAll, sides).groupBy(*_COLUMNS)
        counted = both.agg(F.sum("in_table").alias("in_table"), F.sum("expected").alias("expected")).where(
            "in_table <> expected"
        )
        late = self._late_ids().withColumn("late", F.lit(True))
        differences = counted.join(late, "order_id", "left").orderBy("order_id", "order_time", "pay_time")
        added, removed, examples = Counter[str](), Counter[str](), dict[str, list[dict[str, object]]]()
        for row in differences.toLocalIterator():
            for cause, surplus in surplus_by_cause(row.in_table, row.expected, late=bool(row.late)).items():
                (removed if surplus > 0 else added)[cause] += abs(surplus)
                examples_of_cause = examples.setdefault(cause, [])
                if len(examples_of_cause) < _EXAMPLES:
                    change = {"cause": cause, "change": "remove" if surplus > 0 else "add", "times": abs(surplus)}
                    examples_of_cause.append({**change, **{name: _json_value(row[name]) for name in _COLUMNS}})
        return dict(added), dict(removed), [row for cause in sorted(examples) for row in examples[cause]]

    def _late_ids(self) -> DataFrame:
        """Return the orders with a record in the ledger of late rows."""
        location = late_table(self._target, self._flow.name)
        if not is_table(location, self._session):
            return self._session.createDataFrame([], "order_id string")
        ledger = self._session.read.format("delta").load(location)
        ledger = ledger.where(F.col("query_id") == F.lit(self._checkpoint.query_id()))
        # The ledger has rows as they reached the join: a payment's id has another name there.
        ids = F.coalesce(*(F.get_json_object("row", f"$.{name}") for name in ("order_id", "paid_order_id")))
        return ledger.select(ids.alias("order_id")).distinct()

    def _count_unmatched(
        self, inputs: Mapping[str, DataFrame], inside: Column
    ) -> tuple[dict[str, int], list[dict[str, object]]]:
        """Return how many orders have no payment and payments no order, with examples."""
        bound = f"{self._bound.total_seconds():f} seconds"
        unmatched = join_payments(inputs["orders"], inputs["payments"], "full", bound).where(inside)
        unmatched = unmatched.where(F.col("order_time").isNull() | F.col("pay_time").isNull())
        unmatched = unmatched.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts = unmatched.select(
                F.count_if(F.col("pay_time").isNull()), F.count_if(F.col("order_time").isNull())
            ).first()
            orders, payments = counts or (0, 0)
            sides = (unmatched.where(F.col(name).isNull()).orderBy("order_id") for name in ("pay_time", "order_time"))
            examples = [
                {name: _json_value(row[name]) for name in _COLUMNS} for side in sides for row in side.take(_EXAMPLES)
            ]
        finally:
            unmatched.unpersist()
        return {"payment(s) of an order": orders, "order(s) of a payment": payments}, examples


def is_join(flow: Flow) -> bool:
    """Return whether a flow is a join of orders and payments, by the pattern's own transform."""
    return (
        isinstance(flow.transform, partial)
        and flow.transform.func is join_payments
        and isinstance(flow.sink, DeltaAppend)
    )


def _not_a_join(flow: Flow) -> RecoveryError:
    """Return the error for a flow that is not one of the pattern's."""
    return RecoveryError(
        f"Flow '{flow.name}' is not a join of orders and payments.",
        why="Headrace can recompute a flow only if its transform is `join_payments` of headrace.patterns.orders.flows "
        "and its sink is DeltaAppend.",
        state=_UNCHANGED,
        remedy="Name a flow that `flows` of that pattern returns, or name none to select all of them.",
        code="HR-355",
    )


def _time_bound(flow: Flow) -> timedelta:
    if not isinstance(flow.transform, partial) or flow.transform.func is not join_payments:
        raise _not_a_join(flow)
    return timedelta(milliseconds=Duration.parse(str(flow.transform.keywords["bound"])).ms)


RECONCILIATION = Reconciliation(is_join, JoinReconciliation.open)


def surplus_by_cause(in_table: int, expected: int, *, late: bool) -> dict[str, int]:
    """Return how many surplus copies of one row a table has, by cause; negative counts are missing rows.

    If the row is expected, every surplus copy is a duplicate. If it is not, the stream emitted it once for a reason,
    and the other copies are duplicates of that.
    """
    reason = "late" if late else "other"
    if in_table <= expected:
        return {reason: in_table - expected} if in_table < expected else {}
    unexpected = 0 if expected else 1
    surplus = {reason: unexpected, "duplicate": in_table - expected - unexpected}
    return {cause: rows for cause, rows in surplus.items() if rows}


def _event_time() -> Column:
    """Return the event time of a row: of the order, or of a payment without an order."""
    return F.coalesce("order_time", "pay_time")


def _json_value(value: object) -> object:
    # Spark returns times without a zone, in the machine's local time.
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else None if value is None else str(value)
