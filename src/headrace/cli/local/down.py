"""`headrace down`: stop the local services; with `--wipe` also delete their data."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.home import DEFAULT_HOME, HomeOption
from headrace.cli.output import JsonOption, YesOption, confirm, emit, err, out, require_yes
from headrace.cli.progress import progress_reporter
from headrace.demos.runner import delete_demo_data
from headrace.stack.local import LocalStack

WipeOption = Annotated[bool, typer.Option("--wipe", help="Also delete the data. Asks first.")]


def down_command(
    *,
    home: HomeOption = DEFAULT_HOME,
    wipe: WipeOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
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
