"""Runs the flows of an application until each has ended.

Each flow has its own thread, which holds the lease of the checkpoint. The end of the query decides what follows:

| the query ended with | then                                                          |
|----------------------|---------------------------------------------------------------|
| no error             | the flow has ended                                            |
| a transient error    | the flow restarts after a delay that doubles each time        |
| a terminal error     | the flow stays down; the others continue                      |
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from headrace.errors import HeadraceError, Transient
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.folder_lock import lock_sink_folders
from headrace.runtime.checkpoint.lease import ActiveLease, acquire_lease
from headrace.runtime.clock import Clock, now_ms
from headrace.runtime.continuous import is_continuous, require_task_slots
from headrace.runtime.error_mapping import map_error
from headrace.runtime.events import BatchCommitted, EventBus, FlowEvent, FlowFailed, FlowStarted, FlowStopped
from headrace.runtime.query import RunningQuery
from headrace.runtime.run import IdleTicks, Run
from headrace.runtime.state.memory import state_memory


@dataclass(frozen=True)
class Backoff:
    """The delays before a failed flow restarts.

    | field    | default | reason                                                                    |
    |----------|---------|---------------------------------------------------------------------------|
    | first    | 1 s     | a broker that restarts is back within seconds                             |
    | longest  | 60 s    | a person who repairs a part should not have to wait longer                |
    | attempts | None    | forever: an outage of a night should not need a person in the morning    |

    A committed batch counts as recovered: the next failure waits `first` again.
    """

    first: float = 1.0
    longest: float = 60.0
    attempts: int | None = None

    def delay(self, failures: int) -> float | None:
        """Return the delay after this many failures in a row, or None to give up."""
        if self.attempts is not None and failures > self.attempts:
            return None
        # Sixty doublings of any delay are longer than any outage, and a float overflows past a thousand.
        return min(self.longest, self.first * 2.0 ** min(failures - 1, 60))


class Supervisor:
    """Runs flows. Call `run` once from one thread; `drain` may be called from any thread.

    `idle_ticks` is needed if an input has an `idle_timeout`.
    """

    def __init__(
        self,
        application: SparkSession,
        target: Target,
        flows: Sequence[Flow],
        bus: EventBus,
        *,
        backoff: Backoff | None = None,
        drain_seconds: float = 60.0,
        clock: Clock = now_ms,
        idle_ticks: IdleTicks | None = None,
    ) -> None:
        self._application, self._target, self._flows, self._bus = application, target, flows, bus
        self._backoff = backoff or Backoff()
        self._drain_seconds, self._clock, self._idle_ticks = drain_seconds, clock, idle_ticks
        self._memory_mb = state_memory(flows, application)
        self._draining = threading.Event()
        self._running: dict[str, RunningQuery] = {}
        self._lock = threading.Lock()
        self._errors: dict[str, HeadraceError] = {}

    def run(self) -> Mapping[str, HeadraceError]:
        """Run every flow to its end. Returns the error that each failed flow ended with."""
        threads = [
            threading.Thread(target=self._supervise, args=(flow,), name=f"flow-{flow.name}") for flow in self._flows
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return dict(self._errors)

    def drain(self) -> None:
        """Commit the in-flight batches, then stop all flows. Returns immediately; `run` returns at the end."""
        self._draining.set()
        with self._lock:
            running = list(self._running.values())
        for query in running:
            threading.Thread(target=query.drain, args=(self._drain_seconds,), daemon=True).start()

    def _supervise(self, flow: Flow) -> None:
        checkpoint = Checkpoint.of(flow.name, self._target, self._application)
        try:
            with acquire_lease(checkpoint, self._target.lease) as lease, lock_sink_folders(flow, self._target):
                self._run_until_done(flow, checkpoint, lease)
        except Exception as error:
            self._errors[flow.name] = map_error(flow.name, error)
            self._bus.publish(FlowFailed(flow.name, self._errors[flow.name], retry_in=None))

    def _run_until_done(self, flow: Flow, checkpoint: Checkpoint, lease: ActiveLease) -> None:
        failures = 0

        def on_event(event: FlowEvent) -> None:
            nonlocal failures
            if isinstance(event, BatchCommitted):
                failures = 0
            self._bus.publish(event)

        run = Run(flow, self._target, checkpoint, lease, on_event, self._clock, self._memory_mb, self._idle_ticks)
        while not self._draining.is_set():
            try:
                self._run_once(flow, checkpoint, RunningQuery(run))
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
        if is_continuous(flow):
            require_task_slots(self._application, self._target, self._flows)
        committed = checkpoint.committed_batches()
        query.start(self._application)
        with self._lock:
            self._running[flow.name] = query
        try:
            self._bus.publish(FlowStarted(flow.name, checkpoint.query_id() or "", max(committed, default=None)))
            if self._draining.is_set():
                query.drain(self._drain_seconds)
            query.wait()
        finally:
            with self._lock:
                del self._running[flow.name]
