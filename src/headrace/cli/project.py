"""The options that select a project, a target and flows, and `load_project`, which resolves them."""

import os
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.home import LocalParts
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.project.project import Project

ProjectOption = Annotated[Path, typer.Option("--project", help="The folder with headrace.yml.")]
TargetOption = Annotated[
    str | None, typer.Option("--target", help="The target of headrace.yml. Default: default_target.")
]
FlowsArgument = Annotated[list[str] | None, typer.Argument(help="The flows, by name. Default: all of the project.")]

HERE = Path()


def load_project(folder: Path, target: str | None, names: list[str] | None) -> tuple[Project, Target, list[Flow]]:
    """Return the project of a folder, the target and the flows that the command line names."""
    project, selected_target = load_target(folder, target)
    return project, selected_target, project.flows(names or ())


def load_target(folder: Path, name: str | None) -> tuple[Project, Target]:
    """Return the project of a folder and a target, without importing the flows."""
    project = Project.open(folder)
    local = LocalParts(Path(os.environ.get("HEADRACE_HOME") or project.home))
    return project, project.target(name, local.broker, local.database, local.connect)
