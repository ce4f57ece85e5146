"""Record invalid and late rows exactly, without slowing down the batch.

A query counts invalid rows, and Spark reports whether a batch dropped late ones. Only for such a batch the audit reads
its range of offsets again, as the checkpoint's own log has it, and records exactly those rows:

    LAKE/_headrace/FLOW/quarantine   payload, topic, partition, offset, reason
    LAKE/_headrace/FLOW/late         row, window, watermark, how late, topic, partition, offset

Drops that Spark counted and the ledger does not explain, because the rows cannot be read again, are published as an
event and stored in LAKE/_headrace/FLOW/late_unexplained.

Each batch is recorded once, also across crashes. After each pass the audit writes down the last batch it has finished.
If it is killed between the tables and that note, the batch number that each table commits with its rows shows what is
done. If a driver dies after a commit and before the audit of that batch, the next driver audits the batch.

An auditor that has fallen behind takes all pending batches in one pass to catch up.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping

from headrace.audit.flow_audit import AuditCounts, BatchToAudit, FlowAudit
from headrace.errors import HeadraceError
from headrace.runtime.events import AuditFailed, BatchCommitted, EventBus, FlowEvent, FlowStarted, LateRowsNotRecorded


class Auditor:
    """Audits the flows of one application, driven by its events. Call `close` when all flows have ended.

    `audits` has the audit of each flow by its name. `map_error` converts a failure of a flow's audit into an error of
    the tree.
    """

    def __init__(
        self, audits: Mapping[str, FlowAudit], bus: EventBus, map_error: Callable[[str, Exception], HeadraceError]
    ) -> None:
        self._audits, self._bus, self._map_error = audits, bus, map_error
        self._events: queue.Queue[FlowStarted | BatchCommitted | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()
        bus.subscribe(self._on_event)

    def _on_event(self, event: FlowEvent) -> None:
        """Queue an event and return immediately; the auditor's own thread does the work."""
        if isinstance(event, FlowStarted | BatchCommitted):
            self._events.put(event)

    def close(self) -> Mapping[str, AuditCounts]:
        """Finish the pending batches, and return what this process recorded per flow. Call after the last event."""
        self._events.put(None)
        self._thread.join()
        return {name: audit.audit_counts() for name, audit in self._audits.items()}

    def _run(self) -> None:
        closing = False
        while not closing:
            events = list(self._pending_events())
            closing = None in events
            batches: dict[str, list[BatchToAudit]] = {}
            for event in events:
                batch = None if event is None else _batch_to_audit(event)
                if event is not None and batch is not None:
                    batches.setdefault(event.flow, []).append(batch)
            for flow, pending in batches.items():
                audit = self._audits[flow]
                try:
                    audit.audit_batches(pending)
                    audit.error = None
                except Exception as error:
                    # The batches are committed. They stay unaudited; the next batch, or the next start, audits them.
                    audit.error = self._map_error(flow, error)
                    self._bus.publish(AuditFailed(flow, audit.error))
                for drop in audit.pop_unexplained():
                    self._bus.publish(LateRowsNotRecorded(flow, drop.batch_id, drop.dropped, drop.why))

    def _pending_events(self) -> Iterator[FlowStarted | BatchCommitted | None]:
        """Wait for one event, then yield it and all others in the queue."""
        yield self._events.get()
        while True:
            try:
                yield self._events.get_nowait()
            except queue.Empty:
                return


def _batch_to_audit(event: FlowStarted | BatchCommitted) -> BatchToAudit | None:
    match event:
        case FlowStarted():
            # Earlier runs may have ended before they audited their last batches.
            return None if event.last_batch is None else BatchToAudit(event.last_batch, invalid=True, late=True)
        case BatchCommitted():
            has_invalid, may_have_late = not event.counted or any(event.invalid.values()), event.dropped > 0
            return BatchToAudit(
                event.batch_id, invalid=has_invalid, late=may_have_late, dropped=event.dropped_by_operator
            )
