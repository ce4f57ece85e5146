"""`headrace check`: what is wrong with the flows, before they run."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.text import Text

from headrace.cli.output import ANSWER_IS_NO, JsonOption, emit, out
from headrace.cli.project import HERE, FlowsArgument, ProjectOption, TargetOption, opened
from headrace.errors import ConfigError
from headrace.flow.check import by_weight, check
from headrace.flow.finding import Finding, Severity
from headrace.flow.target import Target
from headrace.operate.measure import measured
from headrace.operate.state_findings import state_findings
from headrace.project.project import Project

_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def check_command(
    flows: FlowsArgument = None,
    *,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    json: JsonOption = False,
) -> None:
    """Judge the flows of a project without starting anything. Exits with 1 when one of them could not run.

    Bounds of batches are compared with the rates that the target's broker and folders show, where they answer. State is
    compared with what the checkpoints hold, where they are on a local disk.
    """
    chosen = Project.open(project).flows(flows or ())
    there = _target(project, target)
    findings = check(chosen, measured(chosen, there) if there else None)
    if there is not None:
        findings = by_weight([*findings, *state_findings(chosen, there)])
    wrong = [found for found in findings if found.severity is Severity.ERROR]
    if json:
        emit(
            {
                "ok": not wrong,
                "flows": [flow.name for flow in chosen],
                "findings": [found.as_dict() for found in findings],
            }
        )
    else:
        for found in findings:
            _print(found)
        out.print(f"{len(chosen)} flows, {len(wrong)} errors, {len(findings) - len(wrong)} other findings.")
    if wrong:
        raise typer.Exit(ANSWER_IS_NO)


def _target(folder: Path, name: str | None) -> Target | None:
    """Return the target. Where its secrets are not at hand nothing is asked there, unless it was named."""
    try:
        return opened(folder, name, None)[1]
    except ConfigError:
        if name is not None:
            raise
        return None


def _print(found: Finding) -> None:
    out.print(Text.assemble((f"{found.code} {found.severity:<8}", _COLOURS[found.severity]), (found.place, "bold")))
    out.print(f"  {found.reason}", markup=False)
    out.print(f"  {found.remedy}", markup=False)
