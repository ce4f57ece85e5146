"""The `--home` option, the same for every command that reads or changes the local state."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HomeOption = Annotated[
    Path,
    typer.Option("--home", envvar="HEADRACE_HOME", help="The folder of the local state: broker, checkpoints."),
]

DEFAULT_HOME = Path(".headrace")
