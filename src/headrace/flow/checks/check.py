"""Checks flows before they run, without Spark, and returns findings.

A check looks at one flow, or at all flows of an application, and yields findings with stable codes. Findings about
operators need the query plan of the transform; they, and all that `matrix` decides, come from `compatibility`.

| code    | severity | finds                                                             |
|---------|----------|-------------------------------------------------------------------|
| HRC-101 | error    | a name that cannot be a folder                                    |
| HRC-102 | error    | two flows of one name: they would share a checkpoint              |
| HRC-103 | error    | a flow without inputs                                             |
| HRC-104 | error    | a sink that does not support the output mode                      |
| HRC-105 | error    | a payload without a schema, or a schema without a payload         |
| HRC-106 | error    | a watermark on a column that is missing or not a timestamp        |
| HRC-107 | error    | a transform whose parameters are not the inputs                   |
| HRC-108 | error    | a trigger that the sink or the inputs cannot serve                |
| HRC-109 | error    | a flow that reads the topic it writes                             |
| HRC-110 | error    | a source without a bound for a batch                              |
| HRC-111 | error    | an operator that Spark refuses in the output mode                 |
| HRC-112 | error    | an operator that Spark takes in the output mode and does wrong    |
| HRC-113 | error    | an operator that continuous or real-time processing cannot do     |
| HRC-114 | error    | an output mode that the trigger does not know                     |
| HRC-115 | error    | a batch of real-time mode that is too short                       |
| HRC-116 | error    | fewer task slots than a trigger without batches needs             |
| HRC-117 | error    | a plan that Spark refuses for a reason of its own                 |
| HRC-118 | error    | a transform that cannot be planned                                |
| HRC-119 | error    | custom state without RocksDB                                      |
| HRC-124 | error    | a metadata column that does not exist, or is a payload field too  |
| HRC-201 | warning  | update or append with state but no watermark: state grows forever |
| HRC-202 | warning  | a watermark column that may be null                               |
| HRC-203 | warning  | several inputs, one of them without a watermark                   |
| HRC-204 | warning  | a bound below the arrival rate                                    |
| HRC-205 | warning  | complete mode, which keeps every group forever                    |
| HRC-206 | warning  | an operator that behaves differently in micro-batches             |
| HRC-207 | warning  | a trigger under its old name                                      |
| HRC-208 | warning  | deduplication or joins whose state never expires                  |
| HRC-209 | info     | a plan that could not be checked                                  |
| HRC-301 | info     | a sink that may write rows twice after a crash                    |

Checks of state and watermarks are in `state`.
"""

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from headrace.errors import FlowError
from headrace.flow.checks import compatibility
from headrace.flow.checks.backpressure import MeasuredRates, suggest_bound, suggest_larger_bound
from headrace.flow.checks.finding import Finding, Severity
from headrace.flow.checks.operators import QueryPlan, UnknownPlan
from headrace.flow.checks.state import check_join_growth, check_shared_memory, check_state
from headrace.flow.flow import SINGLE_INPUT, Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.inputs import BROKER_TIMESTAMP, METADATA_COLUMNS
from headrace.flow.levers import Continuous, OutputMode, RealTime
from headrace.flow.sink import WritesTopic, leaf_sinks
from headrace.flow.source import Bounded, ReadsTopics

FLOW_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def check(
    flows: Iterable[Flow],
    measured: Mapping[tuple[str, str], MeasuredRates] | None = None,
    plans: Mapping[str, QueryPlan | UnknownPlan] | None = None,
) -> list[Finding]:
    """Check flows that run in one application. Errors come first.

    `measured` holds measured rates by flow and input, which bounds are compared with.
    `plans` holds the query plan by flow; without it the operators of a flow are not checked.
    """
    flows = list(flows)
    findings = [*_shared_names(flows), *check_shared_memory(flows)]
    for flow in flows:
        findings.extend(_backpressure(flow, measured or {}))
        findings.extend(check_state(flow, measured or {}))
    for flow in flows:
        for check_flow in _CHECKS:
            findings.extend(check_flow(flow))
        plan = (plans or {}).get(flow.name)
        if plan is not None:
            findings.extend(compatibility.check_operators(flow, plan))
            findings.extend(check_join_growth(flow, plan, measured or {}))
        if not isinstance(plan, QueryPlan):
            findings.extend(_unbounded_state(flow))
    return sort_by_severity(findings)


def sort_by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with errors first and infos last."""
    return sorted(findings, key=lambda finding: list(Severity).index(finding.severity))


def require_no_errors(flows: Sequence[Flow]) -> list[Finding]:
    """Return the findings, or raise when one of them is an error. Called once per run, before Spark starts."""
    return raise_on_errors(check(flows))


def raise_on_errors(findings: list[Finding]) -> list[Finding]:
    """Return the findings, or raise when one of them is an error."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        first = errors[0]
        more = f" Errors besides this one: {len(errors) - 1}." if len(errors) > 1 else ""
        raise FlowError(
            f"{first.place}: {first.reason}",
            why=f"The check {first.code} stops a flow that could not run.{more}",
            state="Nothing was started and nothing was written.",
            remedy=f"{first.remedy} `headrace check` lists every finding.",
            code="HR-203",
        )
    return findings


def _shared_names(flows: Sequence[Flow]) -> Iterator[Finding]:
    for name, times in Counter(flow.name for flow in flows).items():
        if times > 1:
            yield Finding(
                "HRC-102",
                Severity.ERROR,
                f"flow '{name}'",
                f"{times} flows have this name, and so would share one checkpoint.",
                "Give each flow a unique name.",
            )


def _name(flow: Flow) -> Iterator[Finding]:
    if not FLOW_NAME.fullmatch(flow.name):
        yield Finding(
            "HRC-101",
            Severity.ERROR,
            f"flow '{flow.name}'",
            "The name becomes a folder, so it may hold only a-z, 0-9, _ and -, and begins with a letter.",
            "Rename the flow.",
        )


def _inputs(flow: Flow) -> Iterator[Finding]:
    if not flow.named_inputs:
        yield Finding("HRC-103", Severity.ERROR, f"flow '{flow.name}'", "The flow has no inputs.", "Declare an Input.")
    for name, input_ in flow.named_inputs.items():
        place = f"flow '{flow.name}', input '{name}'"
        if input_.source.carries_payload and input_.schema is None:
            yield Finding(
                "HRC-105",
                Severity.ERROR,
                place,
                f"{input_.source.name} delivers bytes, and no schema says what is in them.",
                "Set schema= on the Input.",
            )
        if not input_.source.carries_payload and input_.schema is not None:
            yield Finding(
                "HRC-105",
                Severity.ERROR,
                place,
                f"{input_.source.name} has a schema of its own, so a schema for its payload has no meaning.",
                "Remove schema= from the Input.",
            )
        fields = () if input_.schema is None else input_.schema.names
        invalid = [
            column
            for column in input_.metadata_columns
            if column not in METADATA_COLUMNS or not fields or column in fields
        ]
        if invalid:
            yield Finding(
                "HRC-124",
                Severity.ERROR,
                place,
                f"metadata_columns= names {', '.join(invalid)}: not a metadata column of the source, or also a payload "
                "field.",
                f"Name some of {', '.join(METADATA_COLUMNS)}, but no field of the schema.",
            )


def _backpressure(flow: Flow, measured: Mapping[tuple[str, str], MeasuredRates]) -> Iterator[Finding]:
    for name, input_ in flow.named_inputs.items():
        # Without batches there is nothing to bound.
        if not isinstance(input_.source, Bounded) or isinstance(flow.trigger, Continuous | RealTime):
            continue
        place = f"flow '{flow.name}', input '{name}'"
        bounds, rates = input_.source.bounds, measured.get((flow.name, name), MeasuredRates())
        if all(bound.value is None for bound in bounds):
            first = suggest_bound(bounds, rates, flow.trigger)
            yield Finding(
                "HRC-110",
                Severity.ERROR,
                place,
                f"Backpressure is required: {input_.source.name} has no bound, so the first batch would read all "
                "available rows at once.",
                f"Set {first.bound.name}={first.value:_}. {first.reason}",
            )
        larger = suggest_larger_bound(bounds, rates, flow.trigger)
        if larger is not None:
            yield Finding(
                "HRC-204",
                Severity.WARNING,
                place,
                f"{larger.bound.name} lets {larger.bound.value:,} {larger.bound.unit} through per batch. "
                f"{larger.reason} The flow can never keep up.",
                f"Set {larger.bound.name}={larger.value:_}, or a shorter interval of the trigger.",
            )


def _watermark_column(flow: Flow) -> Iterator[Finding]:
    for name, input_ in flow.named_inputs.items():
        if input_.watermark is None or input_.schema is None:
            continue
        place = f"flow '{flow.name}', input '{name}'"
        column = input_.watermark.column
        # The broker's timestamp, if the input has it, is never missing.
        if column == BROKER_TIMESTAMP and column in input_.metadata_columns:
            continue
        fields = {field.name: field for field in input_.schema.fields}
        if column not in fields or fields[column].dataType.typeName() != "timestamp":
            actual = fields[column].dataType.simpleString() if column in fields else "not in the schema"
            yield Finding(
                "HRC-106",
                Severity.ERROR,
                place,
                f"The watermark is on '{column}', which is {actual}; it has to be a timestamp.",
                "Name a timestamp column of the schema.",
            )
        elif fields[column].nullable:
            yield Finding(
                "HRC-202",
                Severity.WARNING,
                place,
                f"'{column}' may be null: such a row never becomes late and never closes a window.",
                f"Declare '{column}' as not nullable, so that rows without it are quarantined.",
            )


def _transform_parameters(flow: Flow) -> Iterator[Finding]:
    parameters = [
        parameter
        for parameter in inspect.signature(flow.transform).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    names = {parameter.name for parameter in parameters}
    is_single = set(flow.named_inputs) == {SINGLE_INPUT}
    if (is_single and len(parameters) != 1) or (not is_single and names != set(flow.named_inputs)):
        inputs = "one DataFrame" if is_single else ", ".join(sorted(flow.named_inputs))
        yield Finding(
            "HRC-107",
            Severity.ERROR,
            f"flow '{flow.name}', transform {getattr(flow.transform, '__name__', flow.transform)!s}",
            f"It takes ({', '.join(sorted(names))}), and the inputs give {inputs}.",
            "Name the parameters of the transform as the inputs are named.",
        )


def _own_topic(flow: Flow) -> Iterator[Finding]:
    for _step, sink in leaf_sinks(flow.sink):
        for name, input_ in flow.named_inputs.items():
            if (
                isinstance(sink, WritesTopic)
                and isinstance(input_.source, ReadsTopics)
                and input_.source.reads(sink.written_topic())
            ):
                yield Finding(
                    "HRC-109",
                    Severity.ERROR,
                    f"flow '{flow.name}', input '{name}'",
                    f"{input_.source.name} takes in '{sink.written_topic()}', which the flow writes: an endless loop.",
                    "Write to another topic, or read topics that do not include it.",
                )


def _unbounded_state(flow: Flow) -> Iterator[Finding]:
    """Find state that probably never expires, for a flow without a query plan."""
    has_watermark = any(input_.watermark is not None for input_ in flow.named_inputs.values())
    if not has_watermark and flow.mode is OutputMode.UPDATE and not isinstance(flow.trigger, Continuous | RealTime):
        yield Finding(
            "HRC-201",
            Severity.WARNING,
            f"flow '{flow.name}'",
            "Update mode without a watermark keeps every key forever.",
            "Set watermark= on the Input.",
        )


def _watermark_missing(flow: Flow) -> Iterator[Finding]:
    watermarked = [name for name, input_ in flow.named_inputs.items() if input_.watermark is not None]
    unmarked = [name for name in flow.named_inputs if name not in watermarked]
    if watermarked and unmarked:
        yield Finding(
            "HRC-203",
            Severity.WARNING,
            f"flow '{flow.name}'",
            f"Inputs without a watermark ({', '.join(unmarked)}) are joined with state that never ends.",
            "Set watermark= on each Input.",
        )


def _guarantee(flow: Flow) -> Iterator[Finding]:
    for _step, sink in leaf_sinks(flow.sink):
        if sink.guarantee is Guarantee.EXACTLY_ONCE:
            continue
        yield Finding(
            "HRC-301",
            Severity.INFO,
            f"flow '{flow.name}', sink {sink.name}",
            f"The sink is {sink.guarantee}: after a crash its last batch may be written twice.",
            "Readers have to tolerate repeated rows, for instance by keeping the last one per key.",
        )


_CHECKS = (
    _name,
    _inputs,
    _watermark_column,
    compatibility.check_sink_mode,
    _transform_parameters,
    compatibility.check_trigger,
    _own_topic,
    _watermark_missing,
    _guarantee,
)
