"""Every example of a pattern, run by the commands of its README on parts of its own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PATTERNS = ["rides", "orders", "cdc", "iot", "sales", "enrichment", "medallion"]
# Differences between a day's table and its reconciliation are what the command looks for; it then ends with 1.
MAY_END_WITH_1 = ("headrace reconcile orders",)


def commands_of(example: str) -> list[str]:
    """Return the commands of the README in their order, up to the one that stops the parts."""
    blocks = re.findall(r"```sh\n(.*?)```", (EXAMPLES / example / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line]
    return lines[: lines.index("headrace down") + 1]


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A copy of the example; its parts are stopped afterwards, whatever happened."""
    folder = tmp_path / request.param
    shutil.copytree(EXAMPLES / request.param, folder, ignore=shutil.ignore_patterns(".headrace", "__pycache__"))
    yield folder
    run("headrace down", folder)


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    python = f"{sys.executable} -m headrace"
    line = re.sub("^headrace", python, re.sub("^python", sys.executable, command, count=1), count=1)
    # A shell, as a reader has one: some commands quote or ask for the date.
    return subprocess.run(line, cwd=folder, shell=True, capture_output=True, text=True, timeout=900, check=False)  # noqa: S602


def bootstrap(folder: Path) -> str:
    """Return where `headrace up` has started the broker: port 9092 may be taken."""
    parts = json.loads(run("headrace ps --json", folder).stdout.splitlines()[-1])
    return str(next(part["address"] for part in parts["parts"] if part["name"] == "kafka"))


@pytest.mark.parametrize("project", PATTERNS, indirect=True)
def test_the_commands_of_an_example_run(project: Path):
    rows_in: list[dict[str, Any]] = []
    for command in commands_of(project.name):
        words = command
        if command.startswith("headrace generate"):
            words += f" --bootstrap {bootstrap(project)}"
        if command.startswith("headrace run"):
            words += " --json"
        done = run(words, project)
        allowed = {0, 1} if command.startswith(MAY_END_WITH_1) else {0}
        assert done.returncode in allowed, (command, done.stdout[-2000:], done.stderr[-4000:])
        if command.startswith("headrace run"):
            rows_in.append(json.loads(done.stdout.splitlines()[-1])["flows"])
    assert rows_in
    for flows in rows_in:
        assert all(figures["error"] is None and figures["rows_in"] > 0 for figures in flows.values()), flows
    assert any((project / ".headrace" / "lake").rglob("_delta_log"))
