"""`headrace down`: stop the local parts; with `--wipe` delete their data too."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.home import DEFAULT_HOME, HomeOption
from headrace.cli.output import ANSWER_IS_NO, USAGE, JsonOption, YesOption, emit, err, out
from headrace.cli.progress import shown
from headrace.demos.runner import delete_demo_data
from headrace.stack.local import LocalStack

WipeOption = Annotated[bool, typer.Option("--wipe", help="Delete the parts' data too. Asks first.")]


def down_command(
    *,
    home: HomeOption = DEFAULT_HOME,
    wipe: WipeOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Stop the local parts and keep their data."""
    stack = LocalStack(home)
    if wipe and not yes:
        _ask(stack, json=json)
    with shown(json=json) as show:
        stopped = stack.down(show.event)
        wiped = stack.wipe(show.event) if wipe else ()
        if wipe:
            delete_demo_data(home)
    if json:
        emit({"ok": True, "stopped": list(stopped), "wiped": list(wiped)})
    elif wiped:
        out.print(f"Deleted the data of: {', '.join(wiped)}.")
    elif stopped:
        out.print(f"Stopped: {', '.join(stopped)}. The data is kept; `headrace up` continues with it.")
    else:
        out.print("Nothing was running." if not wipe else "There was nothing to delete.")


def _ask(stack: LocalStack, *, json: bool) -> None:
    """Name what would be deleted and let a person decide; a machine has to say `--yes`."""
    if json:
        emit({"ok": False, "error": "`down --wipe --json` deletes data and cannot ask: add --yes."})
        raise typer.Exit(USAGE)
    megabytes = sum(part.data_bytes for part in stack.ps()) / 1e6
    err.print(
        f"This deletes every topic, record and table in {stack.folder} ({megabytes:.1f} MB), "
        "and what demos made of them."
    )
    if not typer.confirm("Delete it?", default=False, err=True):
        err.print("Nothing was deleted, nothing was stopped.")
        raise typer.Exit(ANSWER_IS_NO)
