"""What is wrong with flows before they run: findings, without Spark.

A rule looks at one flow, or at all flows of an application together, and yields findings. Each finding has a
stable code, so that tests and machines need not read the prose. What the operators of a transform rule out is found
where somebody has read its plan; those findings, and all that `matrix` decides, are made in `compatibility`.

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
| HRC-124 | error    | a column to keep that is none, or that is a field too             |
| HRC-201 | warning  | update or append with state but no watermark: state grows for ever |
| HRC-202 | warning  | a watermark column that may be null                               |
| HRC-203 | warning  | several inputs, one of them without a watermark                   |
| HRC-204 | warning  | a bound that lets less through than what arrives                  |
| HRC-205 | warning  | complete mode, which keeps every group for ever                   |
| HRC-206 | warning  | an operator that does other than it seems to over batches         |
| HRC-207 | warning  | a trigger under its old name                                      |
| HRC-208 | warning  | duplicates or partners that are waited for without end            |
| HRC-209 | info     | a plan that was not looked at                                     |
| HRC-301 | info     | a sink that may write rows twice after a crash                    |

Rules on state and watermarks are in `state`.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from headrace.errors import FlowError
from headrace.flow.checks import compatibility
from headrace.flow.checks.backpressure import Measured, suggestion, too_small
from headrace.flow.checks.finding import Finding, Severity
from headrace.flow.checks.operators import Plan, Unplanned
from headrace.flow.checks.state import join_growth, shared_memory, state_rules
from headrace.flow.flow import ONLY, Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.inputs import BROKER_TIME, KEPT
from headrace.flow.levers import Continuous, OutputMode, RealTime
from headrace.flow.sink import IntoTopic, leaves
from headrace.flow.source import Bounded, OfTopics

FLOW_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def check(
    flows: Iterable[Flow],
    measured: Mapping[tuple[str, str], Measured] | None = None,
    plans: Mapping[str, Plan | Unplanned] | None = None,
) -> list[Finding]:
    """Judge flows that are to run in one application. Errors come first.

    `measured` holds, by flow and input, the rates that bounds are compared with, where somebody has measured them.
    `plans` holds, by flow, what was read from its plan; of a flow that is not in it no operator is judged.
    """
    flows = list(flows)
    findings = [*_shared_names(flows), *shared_memory(flows)]
    for flow in flows:
        findings.extend(_backpressure(flow, measured or {}))
        findings.extend(state_rules(flow, measured or {}))
    for flow in flows:
        for rule in _RULES:
            findings.extend(rule(flow))
        plan = (plans or {}).get(flow.name)
        if plan is not None:
            findings.extend(compatibility.operators(flow, plan))
            findings.extend(join_growth(flow, plan, measured or {}))
        if not isinstance(plan, Plan):
            findings.extend(_state_for_ever(flow))
    return by_severity(findings)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with errors first and remarks last."""
    return sorted(findings, key=lambda found: list(Severity).index(found.severity))


def require_clean(flows: Sequence[Flow], plans: Mapping[str, Plan | Unplanned] | None = None) -> list[Finding]:
    """Return the findings, or raise when one of them is an error.

    Called twice by every start: before Spark is there, and for each flow again with its plan, before its query.
    """
    return require_none(check(flows, plans=plans))


def require_none(findings: list[Finding]) -> list[Finding]:
    """Return the findings, or raise when one of them is an error."""
    errors = [found for found in findings if found.severity is Severity.ERROR]
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
                "Give each flow a name of its own.",
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
    for name, given in flow.named_inputs.items():
        place = f"flow '{flow.name}', input '{name}'"
        if given.source.carries_payload and given.schema is None:
            yield Finding(
                "HRC-105",
                Severity.ERROR,
                place,
                f"{given.source.name} delivers bytes, and no schema says what is in them.",
                "Set schema= on the Input.",
            )
        if not given.source.carries_payload and given.schema is not None:
            yield Finding(
                "HRC-105",
                Severity.ERROR,
                place,
                f"{given.source.name} has a schema of its own, so a schema for its payload has no meaning.",
                "Remove schema= from the Input.",
            )
        fields = () if given.schema is None else given.schema.names
        unkept = [column for column in given.keep if column not in KEPT or not fields or column in fields]
        if unkept:
            yield Finding(
                "HRC-124",
                Severity.ERROR,
                place,
                f"keep= names {', '.join(unkept)}: not a column of a record of bytes, or a field of the payload too.",
                f"Name some of {', '.join(KEPT)}, and none that is a field of the schema.",
            )


def _backpressure(flow: Flow, measured: Mapping[tuple[str, str], Measured]) -> Iterator[Finding]:
    for name, given in flow.named_inputs.items():
        # Without batches there is nothing to bound.
        if not isinstance(given.source, Bounded) or isinstance(flow.trigger, Continuous | RealTime):
            continue
        place = f"flow '{flow.name}', input '{name}'"
        bounds, rates = given.source.bounds, measured.get((flow.name, name), Measured())
        if all(bound.value is None for bound in bounds):
            first = suggestion(bounds, rates, flow.trigger)
            yield Finding(
                "HRC-110",
                Severity.ERROR,
                place,
                f"Backpressure is required: {given.source.name} has no bound, so the first batch would read everything "
                "that is there, in one piece.",
                f"Set {first.bound.name}={first.value:_}. {first.reason}",
            )
        larger = too_small(bounds, rates, flow.trigger)
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
    for name, given in flow.named_inputs.items():
        if given.watermark is None or given.schema is None:
            continue
        place = f"flow '{flow.name}', input '{name}'"
        column = given.watermark.column
        # The broker's own timestamp, where the input keeps it, is never missing.
        if column == BROKER_TIME and column in given.keep:
            continue
        fields = {each.name: each for each in given.schema.fields}
        if column not in fields or fields[column].dataType.typeName() != "timestamp":
            have = fields[column].dataType.simpleString() if column in fields else "not in the schema"
            yield Finding(
                "HRC-106",
                Severity.ERROR,
                place,
                f"The watermark is on '{column}', which is {have}; it has to be a timestamp.",
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
        each
        for each in inspect.signature(flow.transform).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    names = {each.name for each in parameters}
    one = set(flow.named_inputs) == {ONLY}
    if (one and len(parameters) != 1) or (not one and names != set(flow.named_inputs)):
        wanted = "one DataFrame" if one else ", ".join(sorted(flow.named_inputs))
        yield Finding(
            "HRC-107",
            Severity.ERROR,
            f"flow '{flow.name}', transform {getattr(flow.transform, '__name__', flow.transform)!s}",
            f"It takes ({', '.join(sorted(names))}), and the inputs give {wanted}.",
            "Name the parameters of the transform as the inputs are named.",
        )


def _own_topic(flow: Flow) -> Iterator[Finding]:
    for _step, sink in leaves(flow.sink):
        for name, given in flow.named_inputs.items():
            if isinstance(sink, IntoTopic) and isinstance(given.source, OfTopics) and given.source.reads(sink.topic):
                yield Finding(
                    "HRC-109",
                    Severity.ERROR,
                    f"flow '{flow.name}', input '{name}'",
                    f"{given.source.name} takes in '{sink.topic}', which the flow writes: its rows would never end.",
                    "Write to another topic, or read topics that do not include it.",
                )


def _state_for_ever(flow: Flow) -> Iterator[Finding]:
    """Find what looks like state without end, of a flow whose plan is not known."""
    marked = any(given.watermark is not None for given in flow.named_inputs.values())
    if not marked and flow.mode is OutputMode.UPDATE and not isinstance(flow.trigger, Continuous | RealTime):
        yield Finding(
            "HRC-201",
            Severity.WARNING,
            f"flow '{flow.name}'",
            "Update mode without a watermark keeps every key it has ever seen.",
            "Set watermark= on the Input.",
        )


def _watermark_missing(flow: Flow) -> Iterator[Finding]:
    marked = [name for name, given in flow.named_inputs.items() if given.watermark is not None]
    bare = [name for name in flow.named_inputs if name not in marked]
    if marked and bare:
        yield Finding(
            "HRC-203",
            Severity.WARNING,
            f"flow '{flow.name}'",
            f"Inputs without a watermark ({', '.join(bare)}) are joined with state that never ends.",
            "Set watermark= on each Input.",
        )


def _promise(flow: Flow) -> Iterator[Finding]:
    for _step, sink in leaves(flow.sink):
        if sink.guarantee is Guarantee.EXACTLY_ONCE:
            continue
        yield Finding(
            "HRC-301",
            Severity.INFO,
            f"flow '{flow.name}', sink {sink.name}",
            f"The sink is {sink.guarantee}: after a crash its last batch may be written twice.",
            "Readers have to tolerate repeated rows, for instance by keeping the last one per key.",
        )


_RULES = (
    _name,
    _inputs,
    _watermark_column,
    compatibility.sink_mode,
    _transform_parameters,
    compatibility.trigger,
    _own_topic,
    _watermark_missing,
    _promise,
)
