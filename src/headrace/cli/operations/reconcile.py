"""`headrace reconcile`: compare tables with their source, and repair them.

`headrace reconcile PATTERN` recomputes a day of a pattern's flows as a batch, and repairs their tables.
"""

from collections.abc import Callable
from contextlib import ExitStack
from datetime import date
from typing import Annotated

import typer

from headrace.cdc.capture.catalogue import read_tables
from headrace.cdc.capture.declaration import TableSelection
from headrace.cdc.reconcile.compare import TableComparison, compare, repair
from headrace.cli.output import ANSWER_IS_NO, JsonOption, YesOption, ask, emit, err, out, print_lines, require_yes
from headrace.cli.project import HERE, ProjectOption, TargetOption, load_project
from headrace.cli.session import start_session
from headrace.clients.postgres import database_of
from headrace.demos.reconciliation import find_reconciliation, reconciled_patterns
from headrace.flow.duration import Duration
from headrace.runtime.checkpoint.folder_lock import lock_folder

reconcile_app = typer.Typer(help="Compare tables with their source data, and repair them.", no_args_is_help=True)

# The most rows that are printed per table; `--json` has all.
_FEW = 10


@reconcile_app.command("cdc")
def reconcile_cdc(  # noqa: PLR0913 - the options of the command line
    database: Annotated[str, typer.Argument(metavar="DATABASE", help="The source, a database of the target.")],
    into: Annotated[
        str, typer.Argument(metavar="PATH", help="The folder of the mirrors, as the flow's sink names it.")
    ],
    *,
    tables: Annotated[str, typer.Option(help="The tables: a pattern that matches their full names.")] = r".*\..*",
    wait: Annotated[str, typer.Option(help="How long rows that differ are compared again.")] = "30 seconds",
    repair_them: Annotated[
        bool, typer.Option("--repair", help="Write the source's values of the rows that differ. Asks first.")
    ] = False,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Compare mirrors with their source, row by row, at a fixed log position, and list the rows that differ."""
    if repair_them:
        require_yes("`reconcile cdc --repair --json` changes tables", yes=yes, json=json)
    patience = Duration.parse(wait).seconds
    loaded, run_target, _ = load_project(project, target, [])
    source = database_of(run_target, database)
    source_tables = read_tables(source, TableSelection(pattern=tables))
    folder = run_target.table(into)
    comparisons = []
    with ExitStack() as stack:
        spark = start_session("reconcile", loaded, run_target, stack, json=json)
        if repair_them:
            # Locked before the comparison, so that the repair writes what was compared.
            stack.enter_context(lock_folder(folder))
        for table in source_tables:
            location = f"{folder}/{table.name}"
            comparison = compare(spark, source, table, location, patience=patience)
            if not json:
                _print_comparison(comparison)
            if repair_them and comparison.differences and _confirm(comparison, yes=yes):
                repair(spark, comparison)
                comparison = compare(spark, source, table, location, patience=patience)
                if not json:
                    _print_comparison(comparison)
            comparisons.append(comparison)
    equal = bool(comparisons) and all(comparison.equal for comparison in comparisons)
    if json:
        emit({"ok": equal, "equal": equal, "tables": [comparison.as_dict() for comparison in comparisons]})
    elif not comparisons:
        out.print(f"No table of {database} matches.", markup=False)
    if not equal:
        raise typer.Exit(ANSWER_IS_NO)


def _confirm(comparison: TableComparison, *, yes: bool) -> bool:
    """Print what a repair does and ask for confirmation."""
    if yes:
        return True
    counts = {
        kind: sum(difference.kind == kind for difference in comparison.differences)
        for kind in ("missing", "different", "extra")
    }
    err.print(
        f"{comparison.table}: {counts['missing']} row(s) would be added, {counts['different']} changed, "
        f"{counts['extra']} removed, in one commit to {comparison.location}.",
        markup=False,
    )
    return ask("Repair it?")


def _print_comparison(comparison: TableComparison) -> None:
    verdict = "equal" if comparison.equal else f"{len(comparison.differences)} row(s) differ"
    out.print(
        f"{comparison.table}: {verdict}. {comparison.rows} rows at position {comparison.position}, "
        f"version {comparison.version}.",
        markup=False,
    )
    for difference in comparison.differences[:_FEW]:
        key = ", ".join(f"{name}={value}" for name, value in difference.key.items())
        out.print(f"  {difference.kind} {key} {', '.join(difference.columns)}".rstrip(), markup=False)
    if len(comparison.differences) > _FEW:
        out.print(f"  and {len(comparison.differences) - _FEW} more: `--json` lists all.", markup=False)
    missing, skipped = comparison.missing_columns, comparison.uncompared_columns
    for label, names in (("The mirror lacks", missing), ("Not compared", skipped)):
        if names:
            out.print(f"  {label}: {', '.join(names)}.", markup=False)


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


for _pattern in reconciled_patterns():
    _help = f"Recompute a day of the pattern '{_pattern}' as a batch, and show what the stream missed, by cause."
    reconcile_app.command(_pattern, help=_help)(pattern_command(_pattern))
