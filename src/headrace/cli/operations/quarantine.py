"""`headrace quarantine`: show the invalid rows of a flow, and send them again after a fix."""

from contextlib import ExitStack
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from headrace.cli.output import JsonOption, YesOption, confirm, emit, err, out, print_lines, require_yes
from headrace.cli.project import HERE, ProjectOption, TargetOption, load_project
from headrace.cli.session import LazySession
from headrace.operate.quarantine.listing import QuarantineList, list_quarantine
from headrace.operate.quarantine.redrive import open_redrive

# As many examples as fit on a screen.
_EXAMPLES = 5


def quarantine_command(  # noqa: PLR0913 - an option each
    flow: Annotated[str, typer.Argument(metavar="FLOW", help="The flow, by name.")],
    *,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Only rows that were quarantined for this reason.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many of the newest rows to show.")] = _EXAMPLES,
    redrive: Annotated[
        bool, typer.Option("--redrive", help="Send rows again that are valid now. Shows the plan and asks first.")
    ] = False,
    to: Annotated[
        str | None, typer.Option("--to", help="Send them to this topic instead of their original topic.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --redrive: show the plan and exit.")] = False,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Show the invalid rows of a flow by reason, and the newest of them. --redrive sends them again after a fix."""
    if redrive:
        command = "`quarantine --redrive --json` sends records"
        require_yes(command, yes=yes or dry_run, json=json, options="--yes or --dry-run")
    loaded, run_target, (selected,) = load_project(project, target, [flow])
    with ExitStack() as stack:
        spark = LazySession("quarantine", loaded, run_target, stack, json=json)
        if not redrive:
            listing = list_quarantine(flow, run_target, reason, limit, spark)
            if json:
                emit({"ok": True, **listing.as_dict()})
            else:
                _print_listing(listing)
            return
        with open_redrive(spark(), run_target, selected) as redrive_run:
            plan = redrive_run.plan(reason, to)
            if not json:
                print_lines(plan.lines(), err)
            if (plan.rows or plan.unfinished) and not yes and not dry_run:
                confirm("Send them?", "Nothing was sent.")
            sent = 0 if dry_run else redrive_run.apply(plan)
    if json:
        emit({"ok": True, "sent": sent, **plan.as_dict()})
    elif not dry_run:
        out.print(f"Sent again: {sent} row(s).")


def _print_listing(listing: QuarantineList) -> None:
    if not listing.reasons:
        out.print(f"{listing.flow}: nothing is in quarantine.", markup=False)
        return
    table = Table(title=f"Quarantine of {listing.flow}", title_justify="left")
    for heading in ("reason", "rows", "sent again"):
        table.add_column(heading, justify="left" if heading == "reason" else "right")
    for row in listing.reasons:
        table.add_row(Text(row.reason), f"{row.rows:,}", f"{row.redriven:,}")
    out.print(table)
    for example in listing.examples:
        out.print(Text.assemble((f"{example.place} ", "bold"), example.reason, (f"  {example.kafka_time}", "dim")))
        key = "" if example.key is None else f"{example.key}: "
        out.print(Text(f"  {key}{'no value' if example.value is None else example.value}"))
