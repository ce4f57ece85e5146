"""`headrace reconcile`: whether tables hold what their source holds, and their repair."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import date
from itertools import groupby, islice
from typing import Annotated

import typer

from headrace.cdc.capture.catalogue import read_tables
from headrace.cdc.capture.declaration import TableSelection
from headrace.cdc.reconcile.compare import TableComparison, compare, repair
from headrace.cli.output import ANSWER_IS_NO, USAGE, JsonOption, YesOption, emit, err, out
from headrace.cli.project import HERE, ProjectOption, TargetOption, opened
from headrace.cli.session import opened_session
from headrace.clients.postgres import database_of
from headrace.demos.orders.reconcile import JoinPlan, is_join, open_reconciliation
from headrace.flow.duration import Duration
from headrace.runtime.checkpoint.folder_lock import lock_folder

reconcile_app = typer.Typer(help="Compare tables with what they were made of, and repair them.", no_args_is_help=True)

# The most rows that are printed per table; `--json` has all.
_FEW = 10
# Of a join: the most rows that are printed of each cause, and of orders and payments that stand alone.
_SOME = 3


@reconcile_app.command("cdc")
def reconcile_cdc(  # noqa: PLR0913 - the options of the command line
    database: Annotated[str, typer.Argument(metavar="DATABASE", help="The source, a database of the target.")],
    into: Annotated[
        str, typer.Argument(metavar="PATH", help="The folder of the mirrors, as the flow's sink names it.")
    ],
    *,
    tables: Annotated[str, typer.Option(help="The tables: a pattern that matches their full names.")] = r".*\..*",
    wait: Annotated[str, typer.Option(help="How long rows that differ are looked at again.")] = "30 seconds",
    repair_them: Annotated[
        bool, typer.Option("--repair", help="Write the source's values of the rows that differ. Asks first.")
    ] = False,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Compare mirrors with their source, row for row, at a known place of its log, and name the rows that differ."""
    if repair_them and json and not yes:
        emit({"ok": False, "error": "`reconcile cdc --repair --json` changes tables and cannot ask: add --yes."})
        raise typer.Exit(USAGE)
    patience = Duration.parse(wait).seconds
    opened_project, chosen, _ = opened(project, target, [])
    source = database_of(chosen, database)
    known = read_tables(source, TableSelection(pattern=tables))
    folder = chosen.table(into)
    found = []
    with ExitStack() as stack:
        spark = opened_session("reconcile", opened_project, chosen, stack, json=json)
        if repair_them:
            # Held before the comparison: what is written is what was compared.
            stack.enter_context(lock_folder(folder))
        for table in known:
            location = f"{folder}/{table.name}"
            compared = compare(spark, source, table, location, patience=patience)
            if not json:
                _tell(compared)
            if repair_them and compared.differences and _agreed(compared, yes=yes):
                repair(spark, compared)
                compared = compare(spark, source, table, location, patience=patience)
                if not json:
                    _tell(compared)
            found.append(compared)
    equal = bool(found) and all(each.equal for each in found)
    if json:
        emit({"ok": equal, "equal": equal, "tables": [each.as_dict() for each in found]})
    elif not found:
        out.print(f"No table of {database} matches.", markup=False)
    if not equal:
        raise typer.Exit(ANSWER_IS_NO)


@reconcile_app.command("orders")
def reconcile_orders(
    flows: Annotated[
        list[str] | None, typer.Argument(metavar="[FLOW]...", help="The joins, by name. Default: all of the project.")
    ] = None,
    *,
    day: Annotated[
        str | None, typer.Option(metavar="DATE", help="The day, UTC, as 2026-11-16. Default: the last whole one.")
    ] = None,
    repair_them: Annotated[
        bool, typer.Option("--repair", help="Replace the rows of the day by what a batch gives. Asks first.")
    ] = False,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Compute a day of orders and payments anew as a batch, and say what the stream has missed, by cause."""
    if repair_them and json and not yes:
        emit({"ok": False, "error": "`reconcile orders --repair --json` changes tables and cannot ask: add --yes."})
        raise typer.Exit(USAGE)
    wanted = _date(day)
    opened_project, chosen, named = opened(project, target, flows or [])
    joins = named if flows else [flow for flow in named if is_join(flow)]
    plans, repaired = [], set[str]()
    with ExitStack() as stack:
        spark = opened_session("reconcile", opened_project, chosen, stack, json=json)
        for flow in joins:
            with open_reconciliation(spark, chosen, flow) as work:
                plan = work.plan(wanted)
                if not json:
                    _tell_join(plan)
                if repair_them and plan.changes and (yes or typer.confirm("Repair it?", default=False, err=True)):
                    work.apply(plan)
                    repaired.add(plan.flow)
                    if not json:
                        out.print(f"  Repaired: {plan.changes:,} row(s) of the table.", markup=False)
                plans.append(plan)
    well = bool(plans) and all(not plan.changes or plan.flow in repaired for plan in plans)
    if json:
        emit({"ok": well, "flows": [{**plan.as_dict(), "repaired": plan.flow in repaired} for plan in plans]})
    elif not plans:
        out.print("No flow of the project joins orders and payments.")
    if not well:
        raise typer.Exit(ANSWER_IS_NO)


def _date(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is no date. Write it like 2026-11-16.", param_hint="--day") from None


def _tell_join(plan: JoinPlan) -> None:
    for line in plan.lines():
        out.print(line, markup=False)
    for _cause, rows in groupby(plan.examples, key=lambda each: each["cause"]):
        for each in islice(rows, _SOME):
            out.print(f"  {each['change']} ({each['cause']}): {_row(each)}", markup=False)
    for lacks, rows in groupby(plan.alone, key=lambda each: "order" if each["order_time"] is None else "payment"):
        for each in islice(rows, _SOME):
            out.print(f"  no {lacks} came: {_row(each)}", markup=False)


def _row(each: Mapping[str, object]) -> str:
    named = {name: value for name, value in each.items() if name not in ("cause", "change", "times")}
    return ", ".join(f"{name}={value}" for name, value in named.items() if value is not None)


def _agreed(found: TableComparison, *, yes: bool) -> bool:
    """Say what a repair does, and let a person decide."""
    if yes:
        return True
    counts = {kind: sum(each.kind == kind for each in found.differences) for kind in ("missing", "different", "extra")}
    err.print(
        f"{found.table}: {counts['missing']} row(s) would be added, {counts['different']} changed, "
        f"{counts['extra']} removed, in one commit to {found.location}.",
        markup=False,
    )
    return typer.confirm("Repair it?", default=False, err=True)


def _tell(found: TableComparison) -> None:
    verdict = "equal" if found.equal else f"{len(found.differences)} row(s) differ"
    out.print(
        f"{found.table}: {verdict}. {found.rows} rows at position {found.position}, version {found.version}.",
        markup=False,
    )
    for each in found.differences[:_FEW]:
        key = ", ".join(f"{name}={value}" for name, value in each.key.items())
        out.print(f"  {each.kind} {key} {', '.join(each.columns)}".rstrip(), markup=False)
    if len(found.differences) > _FEW:
        out.print(f"  and {len(found.differences) - _FEW} more: `--json` names all.", markup=False)
    for label, names in (("The mirror lacks", found.missing_columns), ("Not compared", found.uncompared_columns)):
        if names:
            out.print(f"  {label}: {', '.join(names)}.", markup=False)
