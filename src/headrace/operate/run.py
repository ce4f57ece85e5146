"""Run flows: check everything, run the application, and return its figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.audit.auditor import Auditor
from headrace.audit.flow_audit import AuditCounts, FlowAudit
from headrace.audit.late import UnrecordedDrop
from headrace.audit.throughput import Throughput
from headrace.clients.storage import is_local
from headrace.errors import HeadraceError
from headrace.flow.checks.check import require_no_errors
from headrace.flow.flow import SINGLE_INPUT, Flow
from headrace.flow.levers import AvailableNow, Continuous
from headrace.flow.source import ValidatesStart
from headrace.flow.target import Target
from headrace.operate.preflight.batch_size import size_batches
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.lost_offsets import LostRange
from headrace.runtime.clock import Clock, now_ms
from headrace.runtime.error_mapping import map_error
from headrace.runtime.events import BatchCommitted, BatchSizeChosen, EventBus, FlowEvent, OffsetsLost, RowsQuarantined
from headrace.runtime.session import flow_session, open_session
from headrace.runtime.state.size import OperatorState, count_removed_rows
from headrace.runtime.supervisor import Backoff, Supervisor
from headrace.sinks.local_folder import require_writable
from headrace.sources.idle_ticks import idle_ticks
from headrace.stack.jars import JarCache

# The reason of invalid rows that were counted, but not recorded since their source cannot be read again.
NOT_RECORDED = "not recorded"
# Earlier than every watermark.
_EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass
class FlowMetrics:
    """What a flow did in a run. `state` is the state of its operators after the last batch.

    `watermarks` are those of its inputs, from their newest rows of this run, and `watermark` is the effective one: that
    of the slowest input, which `slowest_input` names if there are several. `delays` are the declared ones; an input
    with a delay and no row in this run has no watermark, and holds all others back.

    `rules` counts the rows that violated each rule, whatever its action; with several inputs a key is `INPUT.RULE`.
    """

    rows_in: int = 0
    rows_out: int = 0
    batches: int = 0
    invalid: dict[str, int] = field(default_factory=dict)
    rules: dict[str, int] = field(default_factory=dict)
    late: int = 0
    late_unexplained: list[UnrecordedDrop] = field(default_factory=list)
    set_aside: int = 0
    lost: list[LostRange] = field(default_factory=list)
    state: Sequence[OperatorState] = ()
    evicted: int = 0
    watermark: str | None = None
    watermarks: dict[str, datetime] = field(default_factory=dict)
    error: HeadraceError | None = None
    delays: Mapping[str, timedelta] = field(default_factory=dict)

    @property
    def slowest_input(self) -> str | None:
        """The input with the lowest watermark, if there are several: one without a row in this run, or the oldest."""
        if len(self.delays) < 2 or not self.watermarks:
            return None
        return min(self.delays, key=lambda name: self.watermarks.get(name, _EARLIEST))

    def as_dict(self) -> dict[str, object]:
        """The figures as `--json` prints them."""
        figures = {name: value for name, value in vars(self).items() if name != "delays"}
        return figures | {
            "late_unexplained": [asdict(drop) for drop in self.late_unexplained],
            "lost": [asdict(range_) for range_ in self.lost],
            "state": [asdict(operator) for operator in self.state],
            "watermarks": {name: time.isoformat() for name, time in self.watermarks.items()},
            "slowest_input": self.slowest_input,
            "error": self.error.as_dict() if self.error else None,
        }


def as_available_now(flow: Flow) -> Flow:
    """Return the flow in a form that processes the available rows and ends.

    Every trigger becomes AvailableNow, except Continuous: micro-batches cannot continue from its checkpoint, so such a
    flow runs unchanged until it has sent what was available when it started.
    """
    if isinstance(flow.trigger, Continuous):
        return replace(flow, trigger=replace(flow.trigger, until_done=True))
    return replace(flow, trigger=AvailableNow())


def preflight(flows: Sequence[Flow], target: Target) -> None:
    """Raise on the first problem that would stop a flow, before Spark starts and anything is written."""
    require_no_errors(flows)
    require_writable(target.checkpoints)
    require_writable(target.lake)
    for flow in flows:
        for input_ in flow.named_inputs.values():
            input_.source.preflight(target)
        flow.sink.preflight(target)
    if is_local(target.checkpoints):
        require_valid_start_offsets(flows, target)


def require_valid_start_offsets(flows: Sequence[Flow], target: Target, spark: SparkSession | None = None) -> None:
    """Raise for a new flow whose sources cannot start where declared; others continue from their checkpoint."""
    for flow in flows:
        if not Checkpoint.of(flow.name, target, spark).planned_batches():
            for input_ in flow.named_inputs.values():
                if isinstance(input_.source, ValidatesStart):
                    input_.source.require_start(target)


class Application:
    """Runs flows on a Spark session. Call `run` once; `drain`, from any thread, ends it."""

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
        flows, self._batch_sizes = size_batches(flows, target, spark)
        self._figures = {flow.name: FlowMetrics(delays=_delays(flow)) for flow in flows}
        self._invalid_rows_counted = dict.fromkeys(self._figures, 0)
        audits = {flow.name: FlowAudit(flow_session(spark, flow), target, flow) for flow in flows}
        self._auditor = Auditor(audits, self.bus, map_error)
        self._throughput = Throughput(spark, target, flows, self.bus)
        self._supervisor = Supervisor(
            spark, target, flows, self.bus, backoff=backoff, clock=clock, idle_ticks=idle_ticks
        )
        self.bus.subscribe(self._on_event)

    def run(self) -> Mapping[str, FlowMetrics]:
        """Run every flow to its end, record invalid and late rows, and return the figures."""
        for (flow, name), bound in self._batch_sizes.items():
            self.bus.publish(BatchSizeChosen(flow, name, bound))
        try:
            errors = self._supervisor.run()
        finally:
            self._throughput.close()
            tallies = self._auditor.close()
        for name, figures in self._figures.items():
            _add_audit(figures, tallies[name], self._invalid_rows_counted[name])
            figures.error = errors.get(name) or tallies[name].error
        return self._figures

    def drain(self) -> None:
        """Stop after the in-flight batches have committed. Returns immediately."""
        self._supervisor.drain()

    def _on_event(self, event: FlowEvent) -> None:
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
                    watermark = event.newest_event_times[name] - delay
                    figures.watermarks[name] = max(watermark, figures.watermarks.get(name, watermark))
            self._invalid_rows_counted[event.flow] += sum(event.invalid.values())
            for input_name, broken in event.violations.items():
                for rule, rows in broken.items():
                    name = rule if input_name == SINGLE_INPUT else f"{input_name}.{rule}"
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
        # Remote checkpoints can be read only with Spark.
        require_valid_start_offsets(flows, target, spark)
    return Application(spark, target, flows, backoff=backoff), spark


def _delays(flow: Flow) -> dict[str, timedelta]:
    declared = {name: input_.watermark for name, input_ in flow.named_inputs.items()}
    return {
        name: timedelta(milliseconds=watermark.duration.ms)
        for name, watermark in declared.items()
        if watermark is not None
    }


def _add_audit(figures: FlowMetrics, counts: AuditCounts, counted: int) -> None:
    """Add what the audit recorded; invalid rows that were counted and not recorded get the reason NOT_RECORDED."""
    missing = counted - sum(counts.invalid.values())
    figures.invalid = counts.invalid | ({NOT_RECORDED: missing} if missing > 0 else {})
    figures.late = counts.late
    figures.late_unexplained = counts.unexplained
    figures.lost.extend(counts.unaudited)
