"""The `headrace` command: every subcommand is a module of this package and is registered here."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from headrace.cli.check import check_command
from headrace.cli.init import init_command, schema_command
from headrace.cli.local.demo import demo_command
from headrace.cli.local.generate import generate_command
from headrace.cli.local.jars import jars_app
from headrace.cli.local.services import doctor_command, down_command, ps_command, up_command
from headrace.cli.operations.capture import capture_app
from headrace.cli.operations.checkpoint import checkpoint_app
from headrace.cli.operations.erase import erase_command
from headrace.cli.operations.late import late_command
from headrace.cli.operations.quarantine import quarantine_command
from headrace.cli.operations.reconcile import reconcile_app
from headrace.cli.output import INTERRUPTED, err, print_error
from headrace.cli.run import run_command
from headrace.cli.topics import topics_app
from headrace.errors import HeadraceError

app = typer.Typer(
    name="headrace",
    help="Streaming pipelines on PySpark: declared, checked before they start, watched while they run.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options in front of a command."""


_PROJECT, _STACK, _TRY = "A project", "The local stack", "Try it"

app.command("demo", rich_help_panel=_TRY)(demo_command)
app.command("generate", rich_help_panel=_TRY)(generate_command)
app.command("init", rich_help_panel=_PROJECT)(init_command)
app.command("check", rich_help_panel=_PROJECT)(check_command)
app.command("run", rich_help_panel=_PROJECT)(run_command)
app.command("late", rich_help_panel=_PROJECT)(late_command)
app.command("quarantine", rich_help_panel=_PROJECT)(quarantine_command)
app.add_typer(checkpoint_app, name="checkpoint", rich_help_panel=_PROJECT)
app.add_typer(capture_app, name="capture", rich_help_panel=_PROJECT)
app.add_typer(reconcile_app, name="reconcile", rich_help_panel=_PROJECT)
app.command("erase", rich_help_panel=_PROJECT)(erase_command)
app.command("schema", rich_help_panel=_PROJECT)(schema_command)
app.command("up", rich_help_panel=_STACK)(up_command)
app.command("down", rich_help_panel=_STACK)(down_command)
app.command("ps", rich_help_panel=_STACK)(ps_command)
app.command("doctor", rich_help_panel=_STACK)(doctor_command)
app.add_typer(topics_app, name="topics", rich_help_panel=_STACK)
app.add_typer(jars_app, name="jars", rich_help_panel=_STACK)


def main() -> None:
    """Run the command line, and turn every HeadraceError into its message and exit code."""
    try:
        app()
    except HeadraceError as error:
        sys.exit(print_error(error, json="--json" in sys.argv))
    except KeyboardInterrupt:
        err.print("Interrupted. No partial result was left behind: run the same command again to continue.")
        sys.exit(INTERRUPTED)
