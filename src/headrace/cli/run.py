"""`headrace run`: run the flows of a project."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from headrace.cli.flow_events import figures_table, told, watermark_lines
from headrace.cli.output import TERMINAL, TRANSIENT, JsonOption, emit, err
from headrace.cli.progress import shown
from headrace.cli.project import HERE, FlowsArgument, ProjectOption, TargetOption, opened
from headrace.cli.signals import stopping
from headrace.errors import Transient
from headrace.operate.run import Application, as_available_now, open_application
from headrace.runtime.supervisor import Backoff
from headrace.stack.jars import JarCache

# A run that should end gives a part that is down about half a minute to come back.
_ATTEMPTS_WHEN_ENDING = 5


def run_command(
    flows: FlowsArgument = None,
    *,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    until_done: Annotated[
        bool, typer.Option("--until-done", help="Read what is there now, whatever the triggers say, and end.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check the flows of a project, then run them together until Ctrl-C.

    A flow that loses a part is started again by itself; one that cannot go on stays down and says why, while the others
    run. The command exits with 3 when a flow ended with an error, with 4 when waiting may help.
    """
    opened_project, chosen, found = opened(project, target, flows)
    if until_done:
        found = [as_available_now(flow) for flow in found]
    with stopping() as stop:
        with shown(json=json) as show:
            JarCache().sync(("spark",), show.jar)
            application, spark = open_application(
                found,
                chosen,
                log=opened_project.home / "logs" / "spark.log",
                backoff=Backoff(attempts=_ATTEMPTS_WHEN_ENDING) if until_done else None,
                on_step=lambda step: show.event("run", step),
            )
        if not json:
            application.bus.subscribe(told)
            err.print(f"Running {', '.join(flow.name for flow in found)}. Ctrl-C ends it.")
        stop.flows_run()
        threading.Thread(target=_drain_at, args=(stop, application), daemon=True).start()
        figures = application.run()
    spark.stop()
    errors = [figure.error for figure in figures.values() if figure.error is not None]
    if json:
        emit({"ok": not errors, "flows": {name: figure.as_dict() for name, figure in figures.items()}})
    else:
        err.print(figures_table("This run", figures))
        for line in watermark_lines(figures):
            err.print(line, markup=False)
    if errors:
        raise typer.Exit(TRANSIENT if all(isinstance(error, Transient) for error in errors) else TERMINAL)


def _drain_at(stop: threading.Event, application: Application) -> None:
    stop.wait()
    application.drain()
