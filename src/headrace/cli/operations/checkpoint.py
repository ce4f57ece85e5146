"""`headrace checkpoint`: show, verify, back up and restore the progress of a flow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.home import local_broker
from headrace.cli.operations.checkpoint_tables import print_anatomy, print_verdict
from headrace.cli.output import ANSWER_IS_NO, TERMINAL, USAGE, JsonOption, YesOption, emit, err, out
from headrace.cli.project import HERE, ProjectOption, TargetOption
from headrace.cli.session import opened_session
from headrace.clients.storage import file_store, is_local
from headrace.errors import ConfigError
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.operate.checkpoint.backup import back_up
from headrace.operate.checkpoint.find import find_checkpoint
from headrace.operate.checkpoint.restore import (
    RestorePlan,
    has_tracking_sink,
    plan_restore,
    require_sinks_not_ahead,
    restore,
)
from headrace.operate.checkpoint.row_counts import count_rows
from headrace.operate.checkpoint.show import show
from headrace.operate.checkpoint.verify import verify
from headrace.project.project import Project
from headrace.runtime.checkpoint.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

checkpoint_app = typer.Typer(help="Show, verify, back up and restore the progress of a flow.", no_args_is_help=True)

FlowArgument = Annotated[str, typer.Argument(metavar="FLOW", help="The flow, by name; one that is gone, too.")]


@checkpoint_app.command("show")
def show_command(
    flow: FlowArgument,
    *,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    state: Annotated[bool, typer.Option("--state", help="Count the rows of the state too. Starts Spark.")] = False,
    json: JsonOption = False,
) -> None:
    """Show how far a flow is, what the next start reads, its watermark, its state, and who runs it."""
    with _found(flow, project, target, json=json, with_spark=state) as place:
        anatomy = show(place.checkpoint, place.target, place.flow)
        if place.spark is not None and state and anatomy.state:
            anatomy = replace(anatomy, state=count_rows(place.spark, place.checkpoint, anatomy.state))
    if json:
        emit({"ok": True, **anatomy.as_dict()})
    else:
        print_anatomy(anatomy)


@checkpoint_app.command("verify")
def verify_command(
    flow: FlowArgument, *, project: ProjectOption = HERE, target: TargetOption = None, json: JsonOption = False
) -> None:
    """Look at every file of a checkpoint. Exits with 3 when something is damaged."""
    with _found(flow, project, target, json=json) as place:
        verdict = verify(place.checkpoint)
    if json:
        emit({"ok": not verdict.damages, **verdict.as_dict()})
    else:
        print_verdict(verdict)
    if verdict.damages:
        raise typer.Exit(TERMINAL)


@checkpoint_app.command("backup")
def backup_command(
    flow: FlowArgument,
    *,
    to: Annotated[
        Path | None, typer.Option("--to", help="The folder for backups. Default: .headrace/backups of the project.")
    ] = None,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    json: JsonOption = False,
) -> None:
    """Copy the checkpoint of a stopped flow into a new folder, with the sha256 of every file."""
    with _found(flow, project, target, json=json) as place:
        into = (to or place.project.home / "backups").absolute()
        folder, backup = back_up(place.checkpoint, into, place.target.lease)
    if json:
        said = {"flow": backup.flow, "query_id": backup.query_id, "committed": backup.committed}
        emit({"ok": True, "backup": folder, "files": len(backup.files), **said})
        return
    out.print(f"{folder}", markup=False)
    err.print(f"{len(backup.files)} files, {_upto(backup.committed)}. Back with:")
    err.print(f"headrace checkpoint restore {flow} --from {folder}", markup=False)


@checkpoint_app.command("restore")
def restore_command(
    flow: FlowArgument,
    *,
    source: Annotated[Path, typer.Option("--from", help="The folder that `backup` printed.")],
    project: ProjectOption = HERE,
    target: TargetOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Put a backup in the place of a flow's checkpoint. The present one is set aside and kept. Asks first."""
    if json and not yes:
        emit({"ok": False, "error": "`checkpoint restore --json` replaces a checkpoint and cannot ask: add --yes."})
        raise typer.Exit(USAGE)
    with _found(flow, project, target, json=json) as place:
        plan = plan_restore(place.checkpoint, source.absolute(), place.flow)
        if place.flow is not None and has_tracking_sink(place.flow):
            require_sinks_not_ahead(plan, place.flow, place.target, place.session())
        if not yes:
            _ask(plan)
        aside = restore(place.checkpoint, plan, place.target.lease)
    if json:
        emit({"ok": True, "flow": flow, "committed": plan.backup.committed, "replaced": aside, "told": plan.lines})
        return
    out.print(f"Restored: '{flow}' is {_upto(plan.backup.committed)} again.", markup=False)
    if aside is not None:
        out.print(f"What was there is kept in {aside}", markup=False)


def _upto(committed: int | None) -> str:
    return "before its first batch" if committed is None else f"committed up to batch {committed}"


def _ask(plan: RestorePlan) -> None:
    """Say what a restore does, and let a person decide."""
    for line in plan.lines:
        err.print(line, markup=False)
    if not typer.confirm("Restore it?", default=False, err=True):
        err.print("Nothing was changed.")
        raise typer.Exit(ANSWER_IS_NO)


@dataclass
class _Place:
    """A checkpoint, where it lies, and the flow if the project declares it. Spark is started when it is asked for."""

    project: Project
    target: Target
    checkpoint: Checkpoint
    flow: Flow | None
    spark: SparkSession | None
    stack: ExitStack
    json: bool

    def session(self) -> SparkSession:
        if self.spark is None:
            self.spark = opened_session("checkpoint", self.project, self.target, self.stack, json=self.json)
        return self.spark


@contextmanager
def _found(name: str, folder: Path, target: str | None, *, json: bool, with_spark: bool = False) -> Iterator[_Place]:
    """Find the checkpoint that the command line names. On other storage than a disk Spark is needed to reach it."""
    project = Project.open(folder)
    home = Path(os.environ.get("HEADRACE_HOME") or project.home)
    chosen = project.target(target, lambda: local_broker(home))
    try:
        flows = {flow.name: flow for flow in project.flows()}
    except ConfigError as error:
        # Progress can be looked after while the project is being repaired; what needs the declaration is left out.
        err.print(f"{error.code} {error.what} The checkpoint is read without the flow's declaration.", markup=False)
        flows = {}
    with ExitStack() as stack:
        spark = None
        if with_spark or not is_local(chosen.checkpoints):
            spark = opened_session("checkpoint", project, chosen, stack, json=json)
        files = file_store(chosen.checkpoints, spark)
        checkpoint = find_checkpoint(name, chosen, files, list(flows))
        yield _Place(project, chosen, checkpoint, flows.get(name), spark, stack, json)
