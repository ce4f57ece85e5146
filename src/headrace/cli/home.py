"""The `--home` option, the same for every command that reads or changes the local state."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.stack.local import LocalStack

HomeOption = Annotated[
    Path,
    typer.Option("--home", envvar="HEADRACE_HOME", help="The folder of the local state: broker, checkpoints."),
]

DEFAULT_HOME = Path(".headrace")


def local_broker(home: Path) -> str | None:
    """Return the address of the broker that `headrace up` runs in a home, or None when none runs there."""
    running = {part.name: part for part in LocalStack(home).ps() if part.state == "running"}
    return running["kafka"].address if "kafka" in running else None
