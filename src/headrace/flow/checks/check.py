"""Checks flows before they run, without Spark, and returns findings.

A check looks at one flow, or at all flows of an application, and yields findings with stable codes. Findings about
operators need the query plan of the transform; they, and all that `matrix` decides, come from `compatibility`.

| code    | severity | finds                                                             |
|---------|----------|-------------------------------------------------------------------|
| HRC-101 | error    | a name that cannot be a folder                                    |
| HRC-102 | error    | two flows of one name: they would share a checkpoint              |
| HRC-103 | error    | a flow without inputs                                             |
| HRC-104 | error    | a sink that does not support the output mode                      |
| HRC-105 | error    | a payload without a schema                                        |
| HRC-106 | error    | a watermark on a column that is missing or not a timestamp        |
| HRC-107 | error    | a transform whose parameters are not the inputs                   |
| HRC-108 | error    | a trigger without batches, and a sink or input that needs them    |
| HRC-109 | error    | a flow that reads the topic it writes                             |
| HRC-110 | error    | a source without a bound for a batch                              |
| HRC-111 | error    | an operator that Spark refuses in the output mode                 |
| HRC-112 | error    | an operator that Spark accepts, with a wrong result in the mode   |
| HRC-113 | error    | an operator that continuous or real-time processing cannot do     |
| HRC-114 | error    | an output mode that the trigger does not support                  |
| HRC-115 | error    | a batch of real-time mode that is too short                       |
| HRC-116 | error    | fewer task slots than a trigger without batches needs             |
| HRC-117 | error    | a plan that Spark refuses for another reason                      |
| HRC-118 | error    | a transform that cannot be planned                                |
| HRC-119 | error    | custom state without RocksDB                                      |
| HRC-124 | error    | a metadata column that does not exist, or is a payload field too  |
| HRC-125 | error    | a schema for a source without a payload                           |
| HRC-201 | warning  | update or append with state but no watermark: state grows forever |
| HRC-202 | warning  | a watermark column that may be null                               |
| HRC-203 | warning  | several inputs, one of them without a watermark                   |
| HRC-204 | warning  | a bound below the arrival rate                                    |
| HRC-205 | warning  | complete mode, which keeps every group forever                    |
| HRC-206 | warning  | a limit, which counts over all batches                            |
| HRC-207 | warning  | a trigger under its old name                                      |
| HRC-208 | warning  | deduplication or joins whose state never expires                  |
| HRC-209 | info     | a plan that could not be checked                                  |
| HRC-217 | warning  | a function of the rows of a group, which sees one batch at a time |
| HRC-218 | warning  | a Python function that waits for the end of an epoch              |
| HRC-219 | warning  | the current time, which is the start of a long batch              |
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

    `measured` has the measured rates by flow and input, to compare bounds with.
    `plans` has the query plan by flow; without it the operators of a flow are not checked.
    """
    flows = list(flows)
    findings = [*_check_unique_names(flows), *check_shared_memory(flows)]
    for flow in flows:
        findings.extend(_check_bounds(flow, measured or {}))
        findings.extend(check_state(flow, measured or {}))
    for flow in flows:
        for check_flow in _CHECKS:
            findings.extend(check_flow(flow))
        plan = (plans or {}).get(flow.name)
        if plan is not None:
            findings.extend(compatibility.check_operators(flow, plan))
            findings.extend(check_join_growth(flow, plan, measured or {}))
        if not isinstance(plan, QueryPlan):
            findings.extend(_check_unbounded_state(flow))
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
        more = f" Further errors: {len(errors) - 1}." if len(errors) > 1 else ""
        raise FlowError(
            f"{first.place}: {first.reason}",
            why=f"The check {first.code} stops a flow that could not run.{more}",
            state="Nothing was started and nothing was written.",
            remedy=f"{first.remedy} `headrace check` lists every finding.",
            code="HR-203",
        )
    return findings


def _check_unique_names(flows: Sequence[Flow]) -> Iterator[Finding]:
    for name, times in Counter(flow.name for flow in flows).items():
        if times > 1:
            yield Finding(
                "HRC-102",
                f"flow '{name}'",
                f"{times} flows have this name, and so would share one checkpoint.",
                "Give each flow a unique name.",
            )


def _check_name(flow: Flow) -> Iterator[Finding]:
    if not FLOW_NAME.fullmatch(flow.name):
        yield Finding(
            "HRC-101",
            f"flow '{flow.name}'",
            "The name becomes a folder, so it may hold only a-z, 0-9, _ and -, and begins with a letter.",
            "Rename the flow.",
        )


def _check_inputs(flow: Flow) -> Iterator[Finding]:
    if not flow.named_inputs:
        yield Finding("HRC-103", f"flow '{flow.name}'", "The flow has no inputs.", "Declare an Input.")
    for name, input_ in flow.named_inputs.items():
        place = f"flow '{flow.name}', input '{name}'"
        if input_.source.carries_payload and input_.schema is None:
            yield Finding(
                "HRC-105",
                place,
                f"{input_.source.name} delivers bytes, and no schema says what is in them.",
                "Set schema= on the Input.",
            )
        if not input_.source.carries_payload and input_.schema is not None:
            yield Finding(
                "HRC-125",
                place,
                f"{input_.source.name} has its own schema and no payload to parse with another one.",
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
                place,
                f"metadata_columns= names {', '.join(invalid)}: not a metadata column of the source, or also a payload "
                "field.",
                f"Name some of {', '.join(METADATA_COLUMNS)}, but no field of the schema.",
            )


def _check_bounds(flow: Flow, measured: Mapping[tuple[str, str], MeasuredRates]) -> Iterator[Finding]:
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
                place,
                f"Backpressure is required: {input_.source.name} has no bound, so the first batch would read all "
                "available rows at once.",
                f"Set {first.bound.name}={first.value:_}. {first.reason}",
            )
        larger = suggest_larger_bound(bounds, rates, flow.trigger)
        if larger is not None:
            yield Finding(
                "HRC-204",
                place,
                f"{larger.bound.name} limits a batch to {larger.bound.value:,} {larger.bound.unit}. "
                f"{larger.reason} The flow can never keep up.",
                f"Set {larger.bound.name}={larger.value:_}, or a shorter interval of the trigger.",
                severity=Severity.WARNING,
            )


def _check_watermark_column(flow: Flow) -> Iterator[Finding]:
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
                place,
                f"The watermark is on '{column}', which is {actual}; it has to be a timestamp.",
                "Name a timestamp column of the schema.",
            )
        elif fields[column].nullable:
            yield Finding(
                "HRC-202",
                place,
                f"'{column}' may be null: such a row never becomes late and never closes a window.",
                f"Declare '{column}' as not nullable, so that rows without it are quarantined.",
                severity=Severity.WARNING,
            )


def _check_transform_parameters(flow: Flow) -> Iterator[Finding]:
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
            f"flow '{flow.name}', transform {getattr(flow.transform, '__name__', flow.transform)!s}",
            f"Its parameters are ({', '.join(sorted(names))}), and the inputs are {inputs}.",
            "Name the parameters of the transform as the inputs are named.",
        )


def _check_topic_loop(flow: Flow) -> Iterator[Finding]:
    for _step, sink in leaf_sinks(flow.sink):
        for name, input_ in flow.named_inputs.items():
            if (
                isinstance(sink, WritesTopic)
                and isinstance(input_.source, ReadsTopics)
                and input_.source.reads(sink.written_topic())
            ):
                yield Finding(
                    "HRC-109",
                    f"flow '{flow.name}', input '{name}'",
                    f"{input_.source.name} reads '{sink.written_topic()}', which the flow writes: an endless loop.",
                    "Write to another topic, or read topics that do not include it.",
                )


def _check_unbounded_state(flow: Flow) -> Iterator[Finding]:
    """Find state that probably never expires, for a flow without a query plan."""
    has_watermark = any(input_.watermark is not None for input_ in flow.named_inputs.values())
    if not has_watermark and flow.mode is OutputMode.UPDATE and not isinstance(flow.trigger, Continuous | RealTime):
        yield Finding(
            "HRC-201",
            f"flow '{flow.name}'",
            "Update mode without a watermark keeps every key forever.",
            "Set watermark= on the Input.",
            severity=Severity.WARNING,
        )


def _check_missing_watermark(flow: Flow) -> Iterator[Finding]:
    watermarked = [name for name, input_ in flow.named_inputs.items() if input_.watermark is not None]
    without_watermark = [name for name in flow.named_inputs if name not in watermarked]
    if watermarked and without_watermark:
        yield Finding(
            "HRC-203",
            f"flow '{flow.name}'",
            f"Inputs without a watermark ({', '.join(without_watermark)}) are joined with state that never ends.",
            "Set watermark= on each Input.",
            severity=Severity.WARNING,
        )


def _check_guarantee(flow: Flow) -> Iterator[Finding]:
    for _step, sink in leaf_sinks(flow.sink):
        if sink.guarantee is Guarantee.EXACTLY_ONCE:
            continue
        yield Finding(
            "HRC-301",
            f"flow '{flow.name}', sink {sink.name}",
            f"The sink is {sink.guarantee}: after a crash its last batch may be written twice.",
            "Readers have to tolerate repeated rows, for instance by keeping the last one per key.",
            severity=Severity.INFO,
        )


_CHECKS = (
    _check_name,
    _check_inputs,
    _check_watermark_column,
    compatibility.check_sink_mode,
    _check_transform_parameters,
    compatibility.check_trigger,
    _check_topic_loop,
    _check_missing_watermark,
    _check_guarantee,
)
