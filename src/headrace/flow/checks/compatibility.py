"""Findings by the matrix: a flow's sink, trigger and operators against its output mode, and against each other."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.flow.checks import matrix
from headrace.flow.checks.finding import Finding, Severity
from headrace.flow.checks.operators import Kind, Operator, Plan, Unplanned
from headrace.flow.flow import Flow
from headrace.flow.levers import Continuous, InMemory, Once, OutputMode, RealTime
from headrace.flow.sink import Native, leaves
from headrace.flow.source import Unbatched, Watched

# Spark's own least length of a batch in real-time mode (spark.sql.streaming.realTimeMode.minBatchDuration).
SHORTEST_BATCH_SECONDS = 5.0


def sink_mode(flow: Flow) -> Iterator[Finding]:
    """Find a sink that cannot take the output mode; of a fan-out each one that cannot."""
    for _step, sink in leaves(flow.sink):
        if flow.mode not in sink.output_modes:
            cell = matrix.of_sink(type(sink).__name__, flow.mode, sink.output_modes)
            yield Finding("HRC-104", Severity.ERROR, f"flow '{flow.name}', sink {sink.name}", cell.reason, cell.remedy)


def trigger(flow: Flow) -> Iterator[Finding]:
    """Find what a trigger without batches cannot read, write or be told; and the old name of a trigger."""
    place = f"flow '{flow.name}', trigger {type(flow.trigger).__name__}"
    if isinstance(flow.trigger, Once):
        yield Finding(
            "HRC-207",
            Severity.WARNING,
            place,
            "Once is the old name of AvailableNow, and does the same here: it reads all that is there, in bounded "
            "batches. Spark's own `once` would read it in a single one.",
            "Write AvailableNow().",
        )
    if not isinstance(flow.trigger, Continuous | RealTime):
        return
    found = list(_ends(flow, place))
    yield from found
    if found:
        return
    if isinstance(flow.trigger, RealTime) and flow.mode is not OutputMode.UPDATE:
        yield Finding(
            "HRC-114",
            Severity.ERROR,
            place,
            f"Real-time mode writes in update mode only, and the flow in {flow.mode} mode.",
            "Set output_mode='update': without state it hands on the same rows.",
        )
    if isinstance(flow.trigger, Continuous) and flow.mode is OutputMode.COMPLETE:
        yield Finding(
            "HRC-114",
            Severity.ERROR,
            place,
            "Continuous processing keeps nothing, and complete mode hands a whole result on.",
            "Set output_mode='append'.",
        )
    if isinstance(flow.trigger, RealTime) and flow.trigger.duration.seconds < SHORTEST_BATCH_SECONDS:
        yield Finding(
            "HRC-115",
            Severity.ERROR,
            place,
            f"A batch of {flow.trigger.batch} is shorter than Spark's least of {SHORTEST_BATCH_SECONDS:.0f} seconds. "
            "Its length decides how often progress is noted down, not how soon a row arrives.",
            "Set batch='1 minute'; rows pass in milliseconds all the same.",
        )


def _ends(flow: Flow, place: str) -> Iterator[Finding]:
    """Find a sink or a source that knows batches only."""
    if not isinstance(flow.sink, Native):
        yield Finding(
            "HRC-108",
            Severity.ERROR,
            place,
            f"{flow.sink.name} commits in micro-batches, and this trigger has none.",
            "Write to a KafkaSink, or use Every, AvailableNow or AsFastAsPossible.",
        )
    for name, given in flow.named_inputs.items():
        if not isinstance(given.source, Unbatched):
            yield Finding(
                "HRC-108",
                Severity.ERROR,
                f"{place}, input '{name}'",
                f"{given.source.name} is read in micro-batches, and this trigger has none.",
                "Read from Kafka, or use Every, AvailableNow or AsFastAsPossible.",
            )
        if isinstance(given.source, Watched) and given.source.data_loss_reason is not None:
            yield Finding(
                "HRC-108",
                Severity.ERROR,
                f"{place}, input '{name}'",
                f"{given.source.name} accepts loss, which is recorded batch by batch, and this trigger has none.",
                "Remove data_loss_reason, or use Every, AvailableNow or AsFastAsPossible.",
            )


def operators(flow: Flow, plan: Plan | Unplanned) -> Iterator[Finding]:
    """Find what the operators of a flow rule out. Once per kind of operator, however often it occurs."""
    place = f"flow '{flow.name}', transform {getattr(flow.transform, '__name__', flow.transform)!s}"
    if isinstance(plan, Unplanned):
        yield from _unplanned(place, plan)
        return
    stopped = False
    for operator, cell in matrix.in_mode(plan.operators, flow.mode):
        stopped = stopped or cell.stops
        yield _finding(f"{place}, {_told(operator)} in {flow.mode} mode", cell)
    if isinstance(flow.trigger, Continuous | RealTime):
        named = type(flow.trigger).__name__
        for operator, cell in matrix.under_trigger(plan.operators, real_time=isinstance(flow.trigger, RealTime)):
            stopped = stopped or cell.stops
            yield _finding(f"{place}, {_told(operator)} under {named}", cell)
    if isinstance(flow.state, InMemory) and any(each.kind is Kind.CUSTOM_STATE for each in plan.operators):
        yield Finding(
            "HRC-119",
            Severity.ERROR,
            place,
            "transformWithState keeps its state in RocksDB, and the flow declares InMemory.",
            "Set state=RocksDB().",
        )
    if plan.spark_refuses and not stopped:
        yield Finding(
            "HRC-117",
            Severity.ERROR,
            place,
            f"Spark refuses the plan in {flow.mode} mode: {plan.spark_refuses.rstrip('.')}.",
            "Change the transform or the output mode.",
        )


def slots(flow: Flow, needed: int, free: int) -> Iterator[Finding]:
    """Find a trigger that needs more task slots than there are, one for each partition that the flow reads."""
    if isinstance(flow.trigger, Continuous | RealTime) and needed > free:
        yield Finding(
            "HRC-116",
            Severity.ERROR,
            f"flow '{flow.name}', trigger {type(flow.trigger).__name__}",
            f"Each of the {needed} partitions that the flow reads holds a task slot for as long as it runs, and there "
            f"{'is' if free == 1 else 'are'} {free} beside the one for everything else. Records of the others would "
            "wait unseen.",
            f"Give the target {needed + 1} cores or more, for instance master: local[{needed + 1}], or use Every.",
        )


def _unplanned(place: str, plan: Unplanned) -> Iterator[Finding]:
    if plan.wrong:
        yield Finding(
            "HRC-118",
            Severity.ERROR,
            place,
            f"The transform cannot be planned: {plan.why.rstrip('.')}.",
            "Correct the transform, or the schema of the Input.",
        )
    else:
        yield Finding(
            "HRC-209",
            Severity.INFO,
            place,
            f"The plan was not looked at, so nothing is said of its operators. {plan.why.rstrip('.')}.",
            "Run the check where its sources can be reached; every start looks at the plan too.",
        )


def _finding(place: str, cell: matrix.Cell) -> Finding:
    severity = Severity.ERROR if cell.stops else Severity.WARNING
    return Finding(cell.code, severity, place, cell.reason, cell.remedy)


def _told(operator: Operator) -> str:
    return f"{operator.kind} ({operator.detail})" if operator.kind is Kind.OTHER else str(operator.kind)
