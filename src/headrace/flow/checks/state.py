"""Checks of state and watermark declarations. Checks against a checkpoint are in `operate`.

| code    | severity | finds                                                                              |
|---------|----------|------------------------------------------------------------------------------------|
| HRC-120 | error    | flows of one application that give RocksDB different amounts of memory             |
| HRC-210 | warning  | an `idle_timeout` that has no effect under the trigger                             |
| HRC-212 | info     | a source whose rows from the future are counted but cannot be quarantined          |
| HRC-214 | info     | a state budget below the rows that arrive within the watermark's delay             |
| HRC-216 | warning  | the hourly state growth of an unbounded join, at the measured rates                |
"""

from collections.abc import Iterator, Mapping, Sequence

from headrace.flow.checks.backpressure import MeasuredRates
from headrace.flow.checks.finding import Finding, Severity
from headrace.flow.checks.operators import OperatorKind, QueryPlan, UnknownPlan
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import AvailableNow, Continuous, RealTime, RocksDB
from headrace.flow.size import Size, format_bytes
from headrace.flow.source import NotReplayable


def check_shared_memory(flows: Sequence[Flow]) -> Iterator[Finding]:
    """Yield flows that declare different RocksDB memory: an executor has a single limit."""
    memory_by_flow = {
        flow.name: flow.state.memory for flow in flows if isinstance(flow.state, RocksDB) and flow.state.memory
    }
    if len({Size.parse(memory) for memory in memory_by_flow.values()}) > 1:
        settings = ", ".join(f"'{name}' {memory}" for name, memory in memory_by_flow.items())
        yield Finding(
            "HRC-120",
            f"flows {', '.join(repr(name) for name in memory_by_flow)}",
            f"They give RocksDB different amounts of memory ({settings}). All stores of an executor share one limit, "
            "and the first store that opens would set it for all.",
            "Give them the same `memory`, or run them in separate applications.",
        )


def check_state(flow: Flow, measured: Mapping[tuple[str, str], MeasuredRates]) -> Iterator[Finding]:
    """Yield findings about the state and the watermarks of one flow."""
    yield from _check_idle_timeout(flow)
    yield from _check_future_rows(flow)
    yield from _check_budget(flow, measured)


def _check_idle_timeout(flow: Flow) -> Iterator[Finding]:
    for name, input_ in flow.named_inputs.items():
        if input_.watermark is None or not input_.watermark.idle_timeout:
            continue
        if isinstance(flow.trigger, AvailableNow | Continuous | RealTime):
            is_finite = isinstance(flow.trigger, AvailableNow)
            why = (
                "the flow ends when everything is read, so no input becomes idle"
                if is_finite
                else "the trigger has no state"
            )
            yield Finding(
                "HRC-210",
                f"flow '{flow.name}', input '{name}'",
                f"idle_timeout='{input_.watermark.idle_timeout}' has no effect: {why}.",
                "Remove idle_timeout, or use another trigger, such as Every.",
                severity=Severity.WARNING,
            )


def _check_future_rows(flow: Flow) -> Iterator[Finding]:
    for name, input_ in flow.named_inputs.items():
        if input_.watermark is not None and input_.schema is None and isinstance(input_.source, NotReplayable):
            yield Finding(
                "HRC-212",
                f"flow '{flow.name}', input '{name}'",
                f"Rows that are ahead of the clock by more than {input_.watermark.max_future} are dropped and counted, "
                f"and cannot be quarantined: {input_.source.not_replayable_reason}",
                "Check the count of invalid rows of the run.",
                severity=Severity.INFO,
            )


def _check_budget(flow: Flow, measured: Mapping[tuple[str, str], MeasuredRates]) -> Iterator[Finding]:
    """Compare a row budget with the rows that arrive within the watermark delay."""
    limit = flow.state.budget.rows if flow.state.budget is not None else None
    rates = {
        name: (measured[flow.name, name].arrivals.get("records", 0.0), input_.watermark.duration.seconds)
        for name, input_ in flow.named_inputs.items()
        if input_.watermark is not None and (flow.name, name) in measured
    }
    expected = sum(rate * seconds for rate, seconds in rates.values())
    if limit is not None and expected > limit:
        inputs = ", ".join(
            f"{name} {rate:,.0f} a second for {seconds:,.0f} s" for name, (rate, seconds) in rates.items()
        )
        yield Finding(
            "HRC-214",
            f"flow '{flow.name}'",
            f"The budget is {limit:,} rows of state, and about {expected:,.0f} records arrive within the delay of the "
            f"watermarks ({inputs}). Deduplication and joins keep a row for each; windows keep one per group.",
            "If each record is kept, raise the budget or shorten the delay.",
            severity=Severity.INFO,
        )


def check_join_growth(
    flow: Flow, plan: QueryPlan | UnknownPlan, measured: Mapping[tuple[str, str], MeasuredRates]
) -> Iterator[Finding]:
    """Yield the state growth of an unbounded join: rows of its unbounded sides are never evicted."""
    joins = (
        [operator for operator in plan.operators if operator.kind in _UNBOUNDED_JOINS]
        if isinstance(plan, QueryPlan)
        else []
    )
    if not joins:
        return
    unbounded = {name for join in joins for name in join.unbounded_inputs}
    rates = {
        name: measured[flow.name, name].arrivals["records"]
        for name in flow.named_inputs
        if (flow.name, name) in measured
        and "records" in measured[flow.name, name].arrivals
        # If the unbounded inputs are unknown, it may be all of them.
        and (name in unbounded or not unbounded)
    }
    rows = sum(rates.values()) * _HOUR
    if not rows:
        return
    state_bytes = sum(rate * _HOUR * state_row_bytes(flow.named_inputs[name]) for name, rate in rates.items())
    inputs = ", ".join(f"{name} {rate:,.1f} a second" for name, rate in rates.items())
    yield Finding(
        "HRC-216",
        f"flow '{flow.name}'",
        f"At the rates that were measured ({inputs}) the state of the join grows by {rows:,.0f} rows every hour, about "
        f"{format_bytes(round(state_bytes))}, and never removes one.",
        "Set watermark= on both inputs and join on a bound of their times with two ends; the state then stays at rate "
        "x (delay + bound).",
        severity=Severity.WARNING,
    )


_HOUR = 3600.0
_UNBOUNDED_JOINS = {
    OperatorKind.INNER_JOIN_UNBOUNDED,
    OperatorKind.INNER_JOIN_HALF_BOUNDED,
    OperatorKind.SEMI_JOIN_HALF_BOUNDED,
    OperatorKind.OUTER_JOIN_HALF_BOUNDED,
}
# The bytes of a row in a state store besides its fields: the key again, a counter, lengths.
_ROW_OVERHEAD_BYTES = 48
_FIELD_BYTES, _STRING_BYTES = 8, 24


def state_row_bytes(input_: Input) -> int:
    """Return the approximate size of an input's row in the state, assuming short strings."""
    fields = input_.columns.fields if input_.columns is not None else []
    return _ROW_OVERHEAD_BYTES + sum(
        _STRING_BYTES if field.dataType.simpleString() in ("string", "binary") else _FIELD_BYTES for field in fields
    )
