"""`headrace ps`: list the local services with state, address, start time and data size."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table

from headrace.cli.home import DEFAULT_HOME, HomeOption
from headrace.cli.output import JsonOption, emit, out
from headrace.stack.local import LocalStack

COLOURS = {"running": "green", "stopped": "dim", "crashed": "bold red"}


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
