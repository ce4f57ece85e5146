"""Bad and late rows, filed exactly, off the path of the batch.

A query counts bad rows, and Spark says whether a batch dropped late ones. Only when a batch reports some is its range
of offsets read again, from the checkpoint's own log, and exactly those rows are filed:

    LAKE/_headrace/FLOW/quarantine   payload, topic, partition, offset, reason
    LAKE/_headrace/FLOW/late         row, window, watermark

Each batch is filed once, also across crashes: the tables record (query id, batch id) with the rows, and how far the
audit has come is written down after each batch. A batch that was committed by a driver that died before its audit is
read again by the next one.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.errors import HeadraceError
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.observe.lateness import late, rows_before_windows
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.events import BatchCommitted, Event, FlowStarted
from headrace.runtime.failures import mapped
from headrace.runtime.filesystem import files_for
from headrace.runtime.session import flow_session
from headrace.transforms.parse import good, judged, with_reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def quarantine_table(target: Target, flow: str) -> str:
    """Return where the bad rows of a flow are kept."""
    return target.table(f"_headrace/{flow}/quarantine")


def late_table(target: Target, flow: str) -> str:
    """Return where the late rows of a flow are kept."""
    return target.table(f"_headrace/{flow}/late")


@dataclass
class Tally:
    """What one process has filed for a flow: bad rows by reason, and late rows."""

    bad: Counter[object] = field(default_factory=Counter)
    late: int = 0


class Auditor:
    """Follows the flows of one application. Subscribe `hear` to the bus, and `close` it when all flows have ended."""

    def __init__(
        self,
        application: SparkSession,
        target: Target,
        flows: Sequence[Flow],
        on_error: Callable[[str, HeadraceError], None],
    ) -> None:
        self._target, self._on_error = target, on_error
        self._flows = {flow.name: _FlowAudit(application, target, flow) for flow in flows}
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="audit", daemon=True)
        self._thread.start()

    def hear(self, event: Event) -> None:
        """Take note of an event. Returns at once; the work is done on the auditor's own thread."""
        if isinstance(event, FlowStarted | BatchCommitted):
            self._events.put(event)

    def close(self) -> Mapping[str, Tally]:
        """File what is outstanding, and return what was filed per flow. Called once, after the last event."""
        self._events.put(None)
        self._thread.join()
        return {name: audit.tally for name, audit in self._flows.items()}

    def _work(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                match event:
                    case FlowStarted():
                        self._flows[event.flow].catch_up()
                    case BatchCommitted():
                        clean = not event.dropped and not any(event.bad.values())
                        self._flows[event.flow].settle(event.batch_id, clean=clean)
                    case _:
                        pass
            except Exception as error:
                # The batch itself is committed. It stays unaudited, and the next start of the flow files it.
                self._on_error(event.flow, mapped(event.flow, error))


class _FlowAudit:
    """How far the audit of one flow has come. Used by the auditor's thread only."""

    def __init__(self, application: SparkSession, target: Target, flow: Flow) -> None:
        self.tally = Tally()
        self._flow, self._target = flow, target
        self._session = flow_session(application, flow)
        self._checkpoint = Checkpoint.of(flow.name, target, files_for(target.checkpoints, application))
        self._note = f"{self._checkpoint.house}/audited.json"

    def catch_up(self) -> None:
        """Audit the batches that an earlier driver committed without having audited them."""
        committed = self._checkpoint.committed()
        if committed:
            self._audit_through(committed[-1])

    def settle(self, batch_id: int, *, clean: bool) -> None:
        """Audit every batch up to this one, of which it is known whether it is clean."""
        self._audit_through(batch_id - 1)
        if self._audited() < batch_id:
            if not clean:
                self._file(batch_id)
            self._remember(batch_id)

    def _audit_through(self, last: int) -> None:
        oldest = next(iter(self._checkpoint.planned()), 0)
        # Batch N begins where N-1 ended. Spark forgets old entries, so the oldest one left cannot be read again.
        first = max(self._audited() + 1, oldest + 1 if oldest else 0)
        for batch_id in range(first, last + 1):
            self._file(batch_id)
            self._remember(batch_id)

    def _audited(self) -> int:
        text = self._checkpoint.files.read(self._note)
        note = json.loads(text) if text else {}
        # A note of another checkpoint says nothing about this one.
        return int(note["batch"]) if note.get("query_id") == self._checkpoint.query_id() else -1

    def _remember(self, batch_id: int) -> None:
        note = {"query_id": self._checkpoint.query_id(), "batch": batch_id}
        self._checkpoint.files.write(self._note, json.dumps(note))

    def _file(self, batch_id: int) -> None:
        frames = {}
        for index, (name, given) in enumerate(self._flow.named_inputs.items()):
            if given.schema is None:
                # Without a payload nothing can be bad, and the source of such rows cannot be judged again.
                return
            offsets = self._checkpoint.range(batch_id, index)
            if offsets is None:
                frames[name] = self._session.createDataFrame([], given.schema)
                continue
            rows = judged(given.source.batch(self._session, self._target, *offsets), given)
            self._file_bad(with_reason(rows, given), name, batch_id)
            frames[name] = good(rows, given)
        if batch_id:
            watermark_ms = self._checkpoint.entry(batch_id - 1).watermark_ms
            for step, (rows, window) in enumerate(rows_before_windows(self._flow.apply(frames))):
                self._file_late(late(rows, window, watermark_ms), step, batch_id)

    def _file_bad(self, rows: DataFrame, name: str, batch_id: int) -> None:
        filed = rows.select(
            F.lit(name).alias("input"),
            "topic",
            "partition",
            "offset",
            F.col("timestamp").alias("kafka_time"),
            "reason",
            "key",
            "value",
        )
        table = quarantine_table(self._target, self._flow.name)
        self.tally.bad.update(self._append(filed, table, f"quarantine:{name}", batch_id, per="reason"))

    def _file_late(self, rows: DataFrame, step: int, batch_id: int) -> None:
        table = late_table(self._target, self._flow.name)
        self.tally.late += self._append(rows, table, f"late:{step}", batch_id, per="window_end").total()

    def _append(self, rows: DataFrame, table: str, step: str, batch_id: int, *, per: str) -> Counter[object]:
        """Append rows to a table once per batch, and return how many there were of each kind. None writes nothing."""
        stamped = rows.withColumn("batch_id", F.lit(batch_id).cast("long"))
        kept = stamped.withColumn("filed_at", F.current_timestamp()).persist()
        try:
            counts = Counter({row[per]: row["count"] for row in kept.groupBy(per).count().collect()})
            if counts:
                (
                    kept.write.format("delta")
                    .mode("append")
                    .option("txnAppId", f"{self._checkpoint.query_id()}:{step}")
                    .option("txnVersion", str(batch_id))
                    .save(table)
                )
            return counts
        finally:
            kept.unpersist()
