"""`headrace late`: show the late rows of a flow, and repair their windows."""

from contextlib import ExitStack
from typing import Annotated

import typer
from rich.table import Table

from headrace.cli.output import ANSWER_IS_NO, JsonOption, YesOption, confirm, emit, err, out, print_lines, require_yes
from headrace.cli.project import HERE, ProjectOption, TargetOption, load_project
from headrace.cli.session import LazySession
from headrace.clients.storage import is_local
from headrace.operate.late.repair import Repair, RepairPlan
from headrace.operate.late.summary import LateSummary, summarise_late
from headrace.runtime.checkpoint.checkpoint import Checkpoint

# The most batches, hours and windows that are printed, the newest; `--json` has all.
_FEW = 10


def late_command(
    flow: Annotated[str, typer.Argument(metavar="FLOW", help="The flow, by name.")],
    *,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Recompute closed windows with their late rows. Shows the plan and asks first."),
    ] = False,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Show how many rows were late, by how much, for which windows, and which delay would have included them."""
    if repair:
        require_yes("`late --repair --json` changes a table", yes=yes, json=json)
    loaded, run_target, (selected,) = load_project(project, target, [flow])
    with ExitStack() as stack:
        spark = LazySession("late", loaded, run_target, stack, json=json)
        if repair:
            with Repair.open(spark(), run_target, selected) as repair_run:
                plan = repair_run.plan()
                _confirm(plan, yes=yes, json=json)
                if plan.windows:
                    repair_run.apply(plan)
            _print_repair(plan, json=json)
            return
        session = None if is_local(run_target.checkpoints) else spark()
        query_id = Checkpoint.of(flow, run_target, session).query_id()
        summary = summarise_late(flow, run_target, selected, query_id, spark)
    if json:
        emit({"ok": True, **summary.as_dict()})
    else:
        _print_summary(summary)


def _confirm(plan: RepairPlan, *, yes: bool, json: bool) -> None:
    """Print what a repair does and ask for confirmation."""
    if json:
        return
    print_lines(plan.lines(), err)
    for change in plan.examples:
        err.print(f"  before {change.before or 'nothing'}", markup=False)
        err.print(f"  after  {change.after or 'nothing'}", markup=False)
    if plan.windows and not yes:
        confirm("Repair it?")


def _print_repair(plan: RepairPlan, *, json: bool) -> None:
    if json:
        emit({"ok": not plan.left, **plan.as_dict()})
    elif not plan.windows:
        out.print("Nothing to repair: every late row is included, or cannot be included.")
    else:
        out.print(f"Repaired: {len(plan.windows)} window(s), {plan.changes} row(s) of the table.")
    if plan.left:
        raise typer.Exit(ANSWER_IS_NO)


def _print_summary(summary: LateSummary) -> None:
    if not summary.rows and not summary.unexplained:
        out.print(f"{summary.flow}: no late rows.", markup=False)
        return
    missed = f", for {summary.entries} windows" if summary.entries != summary.rows else ""
    out.print(f"{summary.flow}: {summary.rows} late rows{missed}, {summary.repaired} of them repaired.", markup=False)
    if summary.late_by:
        delays_behind = ", ".join(f"{name} {seconds:,.1f} s" for name, seconds in summary.late_by.items())
        out.print(f"Behind the watermark: {delays_behind}.", markup=False)
    out.print(f"Dropped by: {', '.join(f'{name} {rows}' for name, rows in summary.by_operator.items())}.", markup=False)
    for title, heading, counts in (
        ("By batch", "batch", summary.by_batch),
        ("By hour of arrival", "hour", summary.by_hour),
    ):
        table = Table(title=title, title_justify="left")
        table.add_column(heading)
        table.add_column("late rows", justify="right")
        for key, rows in list(counts.items())[-_FEW:]:
            table.add_row(str(key), f"{rows:,}")
        out.print(table)
    if summary.windows:
        out.print(_windows_table(summary))
    for name, delays in summary.delays.items():
        sufficient_delays = ", ".join(f"{share}: {delay}" for share, delay in delays.items())
        out.print(f"A delay that would have included them, for input '{name}': {sufficient_delays}.", markup=False)
    for gap in summary.unexplained:
        number = "an unknown number of" if gap["dropped"] is None else gap["dropped"]
        out.print(f"Not in the ledger: batch {gap['batch_id']}, {number} dropped. {gap['why']}", markup=False)


def _windows_table(summary: LateSummary) -> Table:
    table = Table(title="Windows", title_justify="left")
    for heading in ("from", "to", "late rows", "repaired"):
        table.add_column(heading, justify="right" if heading == "late rows" else "left")
    for window in summary.windows[-_FEW:]:
        bounds = (f"{bound:%Y-%m-%d %H:%M:%S}" for bound in (window.start, window.end))
        table.add_row(*bounds, f"{window.rows:,}", "yes" if window.repaired else "no")
    return table
