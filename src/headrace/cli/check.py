"""`headrace check`: what is wrong with the flows, before they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from headrace.cli.output import ANSWER_IS_NO, JsonOption, emit, out
from headrace.cli.project import HERE, FlowsArgument, ProjectOption, TargetOption, opened
from headrace.errors import ConfigError
from headrace.flow.checks.check import check, sort_by_severity
from headrace.flow.checks.finding import Finding, Severity
from headrace.flow.checks.operators import QueryPlan, UnknownPlan
from headrace.flow.target import Target
from headrace.operate.preflight.measure import measure_rates
from headrace.operate.preflight.plans import plan_flows, slot_findings
from headrace.operate.preflight.state_findings import state_findings
from headrace.project.project import Project

_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def check_command(
    flows: FlowsArgument = None,
    *,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    quick: Annotated[bool, typer.Option("--quick", help="Do not look at the plans: starts no Spark.")] = False,
    json: JsonOption = False,
) -> None:
    """Judge the flows of a project without starting any of them. Exits with 1 when one of them could not run.

    The plan of each transform is made on a small Spark of its own, without a broker, and its operators are judged by
    output mode and trigger. Bounds of batches are compared with the rates that the target's broker and folders show,
    where they answer. State is compared with what the checkpoints hold, where they are on a local disk.
    """
    opened_project = Project.open(project)
    chosen = opened_project.flows(flows or ())
    there = _target(project, target)
    looked_at: dict[str, QueryPlan | UnknownPlan] = {}
    if not quick:
        # A flow that cannot run anyway is not planned: its transform would fail for the same reason, said worse.
        plain = [flow for flow in chosen if all(found.severity is not Severity.ERROR for found in check([flow]))]
        looked_at = plan_flows(plain, there, log=opened_project.home / "logs" / "check.log")
    findings = check(chosen, measure_rates(chosen, there) if there is not None else {}, looked_at)
    if there is not None:
        findings = sort_by_severity([*findings, *slot_findings(chosen, there), *state_findings(chosen, there)])
    wrong = [found for found in findings if found.severity is Severity.ERROR]
    planned = [name for name, plan in looked_at.items() if isinstance(plan, QueryPlan)]
    if json:
        emit(
            {
                "ok": not wrong,
                "flows": [flow.name for flow in chosen],
                "planned": planned,
                "findings": [found.as_dict() for found in findings],
            }
        )
    else:
        for found in findings:
            _print(found)
        out.print(f"{len(chosen)} flows, {len(wrong)} errors, {len(findings) - len(wrong)} other findings.")
        if len(planned) < len(chosen):
            why = "by --quick" if quick else "for the reasons above"
            out.print(f"The plans of {len(chosen) - len(planned)} flows were not looked at, {why}.", markup=False)
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
