"""`headrace capture`: begin the captures that flows read, look at them, forget them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from headrace.cdc.capture.declaration import Capture, captures
from headrace.cdc.capture.health import check_capture
from headrace.cdc.capture.lifecycle import ConnectWorker, connect_worker, count_messages, delete_capture, start_capture
from headrace.cli.output import ANSWER_IS_NO, OK, USAGE, JsonOption, YesOption, emit, err, out
from headrace.cli.project import HERE, FlowsArgument, ProjectOption, TargetOption, opened
from headrace.clients.kafka_connect import ConnectClient
from headrace.clients.postgres import database_of
from headrace.errors import ConfigError, HeadraceError
from headrace.flow.target import KafkaConnect, Target

capture_app = typer.Typer(help="Begin, watch and forget the captures that flows read.", no_args_is_help=True)

ConnectOption = Annotated[
    str | None, typer.Option("--connect", help="The REST address of Kafka Connect. Default: that of the target.")
]
PasswordOption = Annotated[
    str | None,
    typer.Option(
        "--password", help="A reference that the worker resolves, ${file:...}. Default: that of the target, or a file."
    ),
]


@capture_app.command("begin")
def begin_command(
    flows: FlowsArgument = None,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    connect: ConnectOption = None,
    password: PasswordOption = None,
    json: JsonOption = False,
) -> None:
    """Bring every capture to run. One that runs already goes on where it is."""
    chosen, found = _found(project, target, flows, connect, password)
    done = {}
    for capture, worker in found:
        tables = start_capture(capture, database_of(chosen, capture.database), worker)
        done[capture.prefix] = [str(table) for table in tables]
        if not json:
            out.print(f"{capture.prefix}: {', '.join(done[capture.prefix]) or 'no table yet'}", markup=False)
    if json:
        emit({"ok": True, "captures": done})


@capture_app.command("look")
def look_command(
    flows: FlowsArgument = None,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    connect: ConnectOption = None,
    json: JsonOption = False,
) -> None:
    """Say how far every capture is, or what stops it."""
    chosen, found = _found(project, target, flows, connect, None)
    seen = {
        capture.prefix: check_capture(capture, database_of(chosen, capture.database), ConnectClient(worker.url))
        for capture, worker in found
    }
    passed_over = {capture.prefix: _messages(capture, chosen) for capture, _ in found}
    warned = any(each.warning for each in seen.values())
    if json:
        told = {name: {**vars(each), "messages": passed_over[name]} for name, each in seen.items()}
        emit({"ok": not warned, "captures": told})
    for name, each in seen.items() if not json else ():
        at = "before its first position" if each.position is None else f"at {each.position}"
        held = "" if each.retained_bytes is None else f", {each.retained_bytes:,} bytes of log held back"
        beside = f", {passed_over[name]:,} messages beside changes passed over" if passed_over[name] else ""
        out.print(f"{name}: {'in its snapshot, ' if each.in_snapshot else ''}{at}{held}{beside}", markup=False)
        if each.warning:
            err.print(f"  {each.warning}", markup=False)
    if warned:
        raise typer.Exit(ANSWER_IS_NO)


@capture_app.command("forget")
def forget_command(
    flows: FlowsArgument = None,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    connect: ConnectOption = None,
    topics: Annotated[bool, typer.Option("--topics", help="Delete the topics of the captures too.")] = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Remove connectors, their positions, slots and publications. Tables stay, and so do topics without --topics."""
    chosen, found = _found(project, target, flows, connect, None)
    names = ", ".join(capture.prefix for capture, _ in found)
    if json and not yes:
        emit({"ok": False, "error": "`capture forget --json` removes captures and cannot ask: add --yes."})
        raise typer.Exit(USAGE)
    if not yes:
        stays = "Their topics are deleted. Tables stay." if topics else "Topics and tables stay."
        err.print(f"Removes the captures {names}: changes from now on are captured by nobody. {stays}", markup=False)
        if not typer.confirm("Forget them?", default=False, err=True):
            raise typer.Exit(OK)
    deleted = list[str]()
    for capture, worker in found:
        deleted += delete_capture(capture, database_of(chosen, capture.database), worker, topics=topics)
    if json:
        emit({"ok": True, "forgotten": [capture.prefix for capture, _ in found], "topics": deleted})
    else:
        out.print(f"Forgotten: {names}" + (f". Deleted: {', '.join(deleted)}" if deleted else ""), markup=False)


def _messages(capture: Capture, target: Target) -> int | None:
    """Count what was passed over. The alarm must not fail for a count: None where the broker cannot be asked."""
    try:
        return count_messages(capture, target)
    except HeadraceError:
        return None


def _found(
    folder: Path, target: str | None, names: list[str] | None, connect: str | None, password: str | None
) -> tuple[Target, list[tuple[Capture, ConnectWorker]]]:
    """Return the target, and the captures of the flows, each with the Kafka Connect that runs it."""
    _, chosen, flows = opened(folder, target, names)
    found = list(dict.fromkeys(capture for flow in flows for capture in captures(flow.sink)))
    if not found:
        raise ConfigError(
            "None of the flows reads a capture.",
            why=f"Of {', '.join(flow.name for flow in flows) or 'no flow'} none has a sink for captured changes.",
            state="Nothing was changed.",
            remedy="Declare one: `mirror(CdcSettings(Capture(...)))` of headrace.cdc.flows.",
            code="HR-134",
        )
    if connect is not None:
        named = chosen.connect or KafkaConnect(connect)
        # The folder of secrets is one that the local workers read.
        chosen = replace(chosen, connect=replace(named, url=connect, secrets=None))
    workers = [connect_worker(chosen, capture.database) for capture in found]
    if password is not None:
        workers = [replace(worker, password=password) for worker in workers]
    return chosen, list(zip(found, workers, strict=True))
