"""`headrace up`, `down` and `ps`: start, stop and list the local services; `headrace doctor`: check this machine."""

from dataclasses import asdict
from textwrap import indent
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from headrace.cli.output import ANSWER_IS_NO, JsonOption, YesOption, confirm, emit, err, out, require_yes
from headrace.cli.progress import progress_reporter
from headrace.cli.project import DEFAULT_HOME, HomeOption
from headrace.demos.runner import delete_demo_data
from headrace.operate.doctor import run_health_checks
from headrace.stack.local import DEFAULT_PARTS, LocalStack
from headrace.stack.postgres import ROLE

WithOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with", metavar="PART", help="Also start this service: postgres, mariadb, connect. May be repeated."
    ),
]
WipeOption = Annotated[bool, typer.Option("--wipe", help="Also delete the data. Asks first.")]

COLOURS = {"running": "green", "stopped": "dim", "crashed": "bold red"}
LEVEL_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def up_command(*, home: HomeOption = DEFAULT_HOME, more: WithOption = None, json: JsonOption = False) -> None:
    """Start the local Kafka broker and wait until it answers. Does nothing if it is running already."""
    with progress_reporter(json=json) as reporter:
        running = LocalStack(home).up(
            (*DEFAULT_PARTS, *(more or ())), on_event=reporter.event, on_progress=reporter.jar
        )
    if json:
        emit({"ok": True, "bootstrap": running.bootstrap, "parts": running.addresses, "adopted": list(running.adopted)})
        return
    out.print(f"Kafka is up at [bold]{running.bootstrap}[/]. `headrace ps` shows it, `headrace down` stops it.")
    for part, title in (("postgres", "Postgres"), ("mariadb", "MariaDB")):
        if part in running.addresses:
            out.print(
                f"{title} is up at [bold]{running.addresses[part]}[/]: database and role {ROLE}, the password in "
                f"{LocalStack(home).files(part).folder / 'password'}."
            )
    if "connect" in running.addresses:
        out.print(f"Kafka Connect is up at [bold]{running.addresses['connect']}[/].")


def down_command(
    *, home: HomeOption = DEFAULT_HOME, wipe: WipeOption = False, yes: YesOption = False, json: JsonOption = False
) -> None:
    """Stop the local services and keep their data."""
    stack = LocalStack(home)
    if wipe:
        require_yes("`down --wipe --json` deletes data", yes=yes, json=json)
    if wipe and not yes:
        _confirm_wipe(stack)
    with progress_reporter(json=json) as reporter:
        stopped = stack.down(reporter.event)
        wiped = stack.wipe(reporter.event) if wipe else ()
        if wipe:
            delete_demo_data(home)
    if json:
        emit({"ok": True, "stopped": list(stopped), "wiped": list(wiped)})
    elif wiped:
        out.print(f"Deleted the data of: {', '.join(wiped)}.")
    elif stopped:
        out.print(f"Stopped: {', '.join(stopped)}. The data is kept; `headrace up` uses it again.")
    else:
        out.print("Nothing was running." if not wipe else "There was nothing to delete.")


def _confirm_wipe(stack: LocalStack) -> None:
    """Print what would be deleted and ask for confirmation."""
    megabytes = sum(part.data_bytes for part in stack.ps()) / 1e6
    err.print(f"This deletes every topic, record and table in {stack.folder} ({megabytes:.1f} MB), and all demo data.")
    confirm("Delete it?", "Nothing was deleted, nothing was stopped.")


def ps_command(*, home: HomeOption = DEFAULT_HOME, json: JsonOption = False) -> None:
    """List the local services and their state."""
    parts = LocalStack(home).ps()
    if json:
        emit({"ok": True, "parts": [asdict(part) for part in parts]})
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("part", "state", "address", "pid", "since", "data", "log"):
        table.add_column(heading, overflow="fold")
    for part in parts:
        table.add_row(
            part.name,
            f"[{COLOURS[part.state]}]{part.state}[/]",
            part.address or "-",
            str(part.pid or "-"),
            part.since.astimezone().strftime("%Y-%m-%d %H:%M:%S") if part.since else "-",
            f"{part.data_bytes / 1e6:.1f} MB",
            str(part.log) if part.log.exists() else "-",
        )
    out.print(table)
    if any(part.state == "crashed" for part in parts):
        out.print("A service ended without being stopped. Its data is kept: `headrace up` restarts it.")


def doctor_command(*, home: HomeOption = DEFAULT_HOME, json: JsonOption = False) -> None:
    """Check Python, Java, jars, PostgreSQL, disk, memory and ports. Exit code 1 when a run is impossible."""
    findings = run_health_checks(home)
    failed = [finding for finding in findings if finding.level == "fail"]
    if json:
        emit({"ok": not failed, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            level = (f"{finding.level:<5}", LEVEL_COLOURS[finding.level])
            out.print(Text.assemble(level, f"{finding.name:<14}", finding.detail))
            if finding.remedy:
                out.print(Text(indent(finding.remedy, " " * 19), style="dim"))
    if failed:
        raise typer.Exit(ANSWER_IS_NO)
