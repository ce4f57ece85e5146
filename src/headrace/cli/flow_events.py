"""Print events of running flows as text, always on standard error: standard output is for results."""

from collections.abc import Iterator, Mapping

from rich.table import Table
from rich.text import Text

from headrace.cli.output import err
from headrace.errors import TableNotCreated
from headrace.flow.size import format_bytes
from headrace.operate.run import FlowMetrics
from headrace.runtime.events import (
    AuditFailed,
    BatchCommitted,
    BatchSizeChosen,
    CaptureUnhealthy,
    FlowEvent,
    FlowFailed,
    FlowStarted,
    FlowStopped,
    LateRowsNotRecorded,
    OffsetsLost,
    RowsQuarantined,
    SettingPinned,
    StateNearBudget,
)
from headrace.runtime.state.size import total_state

_RARE = ("quarantined", "lost ranges", "state rows")


def print_event(event: FlowEvent) -> None:
    """Print one event."""
    match event:
        case BatchSizeChosen():
            records, reason = event.batch_size.records, event.batch_size.reason
            _print_line(event, f" batches of '{event.input}' have at most {records:,} records. {reason}", "dim")
        case FlowStarted():
            _print_line(event, " started")
        case BatchCommitted():
            _print_line(event, f" {_figures(event)}")
        case RowsQuarantined():
            letters = event.dead_letters
            _print_line(
                event, f" batch {event.batch_id}: {letters.rows:,} rows quarantined by {letters.sink}", "yellow"
            )
            err.print(Text.assemble(("  why  ", "dim"), letters.why, "\n", ("  data ", "dim"), letters.place))
        case OffsetsLost():
            for lost_range in event.lost:
                _print_line(event, f" batch {event.batch_id}: {lost_range}", "yellow")
        case SettingPinned():
            line = (
                f" keeps {event.checkpoint_value} {event.setting} from its checkpoint (declared: {event.declared}). "
                "Changing this needs a new checkpoint."
            )
            _print_line(event, line, "yellow")
        case StateNearBudget():
            _print_line(event, f" {_format_state_budget_warning(event)}", "yellow")
        case CaptureUnhealthy():
            error = event.error
            _print_line(event, f" {error.code} {error.what} Rows already in the topics are still read.", "yellow")
            err.print(Text.assemble(("  why  ", "dim"), error.why, "\n", ("  fix  ", "dim"), error.remedy))
        case FlowFailed() | AuditFailed():
            _print_failure(event)
        case LateRowsNotRecorded():
            number = "an unknown number of" if event.dropped is None else f"{event.dropped:,}"
            line = f" batch {event.batch_id}: {number} late rows dropped and not in the ledger: {event.why}"
            _print_line(event, line, "yellow")
        case FlowStopped():
            _print_line(event, " stopped")


def _print_line(event: FlowEvent, line: str, style: str = "") -> None:
    err.print(Text.assemble((f"{event.flow:<16}", "bold"), (line, style)))


def metrics_table(title: str, flows: Mapping[str, FlowMetrics]) -> Table:
    """Return a table with one line of figures per flow."""
    columns: dict[str, list[str]] = {
        "rows in": [f"{flow.rows_in:,}" for flow in flows.values()],
        "rows out": [f"{flow.rows_out:,}" for flow in flows.values()],
        "batches": [f"{flow.batches:,}" for flow in flows.values()],
        "late": [f"{flow.late:,}" for flow in flows.values()],
        "invalid": [f"{sum(flow.invalid.values()):,}" for flow in flows.values()],
        "quarantined": [f"{flow.set_aside:,}" for flow in flows.values()],
        "lost ranges": [f"{len(flow.lost):,}" for flow in flows.values()],
        "state rows": [f"{total_state(flow.state, 'rows'):,}" for flow in flows.values()],
        "state": [format_bytes(_state_bytes(flow)) for flow in flows.values()],
    }
    # Many terminals have 80 columns: rare columns are shown only if they contain something.
    visible = {name: cells for name, cells in columns.items() if name not in _RARE or set(cells) != {"0"}}
    table = Table(title=title, title_justify="left", padding=0)
    table.add_column("flow", no_wrap=True)
    for heading in visible:
        table.add_column(heading, justify="right", no_wrap=True)
    for number, flow in enumerate(flows):
        table.add_row(flow, *(cells[number] for cells in visible.values()))
    return table


def watermark_lines(flows: Mapping[str, FlowMetrics]) -> Iterator[str]:
    """Yield, for flows with several watermarks, the watermark of every input and which of them is the slowest."""
    for name, flow in flows.items():
        if flow.slowest_input is None:
            continue
        watermarks = {input_name: flow.watermarks.get(input_name) for input_name in flow.delays}
        parts = (
            f"{input_name} {'(no row in this run)' if mark is None else f'{mark:%Y-%m-%d %H:%M:%S}'}"
            f"{' (slowest)' if input_name == flow.slowest_input else ''}"
            for input_name, mark in watermarks.items()
        )
        yield f"{name}: watermarks of {', '.join(parts)}; {flow.evicted:,} rows left the state."


def _state_bytes(figures: FlowMetrics) -> int:
    return max(total_state(figures.state, "bytes"), sum(flow.memory for flow in figures.state))


def _format_state_budget_warning(event: StateNearBudget) -> str:
    rows = event.measure == "rows"
    used, limit = (f"{n:,}" if rows else format_bytes(n) for n in (event.used, event.limit))
    words = f"batch {event.batch_id}: state has {used} of a budget of {limit}{' rows' if rows else ''}"
    if event.seconds_left is not None:
        words += f"; at the current growth it will be reached in about {_format_duration(event.seconds_left)}"
    return f"{words}. Most is in {event.operator}"


def _format_duration(seconds: float) -> str:
    """Return a duration in a readable unit."""
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"


def _figures(event: BatchCommitted) -> str:
    words = [f"batch {event.batch_id}: {event.rows_in:,} in, {event.rows_out:,} out, {event.duration_ms / 1000:.1f} s"]
    invalid = sum(event.invalid.values())
    if invalid:
        words.append(f"{invalid:,} invalid")
    broken = {name: rows for of in event.violations.values() for name, rows in of.items() if rows}
    words.extend(f"{rows:,} against {name}" for name, rows in broken.items())
    if event.dropped:
        words.append("late rows dropped")
    return ", ".join(words)


def _print_failure(event: FlowFailed | AuditFailed) -> None:
    error, retry_in = event.error, event.retry_in if isinstance(event, FlowFailed) else None
    if isinstance(error, TableNotCreated) and retry_in is not None:
        # Not a failure: flows of one application start together, and one creates the table that another reads.
        _print_line(event, f" waits {retry_in:.0f} s: {error.what}", "dim")
        return
    err.print(Text.assemble((f"{event.flow:<16}", "bold"), (f" {error.code} ", "bold red"), error.what))
    then = f"Restarting in {retry_in:.0f} s." if retry_in is not None else error.remedy
    for label, sentence in (("why", error.why), ("data", error.state), ("fix", then)):
        err.print(Text.assemble((f"  {label:<5}", "dim"), sentence))
