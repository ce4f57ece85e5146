"""What a run prints while its cases run: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from proofs import Case
from report import duration
from results import Result
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

# Room for a traceback and pytest's summary.
LOG_LINES = 40


@dataclass(frozen=True)
class Running:
    """A case whose pytest process runs."""

    case: Case
    process: subprocess.Popen[bytes]
    log: Path
    junit: Path
    temporary: Path
    # Of the code that the case started with.
    digest: str
    started: datetime
    # The same moment on the monotonic clock.
    clock: float


class CaseProgress:
    """The progress bar. Where stdout is no terminal, a line for each case that starts or ends."""

    def __init__(self, console: Console, total: int, finished: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
        self._console, self._total, self._finished = console, total, finished
        self.bar = Progress(
            *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self._all = self.bar.add_task("cases", total=total, completed=finished, note=self._count())
        self._running: dict[str, TaskID] = {}

    def start(self, running: Running) -> None:
        """Show a case that starts."""
        name = running.case.name
        self._running[name] = self.bar.add_task(f"  {name}", total=None, note="running")
        if not self._console.is_terminal:
            self._print(f"started   {name}, log: {running.log}")

    def finish(self, running: Running, result: Result, *, code_changed: bool) -> None:
        """Show how a case ended, with the end of its log if it did not pass."""
        self._finished += 1
        self.bar.remove_task(self._running.pop(result.case))
        self.bar.update(self._all, completed=self._finished, note=self._count())
        tests = f"{result.tests} test" if result.tests == 1 else f"{result.tests} tests"
        self._print(f"finished  {result.case}: {result.outcome}, {tests}, {duration(result.seconds)} ({self._count()})")
        for skipped in result.skipped:
            self._print(f"    skipped: {skipped}")
        if code_changed:
            self._print(f"Warning: the code changed while {result.case} ran. Its result does not count.")
        if running.process.returncode != 0:
            self._print(f"--- {result.case}: end of {running.log}")
            lines = running.log.read_text(errors="replace").splitlines()
            self._print("\n".join(f"    {line}" for line in lines[-LOG_LINES:]))

    def _count(self) -> str:
        return f"{self._finished} of {self._total}"

    def _print(self, text: str) -> None:
        # Not `print`: it would wrap the lines of a log, and read brackets in them as markup.
        self._console.out(text, highlight=False)
