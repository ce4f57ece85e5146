"""`headrace init` and `headrace schema`: create a small working project, and print the schema of its headrace.yml."""

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import JsonOption, emit, out
from headrace.project.project import create_project
from headrace.project.settings import ProjectSettings


def init_command(
    name: Annotated[str, typer.Argument(help="The name of the project, and of its folder.")],
    *,
    json: JsonOption = False,
) -> None:
    """Create a folder with a flow, headrace.yml and a test."""
    folder = create_project(name, Path())
    files = sorted(path.name for path in folder.iterdir())
    if json:
        emit({"ok": True, "folder": str(folder.absolute()), "files": files})
        return
    out.print(f"Created [bold]{name}[/] with {', '.join(files)}. Next:\n")
    for command, reason in (
        (f"cd {name}", ""),
        ("pytest", "test the transform"),
        ("headrace check", "check the flow before it runs"),
        ("headrace up", "start a local Kafka broker"),
        ("headrace topics create orders", "create the topic that the flow reads"),
        ("headrace run", "run the flow until Ctrl-C"),
    ):
        out.print(f"  {command:<32}[dim]{reason}[/]")


def schema_command(*, json: JsonOption = False) -> None:
    """Print the JSON schema of headrace.yml. Editors use it to complete and check the file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **ProjectSettings.model_json_schema()}
    if json:
        emit(schema)
    else:
        out.print_json(jsonlib.dumps(schema))
