"""`headrace up`: start the local services that are not running yet."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.home import DEFAULT_HOME, HomeOption
from headrace.cli.output import JsonOption, emit, out
from headrace.cli.progress import progress_reporter
from headrace.stack.local import DEFAULT_PARTS, LocalStack
from headrace.stack.postgres import ROLE

WithOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with", metavar="PART", help="Also start this service: postgres, mariadb, connect. May be repeated."
    ),
]


def up_command(*, home: HomeOption = DEFAULT_HOME, more: WithOption = None, json: JsonOption = False) -> None:
    """Start the local Kafka broker and wait until it answers. Does nothing if it is running already."""
    with progress_reporter(json=json) as reporter:
        running = LocalStack(home).up(
            (*DEFAULT_PARTS, *(more or ())), on_event=reporter.event, on_progress=reporter.jar
        )
    if json:
        emit(
            {
                "ok": True,
                "bootstrap": running.bootstrap,
                "parts": running.addresses,
                "adopted": list(running.adopted),
            }
        )
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
