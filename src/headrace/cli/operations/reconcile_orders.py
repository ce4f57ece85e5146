"""`headrace reconcile orders`: the command of the pattern of orders and payments."""

from contextlib import ExitStack
from datetime import date
from typing import Annotated

import typer

from headrace.cli.output import ANSWER_IS_NO, JsonOption, YesOption, emit, out, require_yes
from headrace.cli.project import HERE, ProjectOption, TargetOption, load_project
from headrace.cli.session import start_session
from headrace.demos.orders.reconcile import is_join, open_reconciliation


def reconcile_orders(
    flows: Annotated[
        list[str] | None, typer.Argument(metavar="[FLOW]...", help="The joins, by name. Default: all of the project.")
    ] = None,
    *,
    day: Annotated[
        str | None, typer.Option(metavar="DATE", help="The day, UTC, as 2026-11-16. Default: the last complete day.")
    ] = None,
    repair_them: Annotated[
        bool, typer.Option("--repair", help="Replace the rows of the day by the batch result. Asks first.")
    ] = False,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Recompute a day of orders and payments as a batch, and show what the stream missed, by cause."""
    if repair_them:
        require_yes("`reconcile orders --repair --json` changes tables", yes=yes, json=json)
    selected_day = _date(day)
    loaded, run_target, selected_flows = load_project(project, target, flows or [])
    joins = selected_flows if flows else [flow for flow in selected_flows if is_join(flow)]
    plans, repaired = [], set[str]()
    with ExitStack() as stack:
        spark = start_session("reconcile", loaded, run_target, stack, json=json)
        for flow in joins:
            with open_reconciliation(spark, run_target, flow) as reconciliation:
                plan = reconciliation.plan(selected_day)
                if not json:
                    for line in plan.lines():
                        out.print(line, markup=False)
                if repair_them and plan.changes and (yes or typer.confirm("Repair it?", default=False, err=True)):
                    reconciliation.apply(plan)
                    repaired.add(plan.flow)
                    if not json:
                        out.print(f"  Repaired: {plan.changes:,} row(s) of the table.", markup=False)
                plans.append(plan)
    is_clean = bool(plans) and all(not plan.changes or plan.flow in repaired for plan in plans)
    if json:
        emit({"ok": is_clean, "flows": [{**plan.as_dict(), "repaired": plan.flow in repaired} for plan in plans]})
    elif not plans:
        out.print("No flow of the project joins orders and payments.")
    if not is_clean:
        raise typer.Exit(ANSWER_IS_NO)


def _date(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a date. Write it like 2026-11-16.", param_hint="--day") from None
