"""The table of results: in the terminal, in docs/proof.md and in docs/proof.json."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from proofs import Case
from results import PASSED, Result, needs_run, wall_seconds, write_atomically
from rich.markup import escape
from rich.table import Table

PAGE, DATA = "docs/proof.md", "docs/proof.json"
BEGIN, END = "<!-- certify:begin -->", "<!-- certify:end -->"
COLUMNS = ("case", "what it proves", "result", "tests", "time")

Row = tuple[str, str, str, str, str]


def duration(seconds: float) -> str:
    """Return 48 s, 3 min 02 s or 1 h 05 min."""
    seconds_only = round(seconds)
    if seconds_only < 60:
        return f"{seconds_only} s"
    if seconds_only < 3600:
        return f"{seconds_only // 60} min {seconds_only % 60:02} s"
    return f"{seconds_only // 3600} h {seconds_only % 3600 // 60:02} min"


def table_rows(cases: Sequence[Case], results: Mapping[str, Result], digest: str) -> list[Row]:
    """Return one row per case. A result for other code does not count."""
    rows: list[Row] = []
    for case in cases:
        result = results.get(case.name)
        if result is None:
            rows.append((case.name, case.proves, "not run", "", ""))
        else:
            is_stale = result.outcome == PASSED and needs_run(result, digest)
            outcome = "not run for this code" if is_stale else result.outcome
            rows.append((case.name, case.proves, outcome, str(result.tests), duration(result.seconds)))
    return rows


def terminal_table(rows: Sequence[Row]) -> Table:
    """Return the table for the terminal."""
    table = Table(*COLUMNS)
    for name, proves, outcome, tests, time in rows:
        colour = "green" if outcome == PASSED else "red"
        table.add_row(escape(name), escape(proves), f"[{colour}]{outcome}[/]", tests, time)
    return table


def markdown_table(rows: Sequence[Row]) -> str:
    """Return the table for docs/proof.md."""
    lines = [COLUMNS, ("---", "---", "---", "---:", "---:"), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def replace_block(page: str, block: str) -> str:
    """Return a page with a new text between its two markers. Raises `ValueError` if it does not have both once."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in before + after:
        raise ValueError(f"{PAGE} must contain {BEGIN} and {END} once, in this order.")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


def write_docs(root: Path, cases: Sequence[Case], results: Mapping[str, Result], digest: str) -> None:
    """Write both files. Called only when every case has a passed result for this code."""
    ordered = [results[case.name] for case in cases]
    finished = max(datetime.fromisoformat(result.started) + timedelta(seconds=result.seconds) for result in ordered)
    commit = _git(root, "rev-parse", "HEAD").strip()
    # The two files that are written here do not make the code another one.
    is_dirty = bool(_git(root, "status", "--porcelain", "--", ".", f":!{PAGE}", f":!{DATA}").strip())
    machine = _machine()
    case_seconds = sum(result.seconds for result in ordered)

    shown_commit = f"commit `{commit[:12]}`" + (" with uncommitted changes" if is_dirty else "")
    summary = (
        f"Finished on {finished:%Y-%m-%d %H:%M} UTC, {shown_commit}, {machine['cores']} cores. "
        f"Sum of the cases' times: {duration(case_seconds)}."
    )
    block = f"{markdown_table(table_rows(cases, results, digest))}\n\n{summary}"
    page = replace_block((root / PAGE).read_text(), f"\n{block}\n")
    data = {
        "digest": digest,
        "commit": commit,
        "dirty": is_dirty,
        "date": finished.isoformat(timespec="seconds"),
        "machine": machine,
        "case_seconds": round(case_seconds, 1),
        "wall_seconds": round(wall_seconds(ordered), 1),
        "cases": [
            {
                "name": case.name,
                "part": case.part,
                "proves": case.proves,
                "outcome": result.outcome,
                "tests": result.tests,
                "skipped": list(result.skipped),
                "started": result.started,
                "seconds": round(result.seconds, 1),
            }
            for case, result in zip(cases, ordered, strict=True)
        ],
    }
    write_atomically(root / DATA, json.dumps(data, indent=2) + "\n")
    write_atomically(root / PAGE, page)


def _machine() -> dict[str, int | str]:
    from headrace.stack.java import find_java  # brings PySpark: seconds that a run should not start with

    version = subprocess.run([find_java().binary, "-version"], capture_output=True, text=True, check=True)
    return {
        "cores": os.cpu_count() or 1,
        "python": platform.python_version(),
        "java": (version.stderr or version.stdout).splitlines()[0],
    }


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout
