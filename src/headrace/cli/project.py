"""The options that name a project, a target and flows, and what they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.project.project import Project
from headrace.stack.local import LocalStack

ProjectOption = Annotated[Path, typer.Option("--project", help="The folder with headrace.yml.")]
TargetOption = Annotated[
    str | None, typer.Option("--target", help="The target of headrace.yml. Default: default_target.")
]
FlowsArgument = Annotated[list[str] | None, typer.Argument(help="The flows, by name. Default: all of the project.")]

HERE = Path()


def opened(folder: Path, target: str | None, names: list[str] | None) -> tuple[Project, Target, list[Flow]]:
    """Return the project of a folder, the target and the flows that the command line names."""
    project = Project.open(folder)
    chosen = project.target(target, lambda: _local_broker(project))
    return project, chosen, project.flows(names or ())


def _local_broker(project: Project) -> str | None:
    """Return the address of the project's own broker, if `headrace up` has started it."""
    running = {part.name: part for part in LocalStack(project.home).ps() if part.state == "running"}
    return running["kafka"].address if "kafka" in running else None
