"""`headrace erase`: take a row out of everything that was made of it, with a report that proves it."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import ANSWER_IS_NO, USAGE, JsonOption, YesOption, emit, err, out
from headrace.cli.project import HERE, ProjectOption, TargetOption, opened
from headrace.cli.session import opened_session
from headrace.operate.erase import report as erase_report
from headrace.operate.erase.erase import ErasureRequest, open_erasure
from headrace.operate.erase.plan import ErasePlan


def erase_command(  # noqa: PLR0913 - the options of the command line
    *,
    table: Annotated[str, typer.Option("--table", help="The source table, with its schema or without.")] = "",
    key: Annotated[
        list[str] | None, typer.Option("--key", help="The row's key; COLUMN=VALUE for each column of a longer one.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", help="Where the key is: PATH=COLUMN for a table below the lake, COLUMN for all."),
    ] = None,
    not_personal: Annotated[
        list[str] | None, typer.Option("--except", help="A column of the row whose texts are not looked for.")
    ] = None,
    keep_tombstones: Annotated[
        bool, typer.Option("--keep-tombstones", help="Keep the key in the mirror's tombstones.")
    ] = False,
    reference: Annotated[str, typer.Option("--reference", help="A case number, for the report.")] = "",
    report: Annotated[
        Path | None, typer.Option("--report", help="The folder for the report. Default: erasures of the project.")
    ] = None,
    verify: Annotated[
        Path | None, typer.Option("--verify", help="Only say whether a report is as it was written.")
    ] = None,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Erase a row from tables, their past, quarantine and ledgers; scan all files for it; write a report."""
    if verify is not None:
        _verify(verify, key or [], json=json)
        return
    wrong = (
        "`erase` needs --table and --key."
        if not table or not key
        else "`erase --json` changes tables and cannot ask: add --yes."
        if json and not yes
        else ""
    )
    if wrong:
        if json:
            emit({"ok": False, "error": wrong})
        else:
            err.print(wrong, markup=False)
        raise typer.Exit(USAGE)
    opened_project, chosen, flows = opened(project, target, None)
    request = ErasureRequest(table, tuple(key or ()), tuple(column or ()), tuple(not_personal or ()), keep_tombstones)
    began = datetime.now(UTC)
    with ExitStack() as stack:
        spark = opened_session("erase", opened_project, chosen, stack, json=json)
        erasure = stack.enter_context(open_erasure(spark, chosen, flows, request, opened_project.home))
        plan = erasure.plan()
        _agreed(plan, yes=yes, json=json)
        done = erasure.apply(plan)
        ended = datetime.now(UTC)
        figures = erase_report.report(done, began, ended, reference)
        path = erase_report.write(report or opened_project.folder / "erasures", figures, ended)
        if done.is_clean:
            erasure.finish()
    if json:
        emit({"ok": done.is_clean, "report": str(path), **figures})
    else:
        _tell(done, path)
    if not done.is_clean:
        raise typer.Exit(ANSWER_IS_NO)


def _agreed(plan: ErasePlan, *, yes: bool, json: bool) -> None:
    """Say what an erasure does, and let a person decide."""
    if json:
        return
    for line in plan.lines():
        err.print(line, markup=False)
    if plan.due and not yes and not typer.confirm("Erase it? This cannot be undone.", default=False, err=True):
        err.print("Nothing was changed.")
        raise typer.Exit(ANSWER_IS_NO)


def _tell(done: ErasePlan, path: Path) -> None:
    rows = sum(place.erasure.rows for place in done.places if place.erasure)
    files = sum((place.after or place.before).files for place in done.places)
    out.print(f"Erased: {rows} row(s) from {len(done.due)} table(s). Looked through afterwards: {files} files.")
    for place in (each for each in done.places if each.outcome == "left"):
        out.print(f"Left in {place.path}: {place.remedy}", markup=False)
    for each in (one for one in done.beyond if one.holds == "yes"):
        out.print(f"Left in {each.place}: {each.removes}", markup=False)
    if not done.is_clean:
        out.print("What is looked for is kept below .headrace/erasures, for the next run of this command.")
    out.print(f"Report: {path}", markup=False)


def _verify(path: Path, key: list[str], *, json: bool) -> None:
    pairs = [each.partition("=") if "=" in each else ("", "=", each) for each in key]
    verdict = erase_report.verify(path, {name: value for name, _, value in pairs} if key else None)
    if json:
        emit({"ok": verdict.holds, "differ": list(verdict.differ), "about": verdict.about, "erased": verdict.erased})
    else:
        for name in verdict.differ:
            out.print(f"{name} is not what was written: its sha256 is another one.", markup=False)
        if verdict.about is not None:
            out.print("It is about this key." if verdict.about else "It is not about this key.")
        if not verdict.differ:
            told = "everything was erased" if verdict.erased else "something was left"
            out.print(f"The report is as it was written; it says that {told}.")
    if not verdict.holds:
        raise typer.Exit(ANSWER_IS_NO)
