"""The results of finished cases, and the digest of the code that they are valid for."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

PASSED = "passed"
# A change of any of these needs a new run. Pages in docs/ do not.
CODE = ("src", "tests", "examples", "pyproject.toml", "requirements*.lock")


@dataclass(frozen=True)
class Result:
    """How one case ended, and for which code."""

    case: str
    digest: str
    # "passed", or why the case did not pass.
    outcome: str
    tests: int
    skipped: tuple[str, ...]
    started: str
    seconds: float


@dataclass(frozen=True)
class Report:
    """What pytest's JUnit file says: the number of tests, how many of them passed, and which were skipped."""

    tests: int
    passed: int
    skipped: tuple[str, ...]


def code_digest(root: Path) -> str:
    """Return a SHA-256 over the path and the content of every file below `CODE` that git tracks or would track."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *CODE],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    digest = hashlib.sha256()
    for name in sorted(set(listing.stdout.split("\0")) - {""}):
        try:
            content = (root / name).read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            continue  # a tracked file that was deleted, or a repository within this one
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def needs_run(result: Result | None, digest: str) -> bool:
    """Whether a case has no passed result for the code with this digest."""
    return result is None or result.outcome != PASSED or result.digest != digest


def load_results(path: Path) -> dict[str, Result]:
    """Read the results. A missing file has none, nor has one that another version of this module wrote."""
    try:
        rows = json.loads(path.read_text())["results"]
        return {row["case"]: Result(**{**row, "skipped": tuple(row["skipped"])}) for row in rows}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}


def save_results(path: Path, results: Mapping[str, Result]) -> None:
    """Write the results in one step."""
    write_atomically(path, json.dumps({"results": [asdict(result) for result in results.values()]}, indent=2) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step: a reader sees the old content or the new one, and so does a run after a crash."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def read_junit(path: Path) -> Report:
    """Read pytest's JUnit file. Without one, or with half of one, no test counts: pytest ended before its report."""
    try:
        tests = list(ET.parse(path).getroot().iter("testcase"))  # noqa: S314 - our own pytest wrote the file
    except (FileNotFoundError, ET.ParseError):
        return Report(0, 0, ())
    skipped = tuple(
        f"{test.get('classname')}::{test.get('name')}: {reason.get('message')}"
        for test in tests
        for reason in test.iter("skipped")
    )
    passed = sum(all(test.find(tag) is None for tag in ("failure", "error", "skipped")) for test in tests)
    return Report(len(tests), passed, skipped)


def outcome_of(exit_code: int, report: Report) -> str:
    """Return "passed" if pytest passed, at least one test passed and none was skipped; otherwise the reason."""
    if exit_code != 0:
        return f"failed (exit code {exit_code})"
    if report.skipped:
        return f"{len(report.skipped)} skipped"
    return PASSED if report.passed else "no test ran"


def wall_seconds(results: Iterable[Result]) -> float:
    """Return for how long at least one case ran. Cases overlap, and a resumed run has pauses in between."""
    total, end = 0.0, 0.0
    spans = ((datetime.fromisoformat(result.started).timestamp(), result.seconds) for result in results)
    for start, seconds in sorted(spans):
        total += max(0.0, start + seconds - max(start, end))
        end = max(end, start + seconds)
    return total
