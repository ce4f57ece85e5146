"""Checks a flow against the compatibility matrix: sink, trigger and operators against the output mode."""

from collections.abc import Iterator

from headrace.flow.checks import matrix
from headrace.flow.checks.finding import Finding, Severity
from headrace.flow.checks.operators import Operator, OperatorKind, QueryPlan, UnknownPlan
from headrace.flow.flow import Flow
from headrace.flow.levers import Continuous, InMemory, Once, OutputMode, RealTime
from headrace.flow.sink import SupportsNativeWrite, leaf_sinks
from headrace.flow.source import CanLoseRows, SupportsContinuous

# Spark's own minimum length of a batch in real-time mode (spark.sql.streaming.realTimeMode.minBatchDuration).
MIN_BATCH_SECONDS = 5.0


def check_sink_mode(flow: Flow) -> Iterator[Finding]:
    """Find sinks that do not support the output mode, also within a fan-out."""
    for _step, sink in leaf_sinks(flow.sink):
        if flow.mode not in sink.output_modes:
            cell = matrix.sink_cell(type(sink).__name__, flow.mode, sink.output_modes)
            yield _finding(f"flow '{flow.name}', sink {sink.name}", cell)


def check_trigger(flow: Flow) -> Iterator[Finding]:
    """Find sources, sinks and settings that a trigger does not support; and the deprecated `Once`."""
    place = f"flow '{flow.name}', trigger {type(flow.trigger).__name__}"
    if isinstance(flow.trigger, Once):
        yield Finding(
            "HRC-207",
            place,
            "Once is the old name of AvailableNow, and does the same here: it reads everything available, in bounded "
            "batches. Spark's own `once` would read it in a single batch.",
            "Write AvailableNow().",
            severity=Severity.WARNING,
        )
    if not isinstance(flow.trigger, Continuous | RealTime):
        return
    findings = list(_check_source_and_sink(flow, place))
    yield from findings
    if findings:
        return
    if isinstance(flow.trigger, RealTime) and flow.mode is not OutputMode.UPDATE:
        yield Finding(
            "HRC-114",
            place,
            f"Real-time mode writes in update mode only, and the flow in {flow.mode} mode.",
            "Set output_mode='update': without state it emits the same rows.",
        )
    if isinstance(flow.trigger, Continuous) and flow.mode is OutputMode.COMPLETE:
        yield Finding(
            "HRC-114",
            place,
            "Continuous processing has no state, and complete mode writes a complete result.",
            "Set output_mode='append'.",
        )
    if isinstance(flow.trigger, RealTime) and flow.trigger.duration.seconds < MIN_BATCH_SECONDS:
        yield Finding(
            "HRC-115",
            place,
            f"A batch of {flow.trigger.batch} is shorter than Spark's least of {MIN_BATCH_SECONDS:.0f} seconds. "
            "Its length decides how often progress is committed, not how soon a row arrives.",
            "Set batch='1 minute'; rows still arrive within milliseconds.",
        )


def _check_source_and_sink(flow: Flow, place: str) -> Iterator[Finding]:
    """Find sources and sinks that support micro-batches only."""
    if not isinstance(flow.sink, SupportsNativeWrite):
        yield Finding(
            "HRC-108",
            place,
            f"{flow.sink.name} commits in micro-batches, and this trigger has none.",
            "Write to a KafkaSink, or use Every, AvailableNow or AsFastAsPossible.",
        )
    for name, input_ in flow.named_inputs.items():
        if not isinstance(input_.source, SupportsContinuous):
            yield Finding(
                "HRC-108",
                f"{place}, input '{name}'",
                f"{input_.source.name} is read in micro-batches, and this trigger has none.",
                "Read from Kafka, or use Every, AvailableNow or AsFastAsPossible.",
            )
        if isinstance(input_.source, CanLoseRows) and input_.source.data_loss_reason is not None:
            yield Finding(
                "HRC-108",
                f"{place}, input '{name}'",
                f"{input_.source.name} accepts loss, which is recorded batch by batch, and this trigger has none.",
                "Remove data_loss_reason, or use Every, AvailableNow or AsFastAsPossible.",
            )


def check_operators(flow: Flow, plan: QueryPlan | UnknownPlan) -> Iterator[Finding]:
    """Find operators that the output mode, trigger or state store does not support. Once per kind of operator."""
    place = f"flow '{flow.name}', transform {getattr(flow.transform, '__name__', flow.transform)!s}"
    if isinstance(plan, UnknownPlan):
        yield _unknown_plan_finding(place, plan)
        return
    has_error = False
    for operator, cell in matrix.cells_in_mode(plan.operators, flow.mode):
        has_error = has_error or cell.stops
        yield _finding(f"{place}, {_describe(operator)} in {flow.mode} mode", cell)
    if isinstance(flow.trigger, Continuous | RealTime):
        trigger = type(flow.trigger).__name__
        for operator, cell in matrix.cells_under_trigger(plan.operators, real_time=isinstance(flow.trigger, RealTime)):
            has_error = has_error or cell.stops
            yield _finding(f"{place}, {_describe(operator)} under {trigger}", cell)
    if isinstance(flow.state, InMemory) and any(
        operator.kind is OperatorKind.CUSTOM_STATE for operator in plan.operators
    ):
        yield Finding(
            "HRC-119",
            place,
            "transformWithState keeps its state in RocksDB, and the flow declares InMemory.",
            "Set state=RocksDB().",
        )
    if plan.unsupported_operation_message and not has_error:
        yield Finding(
            "HRC-117",
            place,
            f"Spark refuses the plan in {flow.mode} mode: {plan.unsupported_operation_message.rstrip('.')}.",
            "Change the transform or the output mode.",
        )


def check_task_slots(flow: Flow, needed: int, free: int) -> Iterator[Finding]:
    """Find a trigger that needs more task slots than are free: one per partition that the flow reads."""
    if isinstance(flow.trigger, Continuous | RealTime) and needed > free:
        yield Finding(
            "HRC-116",
            f"flow '{flow.name}', trigger {type(flow.trigger).__name__}",
            f"Each of the {needed} partitions that the flow reads occupies a task slot while it runs, and there "
            f"{'is' if free == 1 else 'are'} {free} free, apart from the one for everything else. Records of the other "
            "partitions would not be read.",
            f"Give the target {needed + 1} cores or more, for instance master: local[{needed + 1}], or use Every.",
        )


def _unknown_plan_finding(place: str, plan: UnknownPlan) -> Finding:
    why = plan.why.rstrip(".")
    if plan.is_transform_error:
        remedy = "Correct the transform, or the schema of the Input."
        return Finding("HRC-118", place, f"The transform cannot be planned: {why}.", remedy)
    reason = f"The plan could not be checked, so its operators are unknown. {why}."
    remedy = "Run the check where its sources can be reached; every start checks the plan too."
    return Finding("HRC-209", place, reason, remedy, severity=Severity.INFO)


def _finding(place: str, cell: matrix.Cell) -> Finding:
    severity = Severity.ERROR if cell.stops else Severity.WARNING
    return Finding(cell.code, place, cell.reason, cell.remedy, severity=severity)


def _describe(operator: Operator) -> str:
    return f"{operator.kind} ({operator.detail})" if operator.kind is OperatorKind.OTHER else str(operator.kind)
