"""The `--home` option, the same for every command that reads or changes the local state."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.flow.target import Database
from headrace.stack.local import LocalStack
from headrace.stack.postgres import database

HomeOption = Annotated[
    Path,
    typer.Option("--home", envvar="HEADRACE_HOME", help="The folder of the local state: parts, checkpoints."),
]

DEFAULT_HOME = Path(".headrace")


def local_broker(home: Path) -> str | None:
    """Return the address of the broker that `headrace up` runs in a home, or None when none runs there."""
    return _running(home).get("kafka")


def local_database(home: Path) -> Database | None:
    """Return how to reach the Postgres that `headrace up` runs in a home, or None when none runs there."""
    return database(LocalStack(home).place("postgres")) if "postgres" in _running(home) else None


def _running(home: Path) -> dict[str, str]:
    return {part.name: part.address for part in LocalStack(home).ps() if part.state == "running"}
