"""`headrace schema`: the JSON schema of headrace.yml, for editors."""

from __future__ import annotations

import json as jsonlib

from headrace.cli.output import JsonOption, emit, out
from headrace.project.settings import ProjectSettings


def schema_command(*, json: JsonOption = False) -> None:
    """Print the JSON schema of headrace.yml. Editors use it to complete and check the file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **ProjectSettings.model_json_schema()}
    if json:
        emit(schema)
    else:
        out.print_json(jsonlib.dumps(schema))
