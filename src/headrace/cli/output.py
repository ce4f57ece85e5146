"""Output of all commands: one JSON object for machines, Rich text for people, and documented exit codes.

| code | meaning                                                                        |
|------|--------------------------------------------------------------------------------|
| 0    | done                                                                           |
| 1    | done, and the answer is no: a check found errors, a comparison found differences |
| 2    | the command line itself is wrong                                               |
| 3    | a terminal error: manual action is needed, the message says which              |
| 4    | a transient error: the same command may work later                             |
| 130  | interrupted                                                                    |
"""

import json as jsonlib
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from headrace.errors import HeadraceError, Transient

OK, ANSWER_IS_NO, USAGE, TERMINAL, TRANSIENT, INTERRUPTED = 0, 1, 2, 3, 4, 130

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line instead of text.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Answer yes to every question.")]

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def emit(data: Mapping[str, object]) -> None:
    """Print the one JSON object of a `--json` run: as the last line of standard output."""
    sys.stdout.write(jsonlib.dumps(data, default=str) + "\n")
    sys.stdout.flush()


def require_yes(command: str, *, yes: bool, json: bool, options: str = "--yes") -> None:
    """End a `--json` run that would have to ask: scripts have to pass `--yes`. `command` says what it changes."""
    if json and not yes:
        emit({"ok": False, "error": f"{command} and cannot ask: add {options}."})
        raise typer.Exit(USAGE)


def print_lines(lines: Iterable[str], console: Console = out) -> None:
    """Print lines as they are: brackets are not markup."""
    for line in lines:
        console.print(line, markup=False)


def ask(question: str) -> bool:
    """Ask for confirmation, and return whether the answer is yes."""
    return typer.confirm(question, default=False, err=True)


def confirm(question: str, otherwise: str = "Nothing was changed.") -> None:
    """Ask for confirmation, and end the command if the answer is no."""
    if not ask(question):
        err.print(otherwise)
        raise typer.Exit(ANSWER_IS_NO)


def print_error(error: HeadraceError, *, json: bool) -> int:
    """Print an error and return its exit code."""
    if json:
        emit({"ok": False, **error.as_dict()})
    else:
        err.print(Text.assemble((f"{error.code} ", "bold red"), (error.what, "bold")))
        for label, sentence in (("why", error.why), ("data", error.state), ("fix", error.remedy)):
            err.print(Text.assemble((f"  {label:<5}", "dim"), sentence))
    return TRANSIENT if isinstance(error, Transient) else TERMINAL
