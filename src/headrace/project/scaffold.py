"""Create a small working project from the `.tmpl` files in `template`."""

import os
import re
import shutil
import tempfile
from importlib import resources
from pathlib import Path

from headrace.errors import ConfigError

_NAME = re.compile(r"^[a-z][a-z0-9_-]*$")
_GITIGNORE = ".headrace/\n__pycache__/\n"


def create_project(name: str, into: Path) -> Path:
    """Create the folder NAME with a flow, headrace.yml and a test, in one step: complete or not at all."""
    if not _NAME.match(name):
        raise ConfigError(
            f"'{name}' cannot be the name of a project.",
            why="A name starts with a letter and contains only a-z, 0-9, _ and -.",
            state="Nothing was created.",
            remedy="Choose a name like 'orders' or 'web-shop'.",
            code="HR-130",
        )
    folder = into / name
    if folder.exists():
        raise ConfigError(
            f"{folder} exists already.",
            why="A new project is created in a new folder.",
            state="Nothing was changed.",
            remedy="Choose another name, or remove the folder.",
            code="HR-131",
        )
    try:
        staging = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=into))
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be created.",
            why=f"{into.absolute()}: {os.strerror(error.errno or 0)}.",
            state="Nothing was created.",
            remedy="Make the folder writable, or go to another one.",
            code="HR-132",
        ) from error
    try:
        for file in resources.files("headrace.project").joinpath("template").iterdir():
            (staging / file.name.removesuffix(".tmpl")).write_text(file.read_text().replace("$name", name))
        (staging / ".gitignore").write_text(_GITIGNORE)
        staging.chmod(0o755)
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return folder
