"""A small working project, made from the files in `template`, each of which ends in `.tmpl`."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from importlib import resources
from pathlib import Path

from headrace.errors import ConfigError

_NAME = re.compile(r"^[a-z][a-z0-9_-]*$")
_GITIGNORE = ".headrace/\n__pycache__/\n"


def make_project(name: str, into: Path) -> Path:
    """Make the folder NAME with a flow, headrace.yml and a test. It appears whole or not at all."""
    if not _NAME.match(name):
        raise ConfigError(
            f"'{name}' cannot be the name of a project.",
            why="A name begins with a letter and holds a-z, 0-9, _ and - only.",
            state="Nothing was made.",
            remedy="Choose a name like 'orders' or 'web-shop'.",
            code="HR-130",
        )
    folder = into / name
    if folder.exists():
        raise ConfigError(
            f"{folder} exists already.",
            why="A new project is made in a folder of its own.",
            state="Nothing was changed.",
            remedy="Choose another name, or remove the folder.",
            code="HR-131",
        )
    try:
        beside = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=into))
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be made.",
            why=f"{into.absolute()}: {os.strerror(error.errno or 0)}.",
            state="Nothing was made.",
            remedy="Make the folder writable, or go to another one.",
            code="HR-132",
        ) from error
    try:
        for file in resources.files("headrace.project").joinpath("template").iterdir():
            (beside / file.name.removesuffix(".tmpl")).write_text(file.read_text().replace("$name", name))
        (beside / ".gitignore").write_text(_GITIGNORE)
        beside.chmod(0o755)
        beside.rename(folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return folder
