"""`headrace quarantine`: the bad rows of a flow, and the way back for those that are good after a fix."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from headrace.cli.output import ANSWER_IS_NO, USAGE, JsonOption, YesOption, emit, err, out
from headrace.cli.project import HERE, ProjectOption, TargetOption, opened
from headrace.cli.session import SparkWhenAsked
from headrace.operate.quarantine.listing import QuarantineList, list_quarantine
from headrace.operate.quarantine.redrive import RedrivePlan, open_redrive

# As many examples as fit on a screen.
_EXAMPLES = 5


def quarantine_command(  # noqa: PLR0913 - an option each
    flow: Annotated[str, typer.Argument(metavar="FLOW", help="The flow, by name.")],
    *,
    reason: Annotated[str | None, typer.Option("--reason", help="Only rows that were filed for this reason.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many of the newest rows are shown.")] = _EXAMPLES,
    redrive: Annotated[
        bool, typer.Option("--redrive", help="Send rows that are good by now again. Shows the plan and asks.")
    ] = False,
    to: Annotated[str | None, typer.Option("--to", help="Send them to this topic, not to their own.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --redrive: show the plan and end.")] = False,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Show the bad rows of a flow by reason, and the newest of them. With --redrive, send them again after a fix."""
    if redrive and json and not yes and not dry_run:
        emit(
            {
                "ok": False,
                "error": "`quarantine --redrive --json` sends records and cannot ask: add --yes or --dry-run.",
            }
        )
        raise typer.Exit(USAGE)
    opened_project, chosen, (found,) = opened(project, target, [flow])
    with ExitStack() as stack:
        spark = SparkWhenAsked("quarantine", opened_project, chosen, stack, json=json)
        if not redrive:
            listed = list_quarantine(flow, chosen, reason, limit, spark)
            if json:
                emit({"ok": True, **listed.as_dict()})
            else:
                _print(listed)
            return
        with open_redrive(spark(), chosen, found) as work:
            plan = work.plan(reason, to)
            _explain(plan, json=json)
            if dry_run:
                sent = 0
            else:
                _agree(plan, yes=yes)
                sent = work.apply(plan)
    if json:
        emit({"ok": True, "sent": sent, **plan.as_dict()})
    elif not dry_run:
        out.print(f"Sent again: {sent} row(s).")


def _explain(plan: RedrivePlan, *, json: bool) -> None:
    if not json:
        for line in plan.lines():
            err.print(line, markup=False)


def _agree(plan: RedrivePlan, *, yes: bool) -> None:
    """Let a person decide, where there is something to decide."""
    if (plan.rows or plan.unfinished) and not yes and not typer.confirm("Send them?", default=False, err=True):
        err.print("Nothing was sent.")
        raise typer.Exit(ANSWER_IS_NO)


def _print(listed: QuarantineList) -> None:
    if not listed.reasons:
        out.print(f"{listed.flow}: nothing is in quarantine.", markup=False)
        return
    table = Table(title=f"Quarantine of {listed.flow}", title_justify="left")
    for heading in ("reason", "rows", "sent again"):
        table.add_column(heading, justify="left" if heading == "reason" else "right")
    for each in listed.reasons:
        table.add_row(Text(each.reason), f"{each.rows:,}", f"{each.redriven:,}")
    out.print(table)
    for example in listed.examples:
        out.print(Text.assemble((f"{example.place} ", "bold"), example.reason, (f"  {example.kafka_time}", "dim")))
        key = "" if example.key is None else f"{example.key}: "
        out.print(Text(f"  {key}{'no value' if example.value is None else example.value}"))
