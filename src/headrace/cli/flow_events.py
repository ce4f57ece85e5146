"""What happens to flows, as lines for a person. Always on standard error: results own the output."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from headrace.cli.output import err
from headrace.operate.run import FlowFigures
from headrace.runtime.events import (
    AuditFailed,
    BatchCommitted,
    Event,
    FlowFailed,
    FlowStarted,
    FlowStopped,
    LateUnexplained,
    OffsetsLost,
    RowsSetAside,
)


def told(event: Event) -> None:
    """Print one event."""
    match event:
        case FlowStarted():
            err.print(Text.assemble((f"{event.flow:<16}", "bold"), " started"))
        case BatchCommitted():
            err.print(Text.assemble((f"{event.flow:<16}", "bold"), " ", _figures(event)))
        case RowsSetAside():
            rows = f" batch {event.batch_id}: {event.aside.rows:,} rows set aside by {event.aside.sink}"
            err.print(Text.assemble((f"{event.flow:<16}", "bold"), (rows, "yellow")))
            err.print(Text.assemble(("  why  ", "dim"), event.aside.why, "\n", ("  data ", "dim"), event.aside.place))
        case OffsetsLost():
            for each in event.lost:
                err.print(Text.assemble((f"{event.flow:<16}", "bold"), (f" batch {event.batch_id}: {each}", "yellow")))
        case FlowFailed():
            _tell_failure(event)
        case AuditFailed():
            _tell_failure(FlowFailed(event.flow, event.error, retry_in=None))
        case LateUnexplained():
            number = "an unknown number of" if event.dropped is None else f"{event.dropped:,}"
            line = f" batch {event.batch_id}: {number} late rows dropped and not in the ledger: {event.why}"
            err.print(Text.assemble((f"{event.flow:<16}", "bold"), (line, "yellow")))
        case FlowStopped():
            err.print(Text.assemble((f"{event.flow:<16}", "bold"), " stopped"))


def figures_table(title: str, flows: Mapping[str, FlowFigures]) -> Table:
    """Return what flows did in a run, a line each."""
    table = Table(title=title, title_justify="left")
    for heading in ("flow", "rows in", "rows out", "batches", "late", "bad", "set aside", "lost ranges"):
        table.add_column(heading, justify="left" if heading == "flow" else "right")
    for flow, figures in flows.items():
        kept = (figures.late, sum(figures.bad.values()), figures.set_aside, len(figures.lost))
        numbers = (figures.rows_in, figures.rows_out, figures.batches, *kept)
        table.add_row(flow, *(f"{number:,}" for number in numbers))
    return table


def _figures(event: BatchCommitted) -> str:
    words = [f"batch {event.batch_id}: {event.rows_in:,} in, {event.rows_out:,} out, {event.duration_ms / 1000:.1f} s"]
    bad = sum(event.bad.values())
    if bad:
        words.append(f"{bad:,} bad")
    if event.dropped:
        words.append("late rows dropped")
    return ", ".join(words)


def _tell_failure(event: FlowFailed) -> None:
    error = event.error
    err.print(Text.assemble((f"{event.flow:<16}", "bold"), (f" {error.code} ", "bold red"), error.what))
    then = f"Starting again in {event.retry_in:.0f} s." if event.retry_in is not None else error.remedy
    for label, sentence in (("why", error.why), ("data", error.state), ("do", then)):
        err.print(Text.assemble((f"  {label:<5}", "dim"), sentence))
