"""`headrace erase`: erase a row from all data derived from it, with a report as proof."""

from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import (
    ANSWER_IS_NO,
    USAGE,
    JsonOption,
    YesOption,
    confirm,
    emit,
    err,
    out,
    print_lines,
    require_yes,
)
from headrace.cli.project import HERE, ProjectOption, TargetOption, load_project
from headrace.cli.session import start_session
from headrace.operate.erase import report as erase_report
from headrace.operate.erase.erase import ErasureRequest, open_erasure
from headrace.operate.erase.plan import ErasePlan


def erase_command(  # noqa: PLR0913 - the options of the command line
    *,
    table: Annotated[str, typer.Option("--table", help="The source table, with its schema or without.")] = "",
    key: Annotated[
        list[str] | None, typer.Option("--key", help="The row's key; COLUMN=VALUE for each column of a composite key.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", help="Where the key is: PATH=COLUMN for a table below the lake, COLUMN for all."),
    ] = None,
    not_personal: Annotated[
        list[str] | None, typer.Option("--except", help="A column of the row whose values are not searched for.")
    ] = None,
    keep_tombstones: Annotated[
        bool, typer.Option("--keep-tombstones", help="Keep the key in the mirror's tombstones.")
    ] = False,
    reference: Annotated[str, typer.Option("--reference", help="A case number, for the report.")] = "",
    report: Annotated[
        Path | None, typer.Option("--report", help="The folder for the report. Default: erasures of the project.")
    ] = None,
    verify: Annotated[Path | None, typer.Option("--verify", help="Only verify that a report is unchanged.")] = None,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Erase a row from tables, old table versions, quarantine and ledgers; scan all files; write a report."""
    if verify is not None:
        _verify(verify, key or [], json=json)
        return
    if not table or not key:
        usage_error = "`erase` needs --table and --key."
        if json:
            emit({"ok": False, "error": usage_error})
        else:
            err.print(usage_error, markup=False)
        raise typer.Exit(USAGE)
    require_yes("`erase --json` changes tables", yes=yes, json=json)
    loaded, run_target, flows = load_project(project, target, None)
    request = ErasureRequest(table, tuple(key), tuple(column or ()), tuple(not_personal or ()), keep_tombstones)
    started_at = datetime.now(UTC)
    with ExitStack() as stack:
        spark = start_session("erase", loaded, run_target, stack, json=json)
        erasure = stack.enter_context(open_erasure(spark, run_target, flows, request, loaded.home))
        plan = erasure.plan()
        _confirm(plan, yes=yes, json=json)
        finished = erasure.apply(plan)
        ended_at = datetime.now(UTC)
        figures = erase_report.report(finished, started_at, ended_at, reference)
        path = erase_report.write(report or loaded.folder / "erasures", figures, ended_at)
        if finished.is_clean:
            erasure.finish()
    if json:
        emit({"ok": finished.is_clean, "report": str(path), **figures})
    else:
        _print_result(finished, path)
    if not finished.is_clean:
        raise typer.Exit(ANSWER_IS_NO)


def _confirm(plan: ErasePlan, *, yes: bool, json: bool) -> None:
    """Print what an erasure does and ask for confirmation."""
    if json:
        return
    print_lines(plan.lines(), err)
    if plan.tables_to_erase and not yes:
        confirm("Erase it? This cannot be undone.")


def _print_result(finished: ErasePlan, path: Path) -> None:
    rows = sum(place.erasure.rows for place in finished.places if place.erasure)
    files = sum((place.after or place.before).files for place in finished.places)
    out.print(
        f"Erased: {rows} row(s) from {len(finished.tables_to_erase)} table(s). Scanned afterwards: {files} files."
    )
    for place in (place for place in finished.places if place.outcome == "left"):
        out.print(f"Left in {place.path}: {place.remedy}", markup=False)
    for system in (system for system in finished.beyond if system.holds == "yes"):
        out.print(f"Left in {system.place}: {system.removes}", markup=False)
    if not finished.is_clean:
        out.print("The search values are kept below .headrace/erasures for the next run of this command.")
    out.print(f"Report: {path}", markup=False)


def _verify(path: Path, key: list[str], *, json: bool) -> None:
    pairs = [text.partition("=") if "=" in text else ("", "=", text) for text in key]
    verdict = erase_report.verify(path, {name: value for name, _, value in pairs} if key else None)
    if json:
        emit({"ok": verdict.is_valid, "differ": list(verdict.differ), "about": verdict.about, "erased": verdict.erased})
    else:
        for name in verdict.differ:
            out.print(f"{name} was changed: its sha256 differs.", markup=False)
        if verdict.about is not None:
            out.print("It is about this key." if verdict.about else "It is not about this key.")
        if not verdict.differ:
            outcome = "everything was erased" if verdict.erased else "something was left"
            out.print(f"The report is unchanged; it says that {outcome}.")
    if not verdict.is_valid:
        raise typer.Exit(ANSWER_IS_NO)
