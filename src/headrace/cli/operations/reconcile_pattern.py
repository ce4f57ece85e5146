"""`headrace reconcile PATTERN`: recompute a day of a pattern's flows as a batch, and repair their tables."""

from collections.abc import Callable
from contextlib import ExitStack
from datetime import date
from typing import Annotated

import typer

from headrace.cli.output import ANSWER_IS_NO, JsonOption, YesOption, ask, emit, out, print_lines, require_yes
from headrace.cli.project import HERE, ProjectOption, TargetOption, load_project
from headrace.cli.session import start_session
from headrace.demos.reconciliation import find_reconciliation


def pattern_command(pattern: str) -> Callable[..., None]:
    """Return the command that reconciles the flows of a pattern."""

    def reconcile(
        flows: Annotated[
            list[str] | None,
            typer.Argument(metavar="[FLOW]...", help="The flows, by name. Default: all of the project."),
        ] = None,
        *,
        day: Annotated[
            str | None,
            typer.Option(metavar="DATE", help="The day, UTC, as 2026-11-16. Default: the last complete day."),
        ] = None,
        repair_them: Annotated[
            bool, typer.Option("--repair", help="Replace the rows of the day by the batch result. Asks first.")
        ] = False,
        project: ProjectOption = HERE,
        target: TargetOption = None,
        yes: YesOption = False,
        json: JsonOption = False,
    ) -> None:
        if repair_them:
            require_yes(f"`reconcile {pattern} --repair --json` changes tables", yes=yes, json=json)
        selected_day = _date(day)
        reconciliation = find_reconciliation(pattern)
        loaded, run_target, selected = load_project(project, target, flows or [])
        plans, repaired = [], set[str]()
        with ExitStack() as stack:
            spark = start_session("reconcile", loaded, run_target, stack, json=json)
            for flow in selected if flows else filter(reconciliation.accepts, selected):
                with reconciliation.open(spark, run_target, flow) as opened:
                    plan = opened.plan(selected_day)
                    if not json:
                        print_lines(plan.lines())
                    if repair_them and plan.changes and (yes or ask("Repair it?")):
                        opened.apply(plan)
                        repaired.add(plan.flow)
                        if not json:
                            out.print(f"  Repaired: {plan.changes:,} row(s) of the table.", markup=False)
                    plans.append(plan)
        is_clean = bool(plans) and all(not plan.changes or plan.flow in repaired for plan in plans)
        if json:
            emit({"ok": is_clean, "flows": [{**plan.as_dict(), "repaired": plan.flow in repaired} for plan in plans]})
        elif not plans:
            out.print(f"The project has no flow of the pattern '{pattern}'.")
        if not is_clean:
            raise typer.Exit(ANSWER_IS_NO)

    return reconcile


def _date(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a date. Write it like 2026-11-16.", param_hint="--day") from None
