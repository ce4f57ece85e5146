"""`headrace check`: find problems in flows before they run."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from headrace.cli.output import ANSWER_IS_NO, JsonOption, emit, out
from headrace.cli.project import HERE, FlowsArgument, ProjectOption, TargetOption, load_project
from headrace.errors import ConfigError
from headrace.flow.checks.check import check, sort_by_severity
from headrace.flow.checks.finding import Finding, Severity
from headrace.flow.checks.operators import QueryPlan, UnknownPlan
from headrace.flow.target import Target
from headrace.operate.preflight.batch_size import measure_rates
from headrace.operate.preflight.plans import read_query_plans, task_slot_findings
from headrace.operate.preflight.state_findings import state_findings
from headrace.project.project import Project

_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def check_command(
    flows: FlowsArgument = None,
    *,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    quick: Annotated[bool, typer.Option("--quick", help="Do not check query plans; Spark is not started.")] = False,
    json: JsonOption = False,
) -> None:
    """Check the flows of a project without starting them. Exits with 1 when a flow could not run.

    Plans each transform on a small local Spark, without a broker, and checks its operators against output mode and
    trigger. Compares batch sizes with the rates of the target's broker and folders, if they are reachable. Compares
    state settings with the checkpoints, if they are on a local disk.
    """
    opened_project = Project.open(project)
    flows_to_check = opened_project.flows(flows or ())
    run_target = _target(project, target)
    plan_results: dict[str, QueryPlan | UnknownPlan] = {}
    if not quick:
        # A flow with errors is not planned: its transform would fail for the same reason, with a worse message.
        plannable = [
            flow for flow in flows_to_check if all(finding.severity is not Severity.ERROR for finding in check([flow]))
        ]
        plan_results = read_query_plans(plannable, run_target, log=opened_project.home / "logs" / "check.log")
    findings = check(
        flows_to_check, measure_rates(flows_to_check, run_target) if run_target is not None else {}, plan_results
    )
    if run_target is not None:
        findings = sort_by_severity(
            [*findings, *task_slot_findings(flows_to_check, run_target), *state_findings(flows_to_check, run_target)]
        )
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    planned = [name for name, plan in plan_results.items() if isinstance(plan, QueryPlan)]
    if json:
        emit(
            {
                "ok": not errors,
                "flows": [flow.name for flow in flows_to_check],
                "planned": planned,
                "findings": [finding.as_dict() for finding in findings],
            }
        )
    else:
        for finding in findings:
            _print_finding(finding)
        out.print(
            f"{len(flows_to_check)} flows, {len(errors)} errors, {len(findings) - len(errors)} warnings and notes."
        )
        if len(planned) < len(flows_to_check):
            why = "by --quick" if quick else "for the reasons above"
            out.print(f"The plans of {len(flows_to_check) - len(planned)} flows were not checked, {why}.", markup=False)
    if errors:
        raise typer.Exit(ANSWER_IS_NO)


def _target(folder: Path, name: str | None) -> Target | None:
    """Return the target, or None if its secrets are not available and it was not named explicitly."""
    try:
        return load_project(folder, name, None)[1]
    except ConfigError:
        if name is not None:
            raise
        return None


def _print_finding(finding: Finding) -> None:
    out.print(
        Text.assemble((f"{finding.code} {finding.severity:<8}", _COLOURS[finding.severity]), (finding.place, "bold"))
    )
    out.print(f"  {finding.reason}", markup=False)
    out.print(f"  {finding.remedy}", markup=False)
