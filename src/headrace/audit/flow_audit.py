"""The audit of one flow: which batches to read again, which rows to file, and how far it has come."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.audit.future import ahead_rows
from headrace.audit.late import LateAudit, Unexplained
from headrace.clients.storage import file_store
from headrace.errors import HeadraceError
from headrace.flow.flow import Flow
from headrace.flow.source import CanLoseRows, HasStartOffset, ReadsFiles, Source
from headrace.flow.target import Target
from headrace.ingest.parse import invalid_rows, validate
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.lost_offsets import LossKind, LostOffsets, LostRange
from headrace.runtime.checkpoint.source_order import source_index
from headrace.runtime.session import flow_session
from headrace.sinks.delta.log import last_recorded
from headrace.sources.errors import source_not_replayable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The most batches of one step. Each adds a scan to one plan, and Spark plans a few dozen of them in a second.
_STEP = 16


def quarantine_table(target: Target, flow: str) -> str:
    """Return where the bad rows of a flow are kept."""
    return target.table(f"_headrace/{flow}/quarantine")


def late_table(target: Target, flow: str) -> str:
    """Return where the late rows of a flow are kept."""
    return target.table(f"_headrace/{flow}/late")


def unexplained_table(target: Target, flow: str) -> str:
    """Return where drops of a flow are kept that Spark counted and that no row of the late ledger explains."""
    return target.table(f"_headrace/{flow}/late_unexplained")


@dataclass(frozen=True)
class Step:
    """What is known about a batch that was committed: whether it has bad rows, and whether it may have late ones.

    `dropped` is Spark's count of late rows per operator with state, None where it is not known.
    """

    batch_id: int
    bad: bool
    late: bool
    dropped: tuple[int, ...] | None = None


@dataclass
class Tally:
    """What was filed for a flow: bad rows by reason, late rows, and what keeps the rest from being filed.

    `unexplained` holds drops that Spark counted and whose rows could not be found. `unaudited` holds offsets that were
    gone before they could be looked at, of a source that accepts it.
    """

    bad: dict[str, int] = field(default_factory=dict)
    late: int = 0
    unexplained: list[Unexplained] = field(default_factory=list)
    unaudited: list[LostRange] = field(default_factory=list)
    error: HeadraceError | None = None


class FlowAudit:
    """Used by the auditor's thread, and for `tally` after that has ended."""

    def __init__(self, application: SparkSession, target: Target, flow: Flow) -> None:
        self._flow, self._target = flow, target
        self._session = flow_session(application, flow)
        # Nobody prunes these tables by their columns' ranges, and collecting them costs a pass.
        self._session.conf.set("spark.databricks.delta.stats.collect", "false")
        self._checkpoint = Checkpoint.of(flow.name, target, file_store(target.checkpoints, application))
        self._note = f"{self._checkpoint.metadata_dir}/audited.json"
        self._lost = LostOffsets(self._checkpoint)
        self._unaudited: list[LostRange] = []
        self._late = LateAudit(self._session, target, flow, self._checkpoint, self._scan)
        self._unexplained: list[Unexplained] = []
        self._news: list[Unexplained] = []
        self._first_here: int | None = None
        self.error: HeadraceError | None = None

    def take(self, steps: Sequence[Step]) -> None:
        """Audit every batch up to the last one of `steps`. Called with all that wait, in the order of the batches.

        A batch without a step is read again. Batches after the last step are left alone, even if the commit log has
        them: the query is about to report what Spark counted in them.
        """
        known: dict[int, Step] = {}
        for step in steps:
            known.setdefault(step.batch_id, step)
        last = max(known, default=-1)
        done = self._audited()
        if self._first_here is None:
            self._first_here = done + 1
        pending = list(range(self._first_readable(done), last + 1))
        for start in range(0, len(pending), _STEP):
            span = pending[start : start + _STEP]
            self._file_bad([number for number in span if number not in known or known[number].bad])
            dropped = {number: known[number].dropped if number in known else None for number in span}
            self._file_late({n: dropped[n] for n in span if n not in known or known[n].late})
            self._remember(span[-1])

    def catch_up(self) -> None:
        """Audit every committed batch. Called while no query of the flow runs."""
        self.take([Step(batch, bad=True, late=True) for batch in self._checkpoint.committed_batches()[-1:]])

    def tally(self) -> Tally:
        """Count what this process filed, from the tables themselves."""
        found = Tally(error=self.error, unaudited=self._unaudited, unexplained=self._unexplained)
        if self._first_here is None:
            return found
        since = (F.col("query_id") == self._checkpoint.query_id()) & (F.col("batch_id") >= self._first_here)
        bad = self._table(quarantine_table(self._target, self._flow.name))
        if bad is not None:
            rows = bad.where(since).groupBy("reason").count().orderBy("reason").collect()
            found.bad = {row["reason"]: row["count"] for row in rows}
        dropped = self._table(late_table(self._target, self._flow.name))
        if dropped is not None:
            found.late = dropped.where(since).count()
        return found

    def _first_readable(self, done: int) -> int:
        """Return the first batch to audit. It begins where the one before ended, and Spark forgets old entries."""
        oldest = next(iter(self._checkpoint.planned_batches()), 0)
        return max(done + 1, oldest + 1 if oldest else 0)

    def _audited(self) -> int:
        text = self._checkpoint.files.read(self._note)
        note = json.loads(text) if text else {}
        # A note of another checkpoint says nothing about this one.
        return int(note["batch"]) if note.get("query_id") == self._checkpoint.query_id() else -1

    def _remember(self, batch_id: int) -> None:
        note = {"query_id": self._checkpoint.query_id(), "batch": batch_id}
        self._checkpoint.files.write(self._note, json.dumps(note))

    def _file_bad(self, batches: Sequence[int]) -> None:
        self._append(quarantine_table(self._target, self._flow.name), "quarantine", batches, self._bad_rows)

    def _file_late(self, dropped: Mapping[int, tuple[int, ...] | None]) -> None:
        """File the late rows of batches, then what they do not explain of the drops that Spark counted."""
        # Nothing is late in batch 0: there is no watermark before it.
        batches = [number for number in dropped if number > 0]
        counted = any(any(counts) for number in batches if (counts := dropped[number]) is not None)
        if not batches or not (counted or self._late.possible):
            return
        ledger = late_table(self._target, self._flow.name)
        gaps: list[Unexplained] = []

        def rows_of(wanted: Sequence[int]) -> list[DataFrame]:
            parts, unread = self._late.rows({number: dropped[number] for number in wanted})
            gaps.extend(unread)
            return parts

        self._append(ledger, "late", batches, rows_of)
        since = (F.col("query_id") == self._checkpoint.query_id()) & F.col("batch_id").isin(batches)
        filed = self._table(ledger)
        gaps.extend(self._late.short(dropped, None if filed is None else filed.where(since), gaps))
        place = unexplained_table(self._target, self._flow.name)
        self._append(place, "late_unexplained", batches, lambda wanted: self._told(gaps, wanted))

    def newly_unexplained(self) -> list[Unexplained]:
        """Return what was found unexplained since the last call."""
        new, self._news = self._news, []
        return new

    def _told(self, gaps: Sequence[Unexplained], batches: Sequence[int]) -> list[DataFrame]:
        new = [gap for gap in gaps if gap.batch_id in batches]
        self._unexplained.extend(new)
        self._news.extend(new)
        return [self._late.frame(new)] if new else []

    def _append(
        self, table: str, kind: str, batches: Sequence[int], rows_of: Callable[[Sequence[int]], list[DataFrame]]
    ) -> None:
        """Append the rows of the batches that the table does not hold yet, in one commit that records the last one."""
        app_id = f"{self._checkpoint.query_id()}:{kind}"
        recorded = self._recorded(table, app_id) if batches else -1
        parts = rows_of([number for number in batches if number > recorded])
        if not parts:
            return
        (
            reduce(DataFrame.unionByName, parts)
            .withColumn("query_id", F.lit(self._checkpoint.query_id()))
            .withColumn("filed_at", F.current_timestamp())
            # Few rows from many scans: one file, not one per scan.
            .repartition(1)
            .write.format("delta")
            .mode("append")
            .option("txnAppId", app_id)
            .option("txnVersion", str(batches[-1]))
            # A ledger that an earlier version of this program began has fewer columns.
            .option("mergeSchema", "true")
            .save(table)
        )

    def _bad_rows(self, batches: Sequence[int]) -> list[DataFrame]:
        """Return the bad rows of the batches, one frame per input."""
        parts = []
        for name, given in self._flow.named_inputs.items():
            # Without a schema a row is judged by its event time alone.
            if given.schema is None:
                parts.extend(ahead_rows(name, given, batches, self._checkpoint, self._scan))
                continue
            scans = [
                scan.withColumn("batch_id", F.lit(number).cast("long"))
                for number in batches
                if (scan := self._scan(number, name)) is not None
            ]
            if scans:
                bad = invalid_rows(validate(reduce(DataFrame.unionByName, scans), given), given)
                parts.append(
                    bad.select(
                        F.lit(name).alias("input"),
                        "topic",
                        "partition",
                        "offset",
                        F.col("timestamp").alias("kafka_time"),
                        "reason",
                        "key",
                        "value",
                        "batch_id",
                    )
                )
        return parts

    def _scan(self, batch_id: int, name: str) -> DataFrame | None:
        """Return the rows that a batch read of an input, as they came, or None when it read none."""
        index = source_index(self._checkpoint, self._flow, name)
        if index is None:
            return None
        offsets = self._checkpoint.offset_range(batch_id, index)
        source = self._flow.named_inputs[name].source
        if offsets is None and self._checkpoint.lacks_start_offset(batch_id, index):
            offsets = self._from_beginning(batch_id, index, source)
        if offsets is None:
            return None
        if isinstance(source, CanLoseRows) and source.data_loss_reason is not None:
            # Such a source leaves out what is gone by now. That is no reason to stop, and none to be silent.
            gone = source.watch(self._target).missing_offsets(*offsets)
            found = [LostRange.of(each, name, source, "", LossKind.NOT_AUDITED) for each in gone]
            self._unaudited.extend(self._lost.add(batch_id, found))
        if isinstance(source, ReadsFiles):
            return source.read_files(self._session, self._target, self._checkpoint.source_files(index, *offsets))
        return source.batch(self._session, self._target, *offsets)

    def _from_beginning(self, batch_id: int, index: int, source: Source) -> tuple[str, str] | None:
        """Return the range of a batch that the checkpoint knows the end of only; None when it is empty."""
        end = self._checkpoint.offset_entry(batch_id).offsets[index]
        first = source.start_offset(end) if isinstance(source, HasStartOffset) and end is not None else None
        if first is None or end is None:
            raise source_not_replayable(source.name, f"The checkpoint does not say where batch {batch_id} begins.")
        return None if first == end else (first, end)

    def _table(self, location: str) -> DataFrame | None:
        return self._session.read.format("delta").load(location) if self._is_table(location) else None

    def _is_table(self, location: str) -> bool:
        return bool(file_store(location, self._session).names(f"{location}/_delta_log"))

    def _recorded(self, location: str, app_id: str) -> int:
        """Return the last batch that a table records under an identity, or -1."""
        if not self._is_table(location):
            return -1
        return last_recorded(self._session, location, app_id)
