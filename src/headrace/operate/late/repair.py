"""Recompute closed windows with the rows that came too late for them: plan, explain, then apply.

1. The repair takes the lease of the flow and locks its table, so the flow cannot run. It audits committed batches that
   are not audited yet, so that the ledger is complete.
2. The same transform recomputes the unrepaired windows of the ledger as a batch, from all rows of the source up to the
   last audited batch, on time or late. Quarantined rows stay out.
3. The result is compared with the table, and the table is changed in one commit: `DeltaUpsert` merges by its keys and
   respects its sequence, `DeltaAppend` replaces the rows of those windows. In a fan-out only its Delta table is
   repaired, not the other sinks.
4. The windows are marked as repaired, with the last batch whose late rows are included.

If a repair is interrupted between 3 and 4, the next one finds that the table already has the result, and only marks
the windows. A row that comes late after a repair is in the ledger under a later batch: its window is due again.

A window is not repaired if some of its rows may be missing from the source: a result from fewer rows than the stream
had would be worse than the one without the late rows.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import BinaryType
from pyspark.storagelevel import StorageLevel

from headrace.audit.flow_audit import late_table
from headrace.clients.sql import column_named, quote_name, timestamp_literal
from headrace.errors import RecoveryError
from headrace.flow.sink import Sink
from headrace.operate.late.replayable_rows import UNCHANGED, Recomputation
from headrace.operate.late.summary import Window, is_repaired, repaired_table, repaired_up_to
from headrace.operate.ledgers import LedgerRow, read_ledger
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sinks.delta.write import DeltaAppend
from headrace.sinks.fan_out import FanOut
from headrace.spark_plan.windows import NotAWindowedAggregation, WindowResults

# The step under which a repair is recorded in the table, separate from the flow's batches.
_STEP = "repair"

# The maximum number of changed rows that a plan lists. The counts cover all rows.
_EXAMPLES = 20


@dataclass(frozen=True)
class UnrepairedWindow:
    """A window that is not repaired, and the reason."""

    window: Window | None
    rows: int
    why: str

    def as_dict(self) -> dict[str, object]:
        """The window as `--json` prints it."""
        return {**_as_dict(self.window), "rows": self.rows, "why": self.why}


@dataclass(frozen=True)
class ChangedRow:
    """A row that a repair changes, as JSON. Without `before` it is added, without `after` removed."""

    before: str | None
    after: str | None

    def as_dict(self) -> dict[str, object]:
        """The change as `--json` prints it."""
        return {side: json.loads(text) if text else None for side, text in vars(self).items()}


@dataclass(frozen=True)
class RepairPlan:
    """What a repair does.

    | field    | meaning                                                                                    |
    |----------|--------------------------------------------------------------------------------------------|
    | windows  | the windows to recompute, each with the number of its late rows                            |
    | left     | the windows that are not repaired, with the reason                                         |
    | up_to    | the last batch whose rows are included                                                     |
    | changed, added, removed | rows of the table                                                           |
    | examples | some of those rows, before and after                                                       |
    """

    flow: str
    place: str
    up_to: int
    windows: dict[Window, int]
    left: tuple[UnrepairedWindow, ...]
    changed: int = 0
    added: int = 0
    removed: int = 0
    examples: tuple[ChangedRow, ...] = ()

    @property
    def changes(self) -> int:
        """The number of rows of the table that change."""
        return self.changed + self.added + self.removed

    def as_dict(self) -> dict[str, object]:
        """The plan as `--json` prints it."""
        return {
            **vars(self),
            "windows": [{**_as_dict(window), "rows": rows} for window, rows in self.windows.items()],
            "left": [window.as_dict() for window in self.left],
            "examples": [row.as_dict() for row in self.examples],
        }

    def lines(self) -> Iterator[str]:
        """Describe the plan, for people."""
        if self.windows:
            late, windows = sum(self.windows.values()), len(self.windows)
            yield f"{windows} closed window(s) get {late} late row(s), from all rows up to batch {self.up_to}."
            if self.changes:
                yield f"{self.changed} row(s) of {self.place} change, {self.added} are added, {self.removed} removed."
                yield "A flow that reads this table as appends stops at the change: DeltaChangesSource reads it."
            else:
                yield f"No row changes: {self.place} already has these results. Only the mark is missing."
        for window in self.left:
            yield f"Not repaired: {_window_label(window.window)}, {window.rows} late row(s). {window.why}"


def _as_dict(window: Window | None) -> dict[str, object]:
    start, end = window or (None, None)
    return {"start": start and start.isoformat(), "end": end and end.isoformat()}


def _window_label(window: Window | None) -> str:
    return "no window" if window is None else f"{window[0]:%Y-%m-%d %H:%M:%S} to {window[1]:%H:%M:%S}"


class Repair(Recomputation):
    """A repair that holds the lease, from `Repair.open`; call `plan` once, then optionally `apply`."""

    _where = ""

    def plan(self) -> RepairPlan:
        """Recompute the windows and compare them with the table. Changes nothing."""
        sink = self._table
        up_to, query_id = self._checkpoint.committed_batches()[-1:], self._checkpoint.query_id()
        table = f"the Delta table {sink.folder(self._target)}"
        due, left = self._windows_to_repair(query_id)
        if not up_to or not due:
            return RepairPlan(self._flow.name, table, up_to[-1] if up_to else -1, {}, tuple(left))
        self._replayable.read_up_to(up_to[-1])
        closed = datetime.fromtimestamp(self._checkpoint.offset_entry(up_to[-1]).watermark_ms / 1000, UTC)
        for window, why in [
            (window, why) for window in due if (why := self._unrepairable_reason(window, closed)) is not None
        ]:
            left.append(UnrepairedWindow(window, due.pop(window), why))
        if not due:
            return RepairPlan(self._flow.name, table, up_to[-1], {}, tuple(left))
        starts = [start for start, _ in due]
        try:
            results = WindowResults.of(
                self._flow.apply(self._replayable.frames(min(starts), max(end for _, end in due)))
            )
        except NotAWindowedAggregation as error:
            raise RecoveryError(
                f"The transform of flow '{self._flow.name}' cannot be recomputed for single windows.",
                why=str(error),
                state=UNCHANGED,
                remedy="Replay the flow under a new name, with a longer delay of its watermark: `headrace late` "
                "suggests one.",
                code="HR-351",
            ) from error
        rows = results.for_windows(starts)
        rows = sink.newest(rows) if isinstance(sink, DeltaUpsert) else rows
        self._rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
        before, keys = self._current_rows(sink, results, list(due))
        return self._with_differences(RepairPlan(self._flow.name, table, up_to[-1], due, tuple(left)), before, keys)

    def apply(self, plan: RepairPlan) -> None:
        """Apply a plan: one commit to the table, unless it already has the result, then the marks."""
        sink = self._table
        assert self._rows is not None  # noqa: S101 - `plan` made them
        with self._lease.checked():
            if plan.changes and isinstance(sink, DeltaUpsert):
                sink.write(self._rows, self._next_batch(sink, _STEP))
            elif plan.changes and isinstance(sink, DeltaAppend):
                sink.replace(self._rows, self._where, self._next_batch(sink, _STEP))
            self._mark(plan, self._query_id)

    @property
    def _table(self) -> DeltaAppend | DeltaUpsert:
        """The only Delta sink of the flow, directly or within a fan-out; `Filtered` sinks do not count."""
        sinks: Sequence[Sink] = self._flow.sink.sinks if isinstance(self._flow.sink, FanOut) else (self._flow.sink,)
        tables = [sink for sink in sinks if isinstance(sink, DeltaAppend | DeltaUpsert)]
        if len(tables) != 1:
            raise RecoveryError(
                f"The late rows of flow '{self._flow.name}' cannot be repaired in {self._flow.sink.name}.",
                why="A repair replaces rows in one recorded commit, which works for one DeltaAppend or DeltaUpsert, "
                "alone or within a fan-out.",
                state=UNCHANGED,
                remedy="Let the flow write one Delta table, and let all consumers read that table.",
                code="HR-350",
            )
        return tables[0]

    def _windows_to_repair(self, query_id: str | None) -> tuple[dict[Window, int], list[UnrepairedWindow]]:
        """Return the windows to repair with their late rows, and the parts of the ledger that cannot be repaired."""
        columns = ("query_id", "batch_id", "operator", "window_start", "window_end")
        entries = read_ledger(late_table(self._target, self._flow.name), columns, lambda: self._session)
        marks = ("query_id", "window_start", "window_end", "up_to")
        repaired = repaired_up_to(
            read_ledger(repaired_table(self._target, self._flow.name), marks, lambda: self._session)
        )
        due: dict[Window, int] = {}
        unrepairable: Counter[str] = Counter()
        for entry in (entry for entry in entries if not is_repaired(entry, repaired)):
            window = (entry["window_start"], entry["window_end"])
            why = _reason_not_repairable(entry, query_id)
            if why is not None:
                unrepairable[why] += 1
            elif isinstance(window[0], datetime) and isinstance(window[1], datetime):
                due[window[0], window[1]] = due.get((window[0], window[1]), 0) + 1
        return dict(sorted(due.items())), [UnrepairedWindow(None, rows, why) for why, rows in unrepairable.items()]

    def _unrepairable_reason(self, window: Window, closed: datetime) -> str | None:
        """Return why a window cannot be repaired: it is open, or rows are missing. None if it can."""
        # The ledger has closed windows. Restoring a checkpoint may have opened them again.
        if window[1] > closed:
            return (
                f"It is open again: the watermark of the flow is {closed:%Y-%m-%d %H:%M:%S}Z. The flow takes the rows."
            )
        return self._replayable.missing(window)

    def _current_rows(
        self, sink: DeltaAppend | DeltaUpsert, results: WindowResults, windows: Sequence[Window]
    ) -> tuple[DataFrame, list[str]]:
        """Return the rows of the table that the repair covers, and the columns that identify its rows."""
        assert self._rows is not None  # noqa: S101 - set by `plan`
        table = self._session.read.format("delta").load(sink.folder(self._target))
        if isinstance(sink, DeltaUpsert):
            # Without the window in the key, or a sequence, an old window would replace a newer one.
            key_contents = [results.holds.get(name) for name in sink.key]
            if sink.sequence is None and not {"window", "start", "end"} & set(key_contents):
                raise RecoveryError(
                    f"The key of {self._flow.sink.name}, {', '.join(sink.key)}, does not contain the window.",
                    why="A row of a closed window would replace the newest one of its key, since the sink has no "
                    "`sequence`.",
                    state=UNCHANGED,
                    remedy="Declare a `sequence` on the sink, or add the unchanged start or end of the window to its "
                    "key.",
                    code="HR-352",
                )
            return _rows_with_keys(table, self._rows, sink.key), list(sink.key)
        column = next((name for name, content in results.holds.items() if content != "key"), None)
        if column is None:
            raise RecoveryError(
                f"The rows of a window cannot be found in {self._flow.sink.name}.",
                why="No column of the result is the window, its start or its end unchanged.",
                state=UNCHANGED,
                remedy="Let the transform keep the window's start or end in a column.",
                code="HR-353",
            )
        content = results.holds[column]
        bounds = ", ".join(timestamp_literal(end if content == "end" else start) for start, end in windows)
        self._where = f"{quote_name(column)}{'.start' if content == 'window' else ''} IN ({bounds})"
        return table.where(self._where), list(results.holds)

    def _with_differences(self, plan: RepairPlan, before: DataFrame, keys: Sequence[str]) -> RepairPlan:
        """Return the plan with the differences between the table and the result."""
        assert self._rows is not None  # noqa: S101 - set by `plan`
        sequence = self._table.sequence if isinstance(self._table, DeltaUpsert) else None
        columns = [column_named(name) for name in self._rows.columns]
        before_rows, after_rows = (
            rows.select(
                F.struct(*(column_named(name) for name in keys)).alias(f"{side}_key"), F.struct(*columns).alias(side)
            )
            for side, rows in (("before", before), ("after", self._rows))
        )
        joined = before_rows.join(after_rows, F.col("before_key").eqNullSafe(F.col("after_key")), "full_outer")
        differs = ~F.col("before").eqNullSafe(F.col("after"))
        if sequence is not None:
            # The table keeps a row with a higher sequence.
            is_older = F.col("after").getField(sequence) < F.col("before").getField(sequence)
            differs &= ~F.coalesce(is_older, F.lit(False))
        different = joined.where(differs).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts = different.select(
                F.count_if(F.col("before").isNotNull() & F.col("after").isNotNull()),
                F.count_if(F.col("before").isNull()),
                F.count_if(F.col("after").isNull()),
            ).first()
            changed, added, removed = counts or (0, 0, 0)
            shown = different.orderBy(F.coalesce("after_key", "before_key")).limit(_EXAMPLES)
            # Binary columns, such as sketches, are not readable.
            bytes_ = [quote_name(field.name) for field in self._rows.schema if isinstance(field.dataType, BinaryType)]
            sides = [F.col(side).dropFields(*bytes_) if bytes_ else F.col(side) for side in ("before", "after")]
            examples = shown.select(*map(F.to_json, sides)).collect()
        finally:
            different.unpersist()
        changed_rows = tuple(ChangedRow(*row) for row in examples)
        return replace(plan, changed=changed, added=added, removed=removed, examples=changed_rows)

    def _mark(self, plan: RepairPlan, query_id: str) -> None:
        """Mark the windows as repaired. A duplicate mark is harmless."""
        now = datetime.now(UTC)
        marks = [(query_id, *window, plan.up_to, rows, now) for window, rows in plan.windows.items()]
        columns = "query_id string, window_start timestamp, window_end timestamp, up_to long, late long, at timestamp"
        location = repaired_table(self._target, self._flow.name)
        self._session.createDataFrame(marks, columns).coalesce(1).write.format("delta").mode("append").save(location)


def _rows_with_keys(table: DataFrame, rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the rows of a table whose keys occur in other rows; null equals null."""
    wanted_keys = rows.select(*(column_named(name).alias(f"_headrace_{number}") for number, name in enumerate(keys)))
    same = [column_named(name).eqNullSafe(F.col(f"_headrace_{number}")) for number, name in enumerate(keys)]
    return table.join(wanted_keys, reduce(lambda left, right: left & right, same), "left_semi")


def _reason_not_repairable(entry: LedgerRow, query_id: str | None) -> str | None:
    if entry["query_id"] != query_id:
        return "They came while the flow had another checkpoint: its rows are not known any more."
    if entry["window_end"] is None or entry["operator"] not in ("window", None):
        return f"They were dropped by a {entry['operator']}. Only windows of a fixed length are repaired."
    return None
