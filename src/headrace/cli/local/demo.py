"""`headrace demo`: a whole system on this machine, with what shows it and the comparison at its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

import typer
from rich.text import Text

from headrace.cli.flow_events import figures_table, told, watermark_lines
from headrace.cli.home import DEFAULT_HOME, HomeOption
from headrace.cli.local.generate import length
from headrace.cli.output import ANSWER_IS_NO, INTERRUPTED, JsonOption, emit, err, out
from headrace.cli.progress import shown
from headrace.cli.signals import stopping
from headrace.demos.protocol import DemoSettings, default_backfill
from headrace.demos.runner import DemoCallbacks, DemoResult, find_demo, find_demos, run_demo

# Long enough to see windows close, short enough for a script. Only used when nobody sits at a terminal.
_UNATTENDED = timedelta(seconds=90)


def demo_command(  # noqa: PLR0913 - one parameter for each option of the command
    name: Annotated[str | None, typer.Argument(help="The demo to run, for example rides.")] = None,
    *,
    list_: Annotated[bool, typer.Option("--list", help="Name the demos and end.")] = False,
    for_: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="TIME", help="End after this long. Default: at Ctrl-C, or 90s without a terminal."
        ),
    ] = None,
    rate: Annotated[float, typer.Option(help="Records or transactions per second.")] = 40.0,
    backfill: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The past that records begin with. Default: 90 minutes, orders 3 hours."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed gives another stream.")] = 7,
    port: Annotated[int, typer.Option(help="Port of the page, or the next free one.")] = 8080,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Run a whole system on this machine: its parts, a source that lives, flows, and the comparison at the end.

    Ctrl-C ends it: every flow commits the batch that it is in, then everything stops. The data stays, and the next run
    goes on from there.
    """
    if list_ or name is None:
        _list(json=json)
        return
    past = length("--backfill", backfill) if backfill else default_backfill(find_demo(name))
    attended = sys.stdin.isatty() and sys.stdout.isatty()
    run_for = length("--for", for_) if for_ else (None if attended else _UNATTENDED)
    settings = DemoSettings(home, run_for, rate, past, seed, port)
    with shown(json=json) as show, stopping() as stop:
        watch = DemoCallbacks(
            step=lambda step: show.event("demo", step),
            running=stop.flows_run,
            part=show.event,
            jar=show.jar,
            page=lambda url: None if json else _announce(url),
            event=lambda event: None if json else told(event),
            status=None if json else _standing,
        )
        result = run_demo(name, settings, watch, stop)
    if json:
        emit(result.as_dict())
    else:
        _print(result, home=str(home), name=name)
    if stop.is_set() and run_for is not None:
        raise typer.Exit(INTERRUPTED)
    if not result.ok:
        raise typer.Exit(ANSWER_IS_NO)


def _announce(url: str) -> None:
    err.print(f"\nThe cities, live: [bold link={url}]{url}[/]  (the first figures follow within a minute)\n")


def _standing(lines: Sequence[str]) -> None:
    for line in lines:
        err.print(f"  {line}", markup=False)


def _list(*, json: bool) -> None:
    titles = {name: demo.title for name, demo in find_demos().items()}
    if json:
        emit({"ok": True, "demos": titles})
        return
    for name, title in titles.items():
        out.print(f"[bold]{name}[/]  {title}")
    out.print("\nRun one with `headrace demo NAME`.")


def _print(result: DemoResult, *, home: str, name: str) -> None:
    out.print(figures_table(f"{name}, {result.seconds:.0f} seconds", result.flows))
    for line in watermark_lines(result.flows):
        out.print(line, markup=False)
    if result.verdict is not None:
        first, *rest = result.verdict.lines()
        out.print(Text(first, "green" if result.verdict.equal else "bold red"))
        for line in rest:
            out.print(line, markup=False)
    out.print(f"The data is kept in {home}/demo/{name}; the next run goes on from there.")
