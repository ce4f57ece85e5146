"""What happens to flows, as lines for a person. Always on standard error: results own the output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.table import Table
from rich.text import Text

from headrace.cli.output import err
from headrace.flow.size import format_bytes
from headrace.operate.run import FlowFigures
from headrace.runtime.events import (
    AuditFailed,
    BatchCommitted,
    BatchSizeChosen,
    CaptureUnhealthy,
    Event,
    FlowFailed,
    FlowStarted,
    FlowStopped,
    LateUnexplained,
    OffsetsLost,
    RowsQuarantined,
    SettingPinned,
    StateNearBudget,
)
from headrace.runtime.state.size import total_state

# A table that another flow has yet to make.
_WAITS = "HR-572"
_RARE = ("set aside", "lost ranges", "state rows")


def told(event: Event) -> None:
    """Print one event."""
    match event:
        case BatchSizeChosen():
            most = f" batches of '{event.input}' have at most {event.batch_size.records:,} records. "
            most += event.batch_size.reason
            err.print(Text.assemble((f"{event.flow:<16}", "bold"), (most, "dim")))
        case FlowStarted():
            err.print(Text.assemble((f"{event.flow:<16}", "bold"), " started"))
        case BatchCommitted():
            err.print(Text.assemble((f"{event.flow:<16}", "bold"), " ", _figures(event)))
        case RowsQuarantined():
            rows = f" batch {event.batch_id}: {event.dead_letters.rows:,} rows set aside by {event.dead_letters.sink}"
            err.print(Text.assemble((f"{event.flow:<16}", "bold"), (rows, "yellow")))
            err.print(
                Text.assemble(
                    ("  why  ", "dim"), event.dead_letters.why, "\n", ("  data ", "dim"), event.dead_letters.place
                )
            )
        case OffsetsLost():
            for each in event.lost:
                err.print(Text.assemble((f"{event.flow:<16}", "bold"), (f" batch {event.batch_id}: {each}", "yellow")))
        case SettingPinned():
            frozen = f" goes on with {event.checkpoint_value} {event.setting}, as its checkpoint has"
            frozen += f"; {event.declared} would be new"
            err.print(Text.assemble((f"{event.flow:<16}", "bold"), (frozen, "yellow")))
        case StateNearBudget():
            err.print(Text.assemble((f"{event.flow:<16}", "bold"), (f" {_near_budget(event)}", "yellow")))
        case CaptureUnhealthy():
            error = event.error
            line = f" {error.code} {error.what} What the topics hold is read meanwhile."
            err.print(Text.assemble((f"{event.flow:<16}", "bold"), (line, "yellow")))
            err.print(Text.assemble(("  why  ", "dim"), error.why, "\n", ("  do   ", "dim"), error.remedy))
        case FlowFailed() | AuditFailed():
            _tell_failure(event)
        case LateUnexplained():
            number = "an unknown number of" if event.dropped is None else f"{event.dropped:,}"
            line = f" batch {event.batch_id}: {number} late rows dropped and not in the ledger: {event.why}"
            err.print(Text.assemble((f"{event.flow:<16}", "bold"), (line, "yellow")))
        case FlowStopped():
            err.print(Text.assemble((f"{event.flow:<16}", "bold"), " stopped"))


def figures_table(title: str, flows: Mapping[str, FlowFigures]) -> Table:
    """Return what flows did in a run, a line each."""
    columns: dict[str, list[str]] = {
        "rows in": [f"{each.rows_in:,}" for each in flows.values()],
        "rows out": [f"{each.rows_out:,}" for each in flows.values()],
        "batches": [f"{each.batches:,}" for each in flows.values()],
        "late": [f"{each.late:,}" for each in flows.values()],
        "bad": [f"{sum(each.bad.values()):,}" for each in flows.values()],
        "set aside": [f"{each.set_aside:,}" for each in flows.values()],
        "lost ranges": [f"{len(each.lost):,}" for each in flows.values()],
        "state rows": [f"{total_state(each.state, 'rows'):,}" for each in flows.values()],
        "state": [format_bytes(_state_bytes(each)) for each in flows.values()],
    }
    # A line has 80 characters on many a terminal: what is rare is shown where there is some.
    shown = {name: cells for name, cells in columns.items() if name not in _RARE or set(cells) != {"0"}}
    table = Table(title=title, title_justify="left", padding=0)
    table.add_column("flow", no_wrap=True)
    for heading in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for number, flow in enumerate(flows):
        table.add_row(flow, *(cells[number] for cells in shown.values()))
    return table


def watermark_lines(flows: Mapping[str, FlowFigures]) -> Iterator[str]:
    """Say, of flows with several watermarks, how far each input is, and which of them holds the others back."""
    for name, each in flows.items():
        if each.held_back_by is None:
            continue
        marks = {given: each.watermarks.get(given) for given in each.delays}
        told = (
            f"{given} {'(no row in this run)' if mark is None else f'{mark:%Y-%m-%d %H:%M:%S}'}"
            f"{' (holds it back)' if given == each.held_back_by else ''}"
            for given, mark in marks.items()
        )
        yield f"{name}: watermarks of {', '.join(told)}; {each.evicted:,} rows left the state."


def _state_bytes(figures: FlowFigures) -> int:
    return max(total_state(figures.state, "bytes"), sum(each.memory for each in figures.state))


def _near_budget(event: StateNearBudget) -> str:
    rows = event.measure == "rows"
    used, limit = (f"{n:,}" if rows else format_bytes(n) for n in (event.used, event.limit))
    words = f"batch {event.batch_id}: state has {used} of a budget of {limit}{' rows' if rows else ''}"
    if event.seconds_left is not None:
        words += f"; at the present growth it is reached in about {_said_time(event.seconds_left)}"
    return f"{words}. Most is in {event.operator}"


def _said_time(seconds: float) -> str:
    """Return a length of time in the unit that a person would take."""
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"


def _figures(event: BatchCommitted) -> str:
    words = [f"batch {event.batch_id}: {event.rows_in:,} in, {event.rows_out:,} out, {event.duration_ms / 1000:.1f} s"]
    bad = sum(event.invalid.values())
    if bad:
        words.append(f"{bad:,} bad")
    broken = {name: rows for of in event.violations.values() for name, rows in of.items() if rows}
    words.extend(f"{rows:,} against {name}" for name, rows in broken.items())
    if event.dropped:
        words.append("late rows dropped")
    return ", ".join(words)


def _tell_failure(event: FlowFailed | AuditFailed) -> None:
    error, retry_in = event.error, event.retry_in if isinstance(event, FlowFailed) else None
    if error.code == _WAITS and retry_in is not None:
        # Nothing is wrong: flows of one application start together, and one makes the table of the other.
        line = f" waits {retry_in:.0f} s: {error.what}"
        err.print(Text.assemble((f"{event.flow:<16}", "bold"), (line, "dim")))
        return
    err.print(Text.assemble((f"{event.flow:<16}", "bold"), (f" {error.code} ", "bold red"), error.what))
    then = f"Starting again in {retry_in:.0f} s." if retry_in is not None else error.remedy
    for label, sentence in (("why", error.why), ("data", error.state), ("do", then)):
        err.print(Text.assemble((f"  {label:<5}", "dim"), sentence))
