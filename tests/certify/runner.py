"""Run the long proofs, each as a pytest process of its own, and keep their results: `make certify`.

    python tests/certify/runner.py --list
    python tests/certify/runner.py --only kafka --workers 1

A case that passed is not repeated until the code changes. Results, logs and temporary folders are in `.certify/`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil
from progress import CaseProgress, Running
from proofs import CASES, Case, select_cases
from report import DATA, PAGE, table_rows, terminal_table, write_docs
from results import PASSED, Result, code_digest, load_results, needs_run, outcome_of, read_junit, save_results
from rich.console import Console

ROOT = Path(__file__).parents[2]
# Every process of a case inherits this variable. Brokers and drivers leave the process group but keep the variable.
MARK = "HEADRACE_CERTIFY_CASE"
# An interrupted pytest stops its broker, its databases and Spark. That takes seconds, more on a busy machine.
GRACE_SECONDS = 30.0
POLL_SECONDS = 0.1
# A process may start another one while the list of processes is read.
KILL_ROUNDS = 20


def start_case(case: Case, root: Path, folder: Path) -> Running:
    """Start pytest in a session of its own, so that Ctrl-C in the terminal reaches only the runner."""
    log, junit = folder / "logs" / f"{case.name}.log", folder / "junit" / f"{case.name}.xml"
    temporary = folder / "tmp" / case.name
    for path in (log, junit, temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
    junit.unlink(missing_ok=True)
    kill_processes(temporary)  # a runner that was killed with SIGKILL could not stop them
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-q"]
    command += [f"--junitxml={junit}", f"--basetemp={temporary}", *case.tests]
    # Options of the caller's shell could deselect tests.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    digest, started = code_digest(root), datetime.now(UTC)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=inherited | {MARK: str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Running(case, process, log, junit, temporary, digest, started, time.monotonic())


def finish_case(running: Running, root: Path) -> tuple[Result, bool]:
    """Return the result of a case whose pytest has ended, and whether the code changed while it ran."""
    seconds = time.monotonic() - running.clock
    kill_processes(running.temporary)
    report = read_junit(running.junit)
    outcome = outcome_of(running.process.returncode, report)
    code_changed = code_digest(root) != running.digest
    if outcome == PASSED:
        # After a failure it stays: the logs of brokers and drivers are in it.
        shutil.rmtree(running.temporary, ignore_errors=True)
        # A mix of old and new code proves nothing about either.
        outcome = "code changed" if code_changed else PASSED
    started = running.started.isoformat(timespec="milliseconds")
    return (
        Result(running.case.name, running.digest, outcome, report.tests, report.skipped, started, seconds),
        code_changed,
    )


def run_cases(
    cases: Sequence[Case],
    *,
    root: Path,
    folder: Path,
    workers: int,
    results: dict[str, Result],
    progress: CaseProgress,
    signals: Sequence[int],
    grace: float,
) -> None:
    """Run the cases, so many at a time, until all have ended or a signal arrives. Saves each result immediately."""
    waiting, running = list(cases), list[Running]()
    try:
        while (waiting or running) and not signals:
            while waiting and len(running) < workers:
                running.append(start_case(waiting.pop(0), root, folder))
                progress.start(running[-1])
            for ended in [entry for entry in running if entry.process.poll() is not None]:
                running.remove(ended)
                result, code_changed = finish_case(ended, root)
                results[result.case] = result
                save_results(folder / "results.json", results)
                progress.finish(ended, result, code_changed=code_changed)
            time.sleep(POLL_SECONDS)
    finally:
        stop_cases(running, grace, hurry=lambda: len(signals) > 1)


def stop_cases(running: Sequence[Running], grace: float, hurry: Callable[[], bool]) -> None:
    """Stop cases and every process that they started. A second signal ends the grace period.

    SIGINT comes first, because pytest then tears its fixtures down and stops their brokers. After SIGTERM it would not.
    """
    for entry in running:
        with contextlib.suppress(ProcessLookupError):
            entry.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and not hurry() and any(entry.process.poll() is None for entry in running):
        time.sleep(POLL_SECONDS)
    for entry in running:
        if entry.process.poll() is None:
            os.killpg(entry.process.pid, signal.SIGKILL)
            entry.process.wait()
        kill_processes(entry.temporary)


def kill_processes(temporary: Path) -> None:
    """Kill every process of a case, also those in sessions of their own whose parents have ended."""
    for _ in range(KILL_ROUNDS):
        killed = False
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.environ().get(MARK) == str(temporary):
                    process.kill()
                    killed = True
        if not killed:
            return
        time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collect the signals that stop a run. The loop looks at the list, so a signal never interrupts a write."""
    signals: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, lambda number, _: signals.append(number)) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="tests/certify/run",
        description="Run the long proofs. A case that passed is not repeated for the same code.",
    )
    parser.add_argument(
        "--only", nargs="+", action="extend", default=[], metavar="WORD", help="parts or names of cases"
    )
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="cases that run at the same time")
    parser.add_argument("--again", action="store_true", help="repeat cases that passed")
    parser.add_argument("--list", action="store_true", help="show the cases and their results, and run nothing")
    parser.add_argument("--keep-docs", action="store_true", help=f"do not write {PAGE} and {DATA}")
    options = parser.parse_args(arguments)
    if options.workers < 1:
        parser.error("--workers must be at least 1")
    return options


def main(
    arguments: Sequence[str] | None = None,
    *,
    root: Path = ROOT,
    cases: Sequence[Case] = CASES,
    grace: float = GRACE_SECONDS,
) -> int:
    """Run the selected cases. Return 0 if all of them have passed, 1 if not, 2 for wrong usage, 130 after a signal."""
    options = parse_arguments(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    try:
        selected = select_cases(cases, options.only)
    except LookupError as error:
        sys.stderr.write(f"{error.args[0]}\n")
        return 2
    folder = root / ".certify"
    folder.mkdir(exist_ok=True)
    digest = code_digest(root)
    if options.list:
        results = load_results(folder / "results.json")
        for case, (name, proves, outcome, *_) in zip(selected, table_rows(selected, results, digest), strict=True):
            console.out(f"{case.part:<10}  {name:<16}  {outcome:<10}  {proves}", highlight=False)
        return 0

    with (folder / "lock").open("w") as lock, caught_signals() as signals:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write(f"Another `make certify` runs in {root}. Wait for its end, or stop it.\n")
            return 2
        results = load_results(folder / "results.json")
        if options.again:
            # They are dropped first: a run that is interrupted here is resumed without --again.
            results = {name: result for name, result in results.items() if name not in {case.name for case in selected}}
            save_results(folder / "results.json", results)
        remaining = [case for case in selected if needs_run(results.get(case.name), digest)]
        progress = CaseProgress(console, len(selected), len(selected) - len(remaining))
        with progress.bar:
            run_cases(
                remaining,
                root=root,
                folder=folder,
                workers=options.workers,
                results=results,
                progress=progress,
                signals=signals,
                grace=grace,
            )
        digest = code_digest(root)
        failed = [case.name for case in selected if needs_run(results.get(case.name), digest)]
        if signals:
            passed = f"{len(selected) - len(failed)} of {len(selected)} cases have passed"
            command = "The same command without --again" if options.again else "The same command"
            console.out(f"Interrupted: {passed}. {command} runs only the others.", highlight=False)
            return 130
        console.print(terminal_table(table_rows(selected, results, digest)))
        return max(int(bool(failed)), _update_docs(root, cases, results, digest, console, keep_docs=options.keep_docs))


def _update_docs(
    root: Path, cases: Sequence[Case], results: dict[str, Result], digest: str, console: Console, *, keep_docs: bool
) -> int:
    """Write the two files in docs/ if every case has passed. Return 1 if they should be written and cannot be."""
    missing = [case.name for case in cases if needs_run(results.get(case.name), digest)]
    if keep_docs or missing:
        reason = f"no passed result for this code: {', '.join(missing)}" if missing else "--keep-docs"
        console.out(f"{PAGE} and {DATA} are unchanged ({reason}).", highlight=False)
        return 0
    try:
        write_docs(root, cases, results, digest)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    console.out(f"Wrote {PAGE} and {DATA}.", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
