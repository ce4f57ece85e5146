"""Bad and late rows, filed exactly, off the path of the batch.

A query counts bad rows, and Spark says whether a batch dropped late ones. Only when a batch reports some is its range
of offsets read again, from the checkpoint's own log, and exactly those rows are filed:

    LAKE/_headrace/FLOW/quarantine   payload, topic, partition, offset, reason
    LAKE/_headrace/FLOW/late         row, window, watermark, how late, topic, partition, offset

What Spark counts as dropped and the ledger does not explain, because the rows cannot be had again, is told as an event
and kept in LAKE/_headrace/FLOW/late_unexplained.

Each batch is filed once, also across crashes. How far the audit has come is written down after each step; a step that
was cut off between the tables and the note is known by the batch that each table records with its rows. A batch that
was committed by a driver that died before its audit is read again by the next one.

An auditor that has fallen behind takes all batches that wait in one step, so that it catches up.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.audit.flow_audit import FlowAudit, Step, Tally
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.runtime.error_mapping import map_error
from headrace.runtime.events import AuditFailed, BatchCommitted, Event, EventBus, FlowStarted, LateUnexplained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Auditor:
    """Follows the flows of one application, from the bus. `close` it when all flows have ended."""

    def __init__(
        self,
        application: SparkSession,
        target: Target,
        flows: Sequence[Flow],
        bus: EventBus,
    ) -> None:
        self._bus = bus
        self._flows = {flow.name: FlowAudit(application, target, flow) for flow in flows}
        self._events: queue.Queue[FlowStarted | BatchCommitted | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="audit", daemon=True)
        self._thread.start()
        bus.subscribe(self._hear)

    def _hear(self, event: Event) -> None:
        """Take note of an event. Returns at once; the work is done on the auditor's own thread."""
        if isinstance(event, FlowStarted | BatchCommitted):
            self._events.put(event)

    def close(self) -> Mapping[str, Tally]:
        """File what is outstanding, and return what this process filed per flow. Called once, after the last event."""
        self._events.put(None)
        self._thread.join()
        return {name: audit.tally() for name, audit in self._flows.items()}

    def _work(self) -> None:
        closing = False
        while not closing:
            events = list(self._waiting())
            closing = None in events
            steps: dict[str, list[Step]] = {}
            for event in events:
                step = None if event is None else _step(event)
                if event is not None and step is not None:
                    steps.setdefault(event.flow, []).append(step)
            for flow, waiting in steps.items():
                audit = self._flows[flow]
                try:
                    audit.take(waiting)
                    audit.error = None
                except Exception as error:
                    # The batches are committed. They stay unaudited; the next batch, or the next start, files them.
                    audit.error = map_error(flow, error)
                    self._bus.publish(AuditFailed(flow, audit.error))
                for gap in audit.newly_unexplained():
                    self._bus.publish(LateUnexplained(flow, gap.batch_id, gap.dropped, gap.why))

    def _waiting(self) -> Iterator[FlowStarted | BatchCommitted | None]:
        """Wait for one event, and yield it with all others that are there by then."""
        yield self._events.get()
        while True:
            try:
                yield self._events.get_nowait()
            except queue.Empty:
                return


def _step(event: FlowStarted | BatchCommitted) -> Step | None:
    match event:
        case FlowStarted():
            # Batches of earlier runs, which may have ended before they were audited.
            return None if event.last_batch is None else Step(event.last_batch, bad=True, late=True)
        case BatchCommitted():
            bad, late = not event.counted or any(event.invalid.values()), event.dropped > 0
            return Step(event.batch_id, bad=bad, late=late, dropped=event.dropped_by_operator)
