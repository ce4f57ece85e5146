"""`headrace capture`: start, monitor and delete the change data captures that flows read."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from headrace.cdc.capture.declaration import Capture, captures
from headrace.cdc.capture.health import check_capture
from headrace.cdc.capture.lifecycle import (
    ConnectWorker,
    connect_worker,
    count_logical_decoding_messages,
    delete_capture,
    start_capture,
)
from headrace.cli.output import ANSWER_IS_NO, JsonOption, YesOption, confirm, emit, err, out, require_yes
from headrace.cli.project import HERE, FlowsArgument, ProjectOption, TargetOption, load_project
from headrace.clients.kafka_connect import ConnectClient
from headrace.clients.postgres import database_of
from headrace.errors import ConfigError, HeadraceError
from headrace.flow.target import KafkaConnect, Target

capture_app = typer.Typer(help="Start, monitor and delete the captures that flows read.", no_args_is_help=True)

ConnectOption = Annotated[
    str | None, typer.Option("--connect", help="The REST address of Kafka Connect. Default: that of the target.")
]
PasswordOption = Annotated[
    str | None,
    typer.Option(
        "--password", help="A reference that the worker resolves, ${file:...}. Default: that of the target, or a file."
    ),
]


@capture_app.command("start")
def start_command(
    flows: FlowsArgument = None,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    connect: ConnectOption = None,
    password: PasswordOption = None,
    json: JsonOption = False,
) -> None:
    """Start every capture. A capture that is already running continues at its position."""
    run_target, capture_workers = _find_captures(project, target, flows, connect, password)
    started = {}
    for capture, worker in capture_workers:
        tables = start_capture(capture, database_of(run_target, capture.database), worker)
        started[capture.prefix] = [str(table) for table in tables]
        if not json:
            out.print(f"{capture.prefix}: {', '.join(started[capture.prefix]) or 'no table yet'}", markup=False)
    if json:
        emit({"ok": True, "captures": started})


@capture_app.command("status")
def status_command(
    flows: FlowsArgument = None,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    connect: ConnectOption = None,
    json: JsonOption = False,
) -> None:
    """Show the position of every capture, or the error that stops it."""
    run_target, capture_workers = _find_captures(project, target, flows, connect, None)
    statuses = {
        capture.prefix: check_capture(capture, database_of(run_target, capture.database), ConnectClient(worker.url))
        for capture, worker in capture_workers
    }
    skipped_messages = {capture.prefix: _messages(capture, run_target) for capture, _ in capture_workers}
    has_warning = any(status.warning for status in statuses.values())
    if json:
        summaries = {name: {**vars(status), "messages": skipped_messages[name]} for name, status in statuses.items()}
        emit({"ok": not has_warning, "captures": summaries})
    for name, status in statuses.items() if not json else ():
        at = "no position yet" if status.position is None else f"at {status.position}"
        retained = "" if status.retained_bytes is None else f", {status.retained_bytes:,} bytes of log retained"
        skipped = f", {skipped_messages[name]:,} other messages skipped" if skipped_messages[name] else ""
        out.print(f"{name}: {'snapshot running, ' if status.in_snapshot else ''}{at}{retained}{skipped}", markup=False)
        if status.warning:
            err.print(f"  {status.warning}", markup=False)
    if has_warning:
        raise typer.Exit(ANSWER_IS_NO)


@capture_app.command("delete")
def delete_command(
    flows: FlowsArgument = None,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    connect: ConnectOption = None,
    topics: Annotated[bool, typer.Option("--topics", help="Also delete the topics of the captures.")] = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Delete connectors, positions, slots and publications. Tables are kept, and so are topics without --topics."""
    run_target, capture_workers = _find_captures(project, target, flows, connect, None)
    names = ", ".join(capture.prefix for capture, _ in capture_workers)
    require_yes("`capture delete --json` deletes captures", yes=yes, json=json)
    if not yes:
        rest = "Their topics are deleted, tables are kept." if topics else "Topics and tables are kept."
        err.print(f"This deletes the captures {names}: later changes will not be captured. {rest}", markup=False)
        confirm("Delete them?", "Nothing was deleted.")
    deleted = list[str]()
    for capture, worker in capture_workers:
        deleted += delete_capture(capture, database_of(run_target, capture.database), worker, topics=topics)
    if json:
        emit({"ok": True, "deleted": [capture.prefix for capture, _ in capture_workers], "topics": deleted})
    else:
        out.print(f"Deleted: {names}" + (f". Deleted topics: {', '.join(deleted)}" if deleted else ""), markup=False)


def _messages(capture: Capture, target: Target) -> int | None:
    """Count the skipped messages, or return None if the broker does not answer: the count is optional."""
    try:
        return count_logical_decoding_messages(capture, target)
    except HeadraceError:
        return None


def _find_captures(
    folder: Path, target: str | None, names: list[str] | None, connect: str | None, password: str | None
) -> tuple[Target, list[tuple[Capture, ConnectWorker]]]:
    """Return the target, and the captures of the flows with the Kafka Connect worker of each."""
    _, run_target, flows = load_project(folder, target, names)
    captures_of_flows = list(dict.fromkeys(capture for flow in flows for capture in captures(flow.sink)))
    if not captures_of_flows:
        raise ConfigError(
            "None of the flows reads a capture.",
            why=f"Of {', '.join(flow.name for flow in flows) or 'no flow'} none has a sink for captured changes.",
            state="Nothing was changed.",
            remedy="Declare one: `mirror(CdcSettings(Capture(...)))` of headrace.cdc.flows.",
            code="HR-134",
        )
    if connect is not None:
        connect_target = run_target.connect or KafkaConnect(connect)
        # Only local workers can read the local folder of secrets.
        run_target = replace(run_target, connect=replace(connect_target, url=connect, secrets=None))
    workers = [connect_worker(run_target, capture.database) for capture in captures_of_flows]
    if password is not None:
        workers = [replace(worker, password=password) for worker in workers]
    return run_target, list(zip(captures_of_flows, workers, strict=True))
