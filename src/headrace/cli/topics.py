"""`headrace topics`: create and list the topics of a target's broker."""

from typing import Annotated

import typer

from headrace.cli.output import JsonOption, emit, out
from headrace.cli.project import HERE, ProjectOption, TargetOption, load_target
from headrace.clients.kafka import list_topics
from headrace.clients.topics import create_topics

topics_app = typer.Typer(help="Create and list topics.", no_args_is_help=True)


@topics_app.command("create")
def create_command(
    names: Annotated[list[str], typer.Argument(help="The topics.")],
    *,
    partitions: Annotated[
        int, typer.Option(min=1, help="Partitions per topic: the maximum number of tasks that read it.")
    ] = 2,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    json: JsonOption = False,
) -> None:
    """Create topics that do not exist. An existing topic is never changed; a different partition count is an error."""
    _project, run_target = load_target(project, target)
    list_topics(run_target)  # raises an error that explains what to set if the target has no broker
    created = create_topics(run_target.kafka, dict.fromkeys(names, partitions))
    if json:
        emit({"ok": True, "created": list(created)})
        return
    for name in names:
        out.print(f"{name}: {'created' if name in created else 'exists already'}", markup=False)


@topics_app.command("list")
def list_command(*, project: ProjectOption = HERE, target: TargetOption = None, json: JsonOption = False) -> None:
    """List the topics and their partitions."""
    _project, run_target = load_target(project, target)
    topics = list_topics(run_target)
    if json:
        emit({"ok": True, "topics": topics})
        return
    for name, partitions in topics.items():
        out.print(f"{name}  {partitions} partitions", markup=False)
