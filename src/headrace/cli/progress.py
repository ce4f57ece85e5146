"""Progress of long steps: a progress bar in a terminal, a few plain lines elsewhere, nothing with `--json`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from headrace.cli.output import err


@dataclass(frozen=True)
class ProgressReporter:
    """Callbacks that show the progress of a command.

    | call                   | for                                                |
    |------------------------|----------------------------------------------------|
    | event(part, sentence)  | `on_event` of the local stack                      |
    | jar(name, done, total) | `on_progress` of the jar cache; total 0 is unknown |
    """

    event: Callable[[str, str], None]
    jar: Callable[[str, int, int], None]


@contextmanager
def progress_reporter(*, json: bool) -> Iterator[ProgressReporter]:
    """Yield the callbacks of one command. They print to standard error: standard output is for results."""
    if json:
        yield ProgressReporter(lambda _part, _sentence: None, lambda _jar, _done, _total: None)
    elif err.is_terminal:
        yield from _with_progress_bar()
    else:
        yield _with_plain_lines()


def _with_progress_bar() -> Iterator[ProgressReporter]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        # A step has no known length, so its bar pulses; the download counts. Only one of the two is shown.
        step = progress.add_task("", total=None, visible=False, count="")
        download = progress.add_task("", total=None, visible=False, count="")

        def event(part: str, sentence: str) -> None:
            progress.update(download, visible=False)
            progress.update(step, description=f"[bold]{part}[/] {sentence}", visible=True)
            progress.console.print(f"[bold]{part}[/] {sentence}")

        def jar(name: str, done: int, total: int) -> None:
            progress.update(step, visible=False)
            count = f"{done}/{total or '?'}"
            progress.update(
                download,
                description=f"[bold]jars[/] {name}",
                completed=done,
                total=total or None,
                count=count,
                visible=done != total,
            )

        yield ProgressReporter(event, jar)


def _with_plain_lines() -> ProgressReporter:
    """Print ten lines per download, however many jars it has, to keep logs short."""
    tenth = -1

    def jar(name: str, done: int, total: int) -> None:
        nonlocal tenth
        now = 10 * done // total if total else done // 10
        if now != tenth:
            tenth = now
            err.print(f"jars {done}/{total or '?'} {name}", markup=False)

    return ProgressReporter(lambda part, sentence: err.print(f"{part} {sentence}", markup=False), jar)
