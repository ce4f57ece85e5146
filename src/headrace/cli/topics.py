"""`headrace topics`: make and list the topics of a target's broker."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.output import JsonOption, emit, out
from headrace.cli.project import HERE, ProjectOption, TargetOption, opened
from headrace.clients.kafka import list_topics
from headrace.clients.topics import create_topics

topics_app = typer.Typer(help="Make and list topics.", no_args_is_help=True)


@topics_app.command("create")
def create_command(
    names: Annotated[list[str], typer.Argument(help="The topics.")],
    *,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of each: the most tasks that can read it.")] = 2,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    json: JsonOption = False,
) -> None:
    """Make topics that are not there. One that is there is never changed; other partitions than asked are an error."""
    _project, chosen, _flows = opened(project, target, None)
    list_topics(chosen)  # says where the broker should be, when the target does not
    created = create_topics(chosen.kafka, dict.fromkeys(names, partitions))
    if json:
        emit({"ok": True, "created": list(created)})
        return
    for name in names:
        out.print(f"{name}: {'created' if name in created else 'is there already'}", markup=False)


@topics_app.command("list")
def list_command(*, project: ProjectOption = HERE, target: TargetOption = None, json: JsonOption = False) -> None:
    """List the topics and their partitions."""
    _project, chosen, _flows = opened(project, target, None)
    found = list_topics(chosen)
    if json:
        emit({"ok": True, "topics": found})
        return
    for name, partitions in found.items():
        out.print(f"{name}  {partitions} partitions", markup=False)
