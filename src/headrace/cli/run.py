"""`headrace run`: run the flows of a project."""

import threading
from typing import Annotated

import typer

from headrace.cli.flow_events import metrics_table, print_event, watermark_lines
from headrace.cli.output import TERMINAL, TRANSIENT, JsonOption, emit, err, print_lines
from headrace.cli.progress import progress_reporter
from headrace.cli.project import HERE, FlowsArgument, ProjectOption, TargetOption, load_project
from headrace.cli.signals import graceful_shutdown
from headrace.errors import Transient
from headrace.operate.run import Application, as_available_now, open_application
from headrace.runtime.supervisor import Backoff
from headrace.stack.jars import JarCache

# With --until-done, a part that is down has about half a minute to come back.
_ATTEMPTS_WHEN_ENDING = 5


def run_command(
    flows: FlowsArgument = None,
    *,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    until_done: Annotated[
        bool,
        typer.Option("--until-done", help="Process the data that is available now, whatever the triggers, then exit."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check the flows of a project, then run them together until Ctrl-C.

    A flow that loses a connection is restarted automatically. A flow that cannot continue stops and prints the reason,
    while the others keep running. Exits with 3 when a flow failed, with 4 when a retry may help.
    """
    loaded, run_target, selected = load_project(project, target, flows)
    if until_done:
        selected = [as_available_now(flow) for flow in selected]
    with graceful_shutdown() as stop:
        with progress_reporter(json=json) as reporter:
            JarCache().sync(("spark",), reporter.jar)
            application, spark = open_application(
                selected,
                run_target,
                log=loaded.home / "logs" / "spark.log",
                backoff=Backoff(attempts=_ATTEMPTS_WHEN_ENDING) if until_done else None,
                on_step=lambda step: reporter.event("run", step),
            )
        if not json:
            application.bus.subscribe(print_event)
            err.print(f"Running {', '.join(flow.name for flow in selected)}. Press Ctrl-C to stop.")
        stop.flows_run()
        threading.Thread(target=_drain_at, args=(stop, application), daemon=True).start()
        figures = application.run()
    spark.stop()
    errors = [figure.error for figure in figures.values() if figure.error is not None]
    if json:
        emit({"ok": not errors, "flows": {name: figure.as_dict() for name, figure in figures.items()}})
    else:
        err.print(metrics_table("This run", figures))
        print_lines(watermark_lines(figures), err)
    if errors:
        raise typer.Exit(TRANSIENT if all(isinstance(error, Transient) for error in errors) else TERMINAL)


def _drain_at(stop: threading.Event, application: Application) -> None:
    stop.wait()
    application.drain()
