"""Runs several flows in one application, until each has come to its end.

A flow has a thread of its own here. Its query is started under the lease of its checkpoint. What ends it decides what
follows:

| the query ended with | then                                                          |
|----------------------|---------------------------------------------------------------|
| nothing              | the flow is done                                              |
| a transient error    | it is started again after a delay that doubles each time      |
| a terminal error     | the flow stays down; the others go on                         |
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.clients.storage import file_store
from headrace.errors import HeadraceError, Transient
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.folder_lock import sole_writer
from headrace.runtime.checkpoint.lease import Holding, lease
from headrace.runtime.clock import Clock, now_ms
from headrace.runtime.continuous import is_unbatched, require_slots
from headrace.runtime.error_mapping import mapped
from headrace.runtime.events import BatchCommitted, Event, EventBus, FlowFailed, FlowStarted, FlowStopped
from headrace.runtime.query import RunningQuery
from headrace.runtime.state.memory import state_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Backoff:
    """How long to wait before a flow is started again.

    | field    | default | reason                                                                    |
    |----------|---------|---------------------------------------------------------------------------|
    | first    | 1 s     | a broker that restarts is back within seconds                             |
    | longest  | 60 s    | a person who repairs a part should not have to wait longer                |
    | attempts | None    | for ever: an outage of a night should not need a person in the morning    |

    A committed batch counts as recovered: the next failure waits `first` again.
    """

    first: float = 1.0
    longest: float = 60.0
    attempts: int | None = None

    def delay(self, failures: int) -> float | None:
        """Return the delay after so many failures in a row, or None to give up."""
        if self.attempts is not None and failures > self.attempts:
            return None
        # Sixty doublings of any delay are longer than any outage, and a float overflows past a thousand.
        return min(self.longest, self.first * 2.0 ** min(failures - 1, 60))


class Supervisor:
    """Drives flows. Make it, call `run` once from one thread; `drain` may be called from any thread."""

    def __init__(
        self,
        application: SparkSession,
        target: Target,
        flows: Sequence[Flow],
        bus: EventBus,
        *,
        backoff: Backoff | None = None,
        patience: float = 60.0,
        clock: Clock = now_ms,
    ) -> None:
        self._application, self._target, self._flows, self._bus = application, target, flows, bus
        self._backoff = backoff or Backoff()
        self._patience, self._clock = patience, clock
        self._memory_mb = state_memory(flows, application)
        self._draining = threading.Event()
        self._running: dict[str, RunningQuery] = {}
        self._lock = threading.Lock()
        self._errors: dict[str, HeadraceError] = {}

    def run(self) -> Mapping[str, HeadraceError]:
        """Run every flow to its end. Returns the error that each failed flow ended with."""
        threads = [threading.Thread(target=self._drive, args=(flow,), name=f"flow-{flow.name}") for flow in self._flows]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return dict(self._errors)

    def drain(self) -> None:
        """Let every batch under way commit, then stop all flows. Returns at once; `run` returns when it is done."""
        self._draining.set()
        with self._lock:
            running = list(self._running.values())
        for query in running:
            threading.Thread(target=query.drain, args=(self._patience,), daemon=True).start()

    def _drive(self, flow: Flow) -> None:
        checkpoint = Checkpoint.of(flow.name, self._target, file_store(self._target.checkpoints, self._application))
        try:
            with lease(checkpoint, self._target.lease) as holding, sole_writer(flow, self._target):
                self._run_until_done(flow, checkpoint, holding)
        except HeadraceError as error:
            self._errors[flow.name] = error
            self._bus.publish(FlowFailed(flow.name, error, retry_in=None))
        except Exception as error:
            self._errors[flow.name] = mapped(flow.name, error)
            self._bus.publish(FlowFailed(flow.name, self._errors[flow.name], retry_in=None))

    def _run_until_done(self, flow: Flow, checkpoint: Checkpoint, holding: Holding) -> None:
        failures = 0

        def hear(event: Event) -> None:
            nonlocal failures
            if isinstance(event, BatchCommitted):
                failures = 0
            self._bus.publish(event)

        while not self._draining.is_set():
            try:
                query = RunningQuery(
                    flow, self._target, checkpoint, holding, hear, clock=self._clock, memory_mb=self._memory_mb
                )
                self._run_once(flow, checkpoint, query)
            except Transient as error:
                failures += 1
                delay = self._backoff.delay(failures)
                if delay is None:
                    raise
                self._bus.publish(FlowFailed(flow.name, error, retry_in=delay))
                self._draining.wait(delay)
            else:
                break
        self._bus.publish(FlowStopped(flow.name))

    def _run_once(self, flow: Flow, checkpoint: Checkpoint, query: RunningQuery) -> None:
        if is_unbatched(flow):
            require_slots(self._application, self._target, self._flows)
        committed = checkpoint.committed()
        query.start(self._application)
        with self._lock:
            self._running[flow.name] = query
        try:
            self._bus.publish(FlowStarted(flow.name, checkpoint.query_id() or "", max(committed, default=None)))
            if self._draining.is_set():
                query.drain(self._patience)
            query.wait()
        finally:
            with self._lock:
                del self._running[flow.name]
