"""Run flows: every check first, then the application, then what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.audit.auditor import Auditor
from headrace.audit.flow_audit import Tally
from headrace.audit.late import Unexplained
from headrace.audit.throughput import Throughput
from headrace.clients.storage import FileStore, file_store, is_local
from headrace.errors import HeadraceError
from headrace.flow.checks.check import require_no_errors
from headrace.flow.flow import SINGLE_INPUT, Flow
from headrace.flow.levers import AvailableNow, Continuous
from headrace.flow.source import ValidatesStart
from headrace.flow.target import Target
from headrace.operate.preflight.batch_size import fitted_flows
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.lost_offsets import LostRange
from headrace.runtime.clock import Clock, now_ms
from headrace.runtime.events import BatchCommitted, BatchSizeChosen, Event, EventBus, OffsetsLost, RowsQuarantined
from headrace.runtime.session import open_session
from headrace.runtime.state.size import OperatorState, count_removed_rows
from headrace.runtime.supervisor import Backoff, Supervisor
from headrace.sinks.local_folder import require_writable
from headrace.stack.jars import JarCache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Among the reasons of bad rows: those that were left out and counted, and whose source cannot be read again.
NOT_FILED = "not filed"
# Before every watermark.
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass
class FlowFigures:
    """What one flow did in one run. `state` is what its operators kept after the last batch.

    `watermarks` are those of its inputs, by their newest rows of this run, and `watermark` the one in force. It is that
    of the input that is furthest behind, which `held_back_by` names where there are several. `delays` are the declared
    ones; an input that has one and no row in this run has no watermark, and holds all others back.

    `rules` counts the rows that broke each rule, whatever it did with them; with several inputs it is `INPUT.RULE`.
    """

    rows_in: int = 0
    rows_out: int = 0
    batches: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    rules: dict[str, int] = field(default_factory=dict)
    late: int = 0
    late_unexplained: list[Unexplained] = field(default_factory=list)
    set_aside: int = 0
    lost: list[LostRange] = field(default_factory=list)
    state: Sequence[OperatorState] = ()
    evicted: int = 0
    watermark: str | None = None
    watermarks: dict[str, datetime] = field(default_factory=dict)
    error: HeadraceError | None = None
    delays: Mapping[str, timedelta] = field(default_factory=dict)

    @property
    def held_back_by(self) -> str | None:
        """The input whose watermark is the lowest, of several: one without a row in this run, or the oldest."""
        if len(self.delays) < 2 or not self.watermarks:
            return None
        return min(self.delays, key=lambda name: self.watermarks.get(name, _NEVER))

    def as_dict(self) -> dict[str, object]:
        """The figures as `--json` prints them."""
        return {
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "batches": self.batches,
            "bad": dict(self.bad),
            "rules": dict(self.rules),
            "late": self.late,
            "late_unexplained": [each.as_dict() for each in self.late_unexplained],
            "set_aside": self.set_aside,
            "lost": [each.as_dict() for each in self.lost],
            "state": [each.as_dict() for each in self.state],
            "evicted": self.evicted,
            "watermark": self.watermark,
            "watermarks": {name: each.isoformat() for name, each in self.watermarks.items()},
            "held_back_by": self.held_back_by,
            "error": self.error.as_dict() if self.error else None,
        }


def until_done_of(flow: Flow) -> Flow:
    """Return the flow as it reads what is there now, and ends.

    Every trigger becomes AvailableNow, but for Continuous: Spark's batches cannot go on from its checkpoint, so such a
    flow runs as it is until it has sent what was there when it started.
    """
    if isinstance(flow.trigger, Continuous):
        return replace(flow, trigger=replace(flow.trigger, until_done=True))
    return replace(flow, trigger=AvailableNow())


def preflight(flows: Sequence[Flow], target: Target) -> None:
    """Raise on the first thing that would stop a flow, before Spark is started and anything is written."""
    require_no_errors(flows)
    require_writable(target.checkpoints)
    require_writable(target.lake)
    for flow in flows:
        for given in flow.named_inputs.values():
            given.source.preflight(target)
        flow.sink.preflight(target)
    if is_local(target.checkpoints):
        require_starts(flows, target, file_store(target.checkpoints))


def require_starts(flows: Sequence[Flow], target: Target, checkpoints: FileStore) -> None:
    """Raise for a flow without a checkpoint that cannot begin where its sources say; the others go on anyway."""
    for flow in flows:
        if not Checkpoint.of(flow.name, target, checkpoints).planned_batches():
            for given in flow.named_inputs.values():
                if isinstance(given.source, ValidatesStart):
                    given.source.require_start(target)


class Application:
    """Flows on one Spark session, from start to end. Make it, `run` it once; `drain` from any thread ends it."""

    def __init__(
        self,
        spark: SparkSession,
        target: Target,
        flows: Sequence[Flow],
        *,
        backoff: Backoff | None = None,
        clock: Clock = now_ms,
    ) -> None:
        self.bus = EventBus()
        flows, self._fitted = fitted_flows(flows, target, spark)
        self._figures = {flow.name: FlowFigures(delays=_delays(flow)) for flow in flows}
        self._counted = dict.fromkeys(self._figures, 0)
        self._auditor = Auditor(spark, target, flows, self.bus)
        self._throughput = Throughput(spark, target, flows, self.bus)
        self._supervisor = Supervisor(spark, target, flows, self.bus, backoff=backoff, clock=clock)
        self.bus.subscribe(self._count)

    def run(self) -> Mapping[str, FlowFigures]:
        """Run every flow to its end, file what is bad or late, and return the figures."""
        for (flow, name), bound in self._fitted.items():
            self.bus.publish(BatchSizeChosen(flow, name, bound))
        try:
            errors = self._supervisor.run()
        finally:
            self._throughput.close()
            tallies = self._auditor.close()
        for name, figures in self._figures.items():
            _add(figures, tallies[name], self._counted[name])
            figures.error = errors.get(name) or tallies[name].error
        return self._figures

    def drain(self) -> None:
        """Let every batch under way commit, then stop. Returns at once."""
        self._supervisor.drain()

    def _count(self, event: Event) -> None:
        if isinstance(event, BatchCommitted):
            figures = self._figures[event.flow]
            figures.rows_in += event.rows_in
            figures.rows_out += event.rows_out
            figures.batches += 1
            figures.evicted += count_removed_rows(figures.state, event.state)
            figures.state = event.state
            figures.watermark = event.watermark or figures.watermark
            for name, delay in figures.delays.items():
                if name in event.newest_event_times:
                    reached = event.newest_event_times[name] - delay
                    figures.watermarks[name] = max(reached, figures.watermarks.get(name, reached))
            self._counted[event.flow] += sum(event.invalid.values())
            for given, broken in event.violations.items():
                for rule, rows in broken.items():
                    name = rule if given == SINGLE_INPUT else f"{given}.{rule}"
                    figures.rules[name] = figures.rules.get(name, 0) + rows
        elif isinstance(event, RowsQuarantined):
            self._figures[event.flow].set_aside += event.dead_letters.rows
        elif isinstance(event, OffsetsLost):
            self._figures[event.flow].lost.extend(event.lost)


def open_application(
    flows: Sequence[Flow],
    target: Target,
    *,
    log: Path | None = None,
    backoff: Backoff | None = None,
    on_step: Callable[[str], None] = lambda _step: None,
) -> tuple[Application, SparkSession]:
    """Check everything, start Spark, and return the application, ready to run, with its session."""
    on_step("checking the flows")
    preflight(flows, target)
    jars = JarCache().verify("spark")
    on_step("starting Spark")
    spark = open_session(target, jars, log=log)
    if not is_local(target.checkpoints):
        # Only now can the checkpoints be looked at.
        require_starts(flows, target, file_store(target.checkpoints, spark))
    return Application(spark, target, flows, backoff=backoff), spark


def _delays(flow: Flow) -> dict[str, timedelta]:
    declared = {name: given.watermark for name, given in flow.named_inputs.items()}
    return {name: timedelta(milliseconds=each.duration.ms) for name, each in declared.items() if each is not None}


def _add(figures: FlowFigures, tally: Tally, counted: int) -> None:
    """Add what was filed; bad rows that were counted and could not be filed stand among them as such."""
    missing = counted - sum(tally.bad.values())
    figures.bad = tally.bad | ({NOT_FILED: missing} if missing > 0 else {})
    figures.late = tally.late
    figures.late_unexplained = tally.unexplained
    figures.lost.extend(tally.unaudited)
