"""`headrace checkpoint`: show, verify, back up and restore the progress of a flow."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.operations.checkpoint_tables import print_checkpoint, print_verification
from headrace.cli.output import TERMINAL, JsonOption, YesOption, confirm, emit, err, out, print_lines, require_yes
from headrace.cli.project import HERE, ProjectOption, TargetOption, load_target
from headrace.cli.session import LazySession
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

checkpoint_app = typer.Typer(help="Show, verify, back up and restore the progress of a flow.", no_args_is_help=True)

FlowArgument = Annotated[
    str, typer.Argument(metavar="FLOW", help="The name of the flow; it may have been removed from the project.")
]


@checkpoint_app.command("show")
def show_command(
    flow: FlowArgument,
    *,
    project: ProjectOption = HERE,
    target: TargetOption = None,
    state: Annotated[bool, typer.Option("--state", help="Also count the rows of the state. Starts Spark.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the progress of a flow, what the next start reads, its watermark, its state, and who runs it."""
    with _open_checkpoint(flow, project, target, json=json) as context:
        anatomy = show(context.checkpoint, context.target, context.flow)
        if state and anatomy.state:
            anatomy = replace(anatomy, state=count_rows(context.session(), context.checkpoint, anatomy.state))
    if json:
        emit({"ok": True, **anatomy.as_dict()})
    else:
        print_checkpoint(anatomy)


@checkpoint_app.command("verify")
def verify_command(
    flow: FlowArgument, *, project: ProjectOption = HERE, target: TargetOption = None, json: JsonOption = False
) -> None:
    """Verify every file of a checkpoint. Exits with 3 when something is damaged."""
    with _open_checkpoint(flow, project, target, json=json) as context:
        verdict = verify(context.checkpoint)
    if json:
        emit({"ok": not verdict.damages, **verdict.as_dict()})
    else:
        print_verification(verdict)
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
    """Copy the checkpoint of a stopped flow to a new folder, with the sha256 of every file."""
    with _open_checkpoint(flow, project, target, json=json) as context:
        folder_for_backups = (to or context.project.home / "backups").absolute()
        folder, backup = back_up(context.checkpoint, folder_for_backups, context.target.lease)
    if json:
        identity = {"flow": backup.flow, "query_id": backup.query_id, "committed": backup.committed}
        emit({"ok": True, "backup": folder, "files": len(backup.files), **identity})
        return
    out.print(f"{folder}", markup=False)
    err.print(f"{len(backup.files)} files, {_progress(backup.committed)}. Restore with:")
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
    """Replace a flow's checkpoint by a backup. The current checkpoint is moved and kept. Asks first."""
    require_yes("`checkpoint restore --json` replaces a checkpoint", yes=yes, json=json)
    with _open_checkpoint(flow, project, target, json=json) as context:
        plan = plan_restore(context.checkpoint, source.absolute(), context.flow)
        if context.flow is not None and has_tracking_sink(context.flow):
            require_sinks_not_ahead(plan, context.flow, context.target, context.session())
        if not yes:
            _confirm_restore(plan)
        replaced = restore(context.checkpoint, plan, context.target.lease)
    if json:
        emit({"ok": True, "flow": flow, "committed": plan.backup.committed, "replaced": replaced, "plan": plan.lines})
        return
    out.print(f"Restored: '{flow}' is {_progress(plan.backup.committed)} again.", markup=False)
    if replaced is not None:
        out.print(f"The previous checkpoint is kept in {replaced}", markup=False)


def _progress(committed: int | None) -> str:
    return "before its first batch" if committed is None else f"committed up to batch {committed}"


def _confirm_restore(plan: RestorePlan) -> None:
    """Print what a restore does and ask for confirmation."""
    print_lines(plan.lines, err)
    confirm("Restore it?")


@dataclass
class _CheckpointContext:
    """A checkpoint, its target, and the flow if the project declares it."""

    project: Project
    target: Target
    checkpoint: Checkpoint
    flow: Flow | None
    session: LazySession


@contextmanager
def _open_checkpoint(name: str, folder: Path, target: str | None, *, json: bool) -> Iterator[_CheckpointContext]:
    """Open the checkpoint of a flow by name. Starts Spark if the checkpoint is not on a local disk."""
    project, run_target = load_target(folder, target)
    try:
        flows = {flow.name: flow for flow in project.flows()}
    except ConfigError as error:
        # Checkpoints can be inspected while the project is broken; what needs the declaration is left out.
        err.print(f"{error.code} {error.what} The checkpoint is read without the flow's declaration.", markup=False)
        flows = {}
    with ExitStack() as stack:
        session = LazySession("checkpoint", project, run_target, stack, json=json)
        files = file_store(run_target.checkpoints, None if is_local(run_target.checkpoints) else session())
        checkpoint = find_checkpoint(name, run_target, files, list(flows))
        yield _CheckpointContext(project, run_target, checkpoint, flows.get(name), session)
