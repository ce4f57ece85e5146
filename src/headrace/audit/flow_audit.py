"""The audit of one flow: which batches to read again, which rows to record, and which batch was audited last."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import DataFrame, SparkSession, functions as F

from headrace.audit.late import LateAudit, UnrecordedDrop
from headrace.clients.spark.delta_log import is_table, last_txn_version
from headrace.clients.sql import column_named
from headrace.errors import HeadraceError, SourceNotReplayable
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.source import CanLoseRows, HasStartOffset, ReadsFiles, Source
from headrace.flow.target import Target
from headrace.ingest.future_events import invalid_rows as invalid_rows_by_clock, validate_by_clock
from headrace.ingest.parse import invalid_rows, validate
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.lost_offsets import LossKind, LostOffsets, LostRange
from headrace.runtime.checkpoint.source_order import source_index
from headrace.sinks.delta.sql import idempotent_options
from headrace.sources.errors import source_not_replayable

# The most batches of one pass. Each adds a scan to one plan, and Spark plans a few dozen of them in a second.
_MAX_BATCHES_PER_PASS = 16


def quarantine_table(target: Target, flow: str) -> str:
    """Return the location of a flow's quarantine of invalid rows."""
    return target.table(f"_headrace/{flow}/quarantine")


def late_table(target: Target, flow: str) -> str:
    """Return the location of a flow's ledger of late rows."""
    return target.table(f"_headrace/{flow}/late")


def unexplained_table(target: Target, flow: str) -> str:
    """Return the location of drops that Spark counted and the late ledger does not explain."""
    return target.table(f"_headrace/{flow}/late_unexplained")


@dataclass(frozen=True)
class BatchToAudit:
    """A committed batch to audit: whether it has invalid rows, and whether it may have late ones.

    `dropped` is Spark's count of late rows per stateful operator, None if unknown.
    """

    batch_id: int
    invalid: bool
    late: bool
    dropped: tuple[int, ...] | None = None


@dataclass
class AuditCounts:
    """What an audit recorded for a flow: invalid rows by reason, late rows, and what it could not record.

    `unexplained` lists drops that Spark counted and whose rows could not be found. `unaudited` lists offsets that were
    deleted from a source with an accepted loss before the audit could read them.
    """

    invalid: dict[str, int] = field(default_factory=dict)
    late: int = 0
    unexplained: list[UnrecordedDrop] = field(default_factory=list)
    unaudited: list[LostRange] = field(default_factory=list)
    error: HeadraceError | None = None


class FlowAudit:
    """Audits one flow. Used by the auditor's thread; call `audit_counts` when that has ended.

    The session has the settings of the flow and belongs to the audit alone, which changes others.
    """

    def __init__(self, session: SparkSession, target: Target, flow: Flow) -> None:
        self._session, self._target, self._flow = session, target, flow
        # No query prunes these tables by column statistics, and collecting them costs a pass.
        self._session.conf.set("spark.databricks.delta.stats.collect", "false")
        self._checkpoint = Checkpoint.of(flow.name, target, session)
        self._note_path = f"{self._checkpoint.metadata_dir}/audited.json"
        self._lost = LostOffsets(self._checkpoint)
        self._unaudited: list[LostRange] = []
        self._late = LateAudit(self._session, target, flow, self._checkpoint, self._scan)
        self._unexplained: list[UnrecordedDrop] = []
        self._unpublished: list[UnrecordedDrop] = []
        self._first_audited: int | None = None
        self.error: HeadraceError | None = None

    def audit_batches(self, batches: Sequence[BatchToAudit]) -> None:
        """Audit every batch up to the last one of `batches`, which are in ascending order.

        A batch that is missing in `batches` is read again. Batches after the last one are left alone, even if the
        commit log has them: the query is about to report what Spark counted in them.
        """
        reported: dict[int, BatchToAudit] = {}
        for batch in batches:
            reported.setdefault(batch.batch_id, batch)
        last = max(reported, default=-1)
        done = self._last_audited_batch()
        if self._first_audited is None:
            self._first_audited = done + 1
        pending = list(range(self._first_auditable_batch(done), last + 1))
        for start in range(0, len(pending), _MAX_BATCHES_PER_PASS):
            group = pending[start : start + _MAX_BATCHES_PER_PASS]
            invalid = [number for number in group if number not in reported or reported[number].invalid]
            self._append(quarantine_table(self._target, self._flow.name), "quarantine", invalid, self._invalid_rows)
            dropped = {number: reported[number].dropped if number in reported else None for number in group}
            self._record_late({n: dropped[n] for n in group if n not in reported or reported[n].late})
            note = {"query_id": self._checkpoint.query_id(), "batch": group[-1]}
            self._checkpoint.files.write(self._note_path, json.dumps(note))

    def catch_up(self) -> None:
        """Audit every committed batch. Call only while no query of the flow runs."""
        self.audit_batches(
            [BatchToAudit(batch, invalid=True, late=True) for batch in self._checkpoint.committed_batches()[-1:]]
        )

    def audit_counts(self) -> AuditCounts:
        """Count what this process recorded, from the tables themselves."""
        counts = AuditCounts(error=self.error, unaudited=self._unaudited, unexplained=self._unexplained)
        if self._first_audited is None:
            return counts
        since = (F.col("query_id") == self._checkpoint.query_id()) & (F.col("batch_id") >= self._first_audited)
        quarantine = self._table(quarantine_table(self._target, self._flow.name))
        if quarantine is not None:
            reasons = quarantine.where(since).groupBy("reason").count().orderBy("reason").collect()
            counts.invalid = {row["reason"]: row["count"] for row in reasons}
        late = self._table(late_table(self._target, self._flow.name))
        if late is not None:
            counts.late = late.where(since).count()
        return counts

    def _first_auditable_batch(self, done: int) -> int:
        """Return the first batch to audit. Its range needs the entry before it, and Spark deletes old entries."""
        oldest = next(iter(self._checkpoint.planned_batches()), 0)
        return max(done + 1, oldest + 1 if oldest else 0)

    def _last_audited_batch(self) -> int:
        text = self._checkpoint.files.read(self._note_path)
        note = json.loads(text) if text else {}
        # A note of another checkpoint does not count for this one.
        return int(note["batch"]) if note.get("query_id") == self._checkpoint.query_id() else -1

    def _record_late(self, dropped: Mapping[int, tuple[int, ...] | None]) -> None:
        """Record the late rows of batches, then the drops that Spark counted beyond them."""
        # Nothing is late in batch 0: there is no watermark before it.
        batches = [number for number in dropped if number > 0]
        counted = any(any(counts) for number in batches if (counts := dropped[number]) is not None)
        if not batches or not (counted or self._late.can_drop_rows):
            return
        ledger = late_table(self._target, self._flow.name)
        drops: list[UnrecordedDrop] = []

        def late_rows(batch_ids: Sequence[int]) -> list[DataFrame]:
            parts, unreadable = self._late.rows({number: dropped[number] for number in batch_ids})
            drops.extend(unreadable)
            return parts

        self._append(ledger, "late", batches, late_rows)
        since = (F.col("query_id") == self._checkpoint.query_id()) & F.col("batch_id").isin(batches)
        late = self._table(ledger)
        drops.extend(self._late.find_unrecorded_drops(dropped, None if late is None else late.where(since), drops))
        location = unexplained_table(self._target, self._flow.name)
        self._append(
            location, "late_unexplained", batches, lambda batch_ids: self._record_unexplained(drops, batch_ids)
        )

    def pop_unexplained(self) -> list[UnrecordedDrop]:
        """Return the unexplained drops since the last call."""
        drops, self._unpublished = self._unpublished, []
        return drops

    def _record_unexplained(self, drops: Sequence[UnrecordedDrop], batches: Sequence[int]) -> list[DataFrame]:
        new = [drop for drop in drops if drop.batch_id in batches]
        self._unexplained.extend(new)
        self._unpublished.extend(new)
        return [self._late.to_dataframe(new)] if new else []

    def _append(
        self, table: str, kind: str, batches: Sequence[int], build_rows: Callable[[Sequence[int]], list[DataFrame]]
    ) -> None:
        """Append the rows of batches that the table does not have yet, in one commit that records the last batch."""
        app_id = f"{self._checkpoint.query_id()}:{kind}"
        recorded = last_txn_version(self._session, table, app_id) if batches and is_table(table, self._session) else -1
        frames = build_rows([number for number in batches if number > recorded])
        if not frames:
            return
        (
            reduce(DataFrame.unionByName, frames)
            .withColumn("query_id", F.lit(self._checkpoint.query_id()))
            .withColumn("recorded_at", F.current_timestamp())
            # Few rows from many scans: one file, not one per scan.
            .repartition(1)
            .write.format("delta")
            .mode("append")
            .options(**idempotent_options(app_id, batches[-1]))
            # A ledger created by an earlier version of Headrace has fewer columns.
            .option("mergeSchema", "true")
            .save(table)
        )

    def _invalid_rows(self, batches: Sequence[int]) -> list[DataFrame]:
        """Return the invalid rows of the batches, one frame per input."""
        frames = []
        for name, input_ in self._flow.named_inputs.items():
            # Without a schema only the event time and the rules of a row are checked.
            if input_.schema is None:
                frames.extend(_rejected_rows(name, input_, batches, self._checkpoint, self._scan))
                continue
            scans = [
                scan.withColumn("batch_id", F.lit(number).cast("long"))
                for number in batches
                if (scan := self._scan(number, name)) is not None
            ]
            if scans:
                invalid = invalid_rows(validate(reduce(DataFrame.unionByName, scans), input_), input_)
                frames.append(
                    invalid.select(
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
        return frames

    def _scan(self, batch_id: int, name: str) -> DataFrame | None:
        """Return the rows that a batch read from an input, unchanged, or None if it read none."""
        index = source_index(self._checkpoint, self._flow, name)
        if index is None:
            return None
        offsets = self._checkpoint.offset_range(batch_id, index)
        source = self._flow.named_inputs[name].source
        if offsets is None and self._checkpoint.lacks_start_offset(batch_id, index):
            offsets = self._first_batch_range(batch_id, index, source)
        if offsets is None:
            return None
        if isinstance(source, CanLoseRows) and source.data_loss_reason is not None:
            # Such a source skips deleted offsets. The audit continues and reports them.
            unavailable = source.watch(self._target).missing_offsets(*offsets)
            losses = [LostRange.of(range_, name, source, "", LossKind.NOT_AUDITED) for range_ in unavailable]
            self._unaudited.extend(self._lost.add(batch_id, losses))
        if isinstance(source, ReadsFiles):
            return source.read_files(self._session, self._target, self._checkpoint.source_files(index, *offsets))
        return source.batch(self._session, self._target, *offsets)

    def _first_batch_range(self, batch_id: int, index: int, source: Source) -> tuple[str, str] | None:
        """Return the range of a batch whose start offset is not in the checkpoint; None if it is empty."""
        end = self._checkpoint.offset_entry(batch_id).offsets[index]
        first = source.start_offset(end) if isinstance(source, HasStartOffset) and end is not None else None
        if first is None or end is None:
            raise source_not_replayable(source.name, f"The checkpoint does not say where batch {batch_id} begins.")
        return None if first == end else (first, end)

    def _table(self, location: str) -> DataFrame | None:
        return self._session.read.format("delta").load(location) if is_table(location, self._session) else None


def _rejected_rows(
    name: str,
    input_: Input,
    batches: Sequence[int],
    checkpoint: Checkpoint,
    scan: Callable[[int, str], DataFrame | None],
) -> list[DataFrame]:
    """Return the rows of an input that were rejected as future events or by a rule, as rows of the quarantine.

    `scan` reads a batch of an input again. A batch that cannot be read again is skipped: the run still counts its rows,
    and they stay in their source.
    """
    if input_.watermark is None and not input_.rules:
        return []
    frames = []
    for number in batches:
        try:
            rows = scan(number, name)
        except SourceNotReplayable:
            continue
        if rows is None:
            continue
        columns = [column_named(column) for column in rows.columns if column != "batch_id"]
        clock = F.timestamp_millis(F.lit(checkpoint.offset_entry(number).timestamp_ms))
        rejected = invalid_rows_by_clock(validate_by_clock(rows, input_, clock), input_)
        frames.append(
            rejected.select(
                F.lit(name).alias("input"),
                F.lit(None).cast("string").alias("topic"),
                F.lit(None).cast("int").alias("partition"),
                F.lit(None).cast("long").alias("offset"),
                F.lit(None).cast("timestamp").alias("kafka_time"),
                "reason",
                F.lit(None).cast("binary").alias("key"),
                F.to_json(F.struct(*columns)).cast("binary").alias("value"),
                F.lit(number).cast("long").alias("batch_id"),
            )
        )
    return frames
