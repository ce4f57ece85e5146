"""`headrace demo`: run a complete system on this machine and compare its results with a reference model."""

import sys
from datetime import timedelta
from typing import Annotated

import typer
from rich.text import Text

from headrace.cli.flow_events import metrics_table, print_event, watermark_lines
from headrace.cli.local.generate import parse_duration
from headrace.cli.output import ANSWER_IS_NO, INTERRUPTED, JsonOption, emit, err, out, print_lines
from headrace.cli.progress import progress_reporter
from headrace.cli.project import DEFAULT_HOME, HomeOption
from headrace.cli.signals import graceful_shutdown
from headrace.demos.protocol import DemoSettings, default_backfill
from headrace.demos.runner import DemoCallbacks, DemoResult, find_demo, find_demos, run_demo

# Long enough to see windows close, short enough for a script. Used only without a terminal.
_UNATTENDED = timedelta(seconds=90)


def demo_command(  # noqa: PLR0913 - one parameter for each option of the command
    name: Annotated[str | None, typer.Argument(help="The demo to run, for example rides.")] = None,
    *,
    list_: Annotated[bool, typer.Option("--list", help="List the demos and exit.")] = False,
    for_: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="TIME", help="End after this long. Default: at Ctrl-C, or 90s without a terminal."
        ),
    ] = None,
    rate: Annotated[float, typer.Option(help="Records or transactions per second.")] = 40.0,
    backfill: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How much history to generate first. Default: that of the demo, mostly 90 minutes."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the generated records.")] = 7,
    port: Annotated[int, typer.Option(help="Port of the live page; the next free one if it is taken.")] = 8080,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Run a complete system on this machine: local services, a live source, flows, and a final comparison.

    Ctrl-C stops it: in-flight batches commit, then everything stops. The data is kept, and the next run continues from
    there.
    """
    if list_ or name is None:
        _list_demos(json=json)
        return
    past = parse_duration("--backfill", backfill) if backfill else default_backfill(find_demo(name))
    attended = sys.stdin.isatty() and sys.stdout.isatty()
    run_for = parse_duration("--for", for_) if for_ else (None if attended else _UNATTENDED)
    settings = DemoSettings(home, run_for, rate, past, seed, port)
    with progress_reporter(json=json) as reporter, graceful_shutdown() as shutdown:
        callbacks = DemoCallbacks(
            step=lambda step: reporter.event("demo", step),
            running=shutdown.flows_run,
            part=reporter.event,
            jar=reporter.jar,
            page=lambda url: None if json else _announce(url),
            event=lambda event: None if json else print_event(event),
            status=None if json else lambda lines: print_lines((f"  {line}" for line in lines), err),
        )
        result = run_demo(name, settings, callbacks, shutdown)
    if json:
        emit(result.as_dict())
    else:
        _print_result(result, home=str(home), name=name)
    if shutdown.is_set() and run_for is not None:
        raise typer.Exit(INTERRUPTED)
    if not result.ok:
        raise typer.Exit(ANSWER_IS_NO)


def _announce(url: str) -> None:
    err.print(f"\nLive page: [bold link={url}]{url}[/]  (the first figures appear within a minute)\n")


def _list_demos(*, json: bool) -> None:
    titles = {name: demo.title for name, demo in find_demos().items()}
    if json:
        emit({"ok": True, "demos": titles})
        return
    for name, title in titles.items():
        out.print(f"[bold]{name}[/]  {title}")
    out.print("\nRun one with `headrace demo NAME`.")


def _print_result(result: DemoResult, *, home: str, name: str) -> None:
    out.print(metrics_table(f"{name}, {result.seconds:.0f} seconds", result.flows))
    print_lines(watermark_lines(result.flows))
    if result.verdict is not None:
        first, *rest = result.verdict.lines()
        out.print(Text(first, "green" if result.verdict.equal else "bold red"))
        print_lines(rest)
    out.print(f"The data is kept in {home}/demo/{name}; the next run continues from there.")
