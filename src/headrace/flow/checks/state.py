"""Rules on state and watermarks, for `check`. They look at declarations; what a checkpoint says is asked in `operate`.

| code    | severity | finds                                                                              |
|---------|----------|------------------------------------------------------------------------------------|
| HRC-120 | error    | flows of one application that give RocksDB different amounts of memory             |
| HRC-210 | warning  | an `idle` that has no effect under the trigger                                     |
| HRC-212 | info     | a source whose rows from the future are left out and counted, and cannot be filed   |
| HRC-214 | info     | a state budget below the rows that arrive within the watermark's delay             |
| HRC-216 | warning  | what a join that keeps rows for ever costs in an hour, at the measured rates        |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.flow.checks.backpressure import Measured
from headrace.flow.checks.finding import Finding, Severity
from headrace.flow.checks.operators import Kind, Plan, Unplanned
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import AvailableNow, Continuous, RealTime, RocksDB
from headrace.flow.size import Size, said_bytes
from headrace.flow.source import ReadOnce


def shared_memory(flows: Sequence[Flow]) -> Iterator[Finding]:
    """Yield flows that could not both have what they ask for: an executor has one bound."""
    named = {flow.name: flow.state.memory for flow in flows if isinstance(flow.state, RocksDB) and flow.state.memory}
    if len({Size.parse(memory) for memory in named.values()}) > 1:
        said = ", ".join(f"'{name}' {memory}" for name, memory in named.items())
        yield Finding(
            "HRC-120",
            Severity.ERROR,
            f"flows {', '.join(repr(name) for name in named)}",
            f"They give RocksDB different amounts of memory ({said}). All stores of an executor share one bound, and "
            "the first that is opened would set it for all.",
            "Give them the same `memory`, or run them in applications of their own.",
        )


def state_rules(flow: Flow, measured: Mapping[tuple[str, str], Measured]) -> Iterator[Finding]:
    """Yield what is to be known about the state and the watermarks of one flow."""
    yield from _without_effect(flow)
    yield from _not_filed(flow)
    yield from _expected(flow, measured)


def _without_effect(flow: Flow) -> Iterator[Finding]:
    for name, given in flow.named_inputs.items():
        if given.watermark is None or not given.watermark.idle:
            continue
        if isinstance(flow.trigger, AvailableNow | Continuous | RealTime):
            ends = isinstance(flow.trigger, AvailableNow)
            why = (
                "the flow ends when everything is read, and waits for no quiet"
                if ends
                else "the trigger keeps no state"
            )
            yield Finding(
                "HRC-210",
                Severity.WARNING,
                f"flow '{flow.name}', input '{name}'",
                f"idle='{given.watermark.idle}' has no effect: {why}.",
                "Leave `idle` out, or take another trigger, such as Every.",
            )


def _not_filed(flow: Flow) -> Iterator[Finding]:
    for name, given in flow.named_inputs.items():
        if given.watermark is not None and given.schema is None and isinstance(given.source, ReadOnce):
            yield Finding(
                "HRC-212",
                Severity.INFO,
                f"flow '{flow.name}', input '{name}'",
                f"Rows that are ahead of the clock by more than {given.watermark.ahead} are left out and counted, and "
                f"cannot be filed: {given.source.read_once}",
                "Look at the count of bad rows of the run.",
            )


def _expected(flow: Flow, measured: Mapping[tuple[str, str], Measured]) -> Iterator[Finding]:
    """Compare a budget of rows with what arrives while a row may be needed."""
    limit = flow.state.budget.rows if flow.state.budget is not None else None
    rates = {
        name: (measured[flow.name, name].arrivals.get("records", 0.0), given.watermark.duration.seconds)
        for name, given in flow.named_inputs.items()
        if given.watermark is not None and (flow.name, name) in measured
    }
    expected = sum(rate * seconds for rate, seconds in rates.values())
    if limit is not None and expected > limit:
        said = ", ".join(f"{name} {rate:,.0f} a second for {seconds:,.0f} s" for name, (rate, seconds) in rates.items())
        yield Finding(
            "HRC-214",
            Severity.INFO,
            f"flow '{flow.name}'",
            f"The budget is {limit:,} rows of state, and about {expected:,.0f} records arrive within the delay of the "
            f"watermarks ({said}). Deduplication and joins keep a row for each; windows keep one per group.",
            "If each record is kept, raise the budget or shorten the delay.",
        )


def join_growth(flow: Flow, plan: Plan | Unplanned, measured: Mapping[tuple[str, str], Measured]) -> Iterator[Finding]:
    """Say what a join without end costs: every row of the sides that are never let go of stays in its state."""
    joins = [each for each in plan.operators if each.kind in _ENDLESS] if isinstance(plan, Plan) else []
    if not joins:
        return
    named = {name for each in joins for name in each.endless}
    rates = {
        name: measured[flow.name, name].arrivals["records"]
        for name in flow.named_inputs
        if (flow.name, name) in measured
        and "records" in measured[flow.name, name].arrivals
        # Where it is not known which inputs they are, it may be all.
        and (name in named or not named)
    }
    rows = sum(rates.values()) * _HOUR
    if not rows:
        return
    held = sum(rate * _HOUR * kept_bytes(flow.named_inputs[name]) for name, rate in rates.items())
    said = ", ".join(f"{name} {rate:,.1f} a second" for name, rate in rates.items())
    yield Finding(
        "HRC-216",
        Severity.WARNING,
        f"flow '{flow.name}'",
        f"At the rates that were measured ({said}) the join keeps {rows:,.0f} more rows with every hour, about "
        f"{said_bytes(round(held))}, and never gives one back.",
        "Set watermark= on both inputs and join on a bound of their times with two ends; the state then stays at rate "
        "x (delay + bound).",
    )


_HOUR = 3600.0
_ENDLESS = {Kind.INNER_JOIN_UNBOUNDED, Kind.INNER_JOIN_HALF, Kind.SEMI_JOIN_HALF, Kind.OUTER_JOIN_HALF}
# What a row takes in a store beside its fields: the key again, a number for each value of a key, lengths.
_BESIDE = 48
_FIELD, _TEXT = 8, 24


def kept_bytes(given: Input) -> int:
    """Return about how many bytes a row of an input takes in the state: a text is taken for a short one."""
    fields = given.columns.fields if given.columns is not None else []
    return _BESIDE + sum(_TEXT if each.dataType.simpleString() in ("string", "binary") else _FIELD for each in fields)
