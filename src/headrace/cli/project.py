"""The options that select a project, a target and flows, and `load_project`, which resolves them.

Also the `--home` option of every command that reads or changes local state.
"""

import os
from functools import cached_property
from pathlib import Path
from typing import Annotated

import typer

from headrace.flow.flow import Flow
from headrace.flow.target import Database, KafkaConnect, Target
from headrace.project.project import Project
from headrace.stack.local import LocalStack

HomeOption = Annotated[
    Path, typer.Option("--home", envvar="HEADRACE_HOME", help="The folder of local state: parts and checkpoints.")
]

DEFAULT_HOME = Path(".headrace")


def local_broker(home: Path) -> str | None:
    """Return the address of the broker of `headrace up` in a home folder, or None if none is running."""
    return LocalParts(home).broker()


class LocalParts:
    """The parts that `headrace up` runs in a home folder, for targets that say `local`. Looked up once."""

    def __init__(self, home: Path) -> None:
        self._stack = LocalStack(home)

    def broker(self) -> str | None:
        """Return the address of the broker, or None when none runs."""
        return self._running.get("kafka")

    def database(self, part: str) -> Database | None:
        """Return how to reach a database by the name of its part, or None when it does not run."""
        return self._stack.database(part) if part in self._running else None

    def connect(self) -> KafkaConnect | None:
        """Return how to reach Kafka Connect, or None when none runs."""
        url = self._running.get("connect")
        return None if url is None else self._stack.connect(url)

    @cached_property
    def _running(self) -> dict[str, str]:
        return {part.name: part.address for part in self._stack.ps() if part.state == "running"}


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
