"""Secrets by reference: `${env:NAME}` and `${file:/path}`, resolved when a target is created and never printed."""

import os
import re
from pathlib import Path

from headrace.errors import ConfigError
from headrace.flow.secret import Secret

_REFERENCE = re.compile(r"^\$\{(env|file):([^}]+)\}$")


def resolve_secret(text: str, setting: str) -> str | Secret:
    """Return the text, or the secret that it refers to. `place` is the name of the setting in error messages."""
    reference = _REFERENCE.match(text.strip())
    if reference is None:
        return text
    kind, name = reference.groups()
    value = os.environ.get(name) if kind == "env" else _from_file(Path(name), setting)
    if value is None:
        raise ConfigError(
            f"{setting} refers to the environment variable {name}.",
            why="The variable is not set.",
            remedy=f"Set {name} for this process.",
            code="HR-103",
        )
    return Secret(text.strip(), value)


def _from_file(path: Path, setting: str) -> str:
    try:
        mode = path.stat().st_mode
        value = path.read_text().rstrip("\n")
    except OSError as error:
        raise ConfigError(
            f"{setting} refers to the file {path}.",
            why=f"It cannot be read: {os.strerror(error.errno or 0)}.",
            remedy="Correct the path, or make the file readable for this user.",
            code="HR-103",
        ) from error
    if mode & 0o077:
        raise ConfigError(
            f"{setting} refers to the file {path}.",
            why="Other users of this machine can read it.",
            remedy=f"Run `chmod 600 {path}`.",
            code="HR-104",
        )
    return value
