"""`headrace doctor`: check this machine and print how to fix each problem."""

from dataclasses import asdict
from textwrap import indent

import typer
from rich.text import Text

from headrace.cli.home import DEFAULT_HOME, HomeOption
from headrace.cli.output import ANSWER_IS_NO, JsonOption, emit, out
from headrace.operate.doctor import run_health_checks

COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor_command(*, home: HomeOption = DEFAULT_HOME, json: JsonOption = False) -> None:
    """Check Python, Java, jars, PostgreSQL, disk, memory and ports. Exit code 1 when a run is impossible."""
    findings = run_health_checks(home)
    failed = [finding for finding in findings if finding.level == "fail"]
    if json:
        emit({"ok": not failed, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            level = (f"{finding.level:<5}", COLOURS[finding.level])
            out.print(Text.assemble(level, f"{finding.name:<14}", finding.detail))
            if finding.remedy:
                out.print(Text(indent(finding.remedy, " " * 19), style="dim"))
    if failed:
        raise typer.Exit(ANSWER_IS_NO)
