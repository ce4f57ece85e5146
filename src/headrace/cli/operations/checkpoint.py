"""`headrace checkpoint`: show, verify, back up and restore the progress of a flow."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from headrace.cli.output import TERMINAL, JsonOption, YesOption, confirm, emit, err, out, print_lines, require_yes
from headrace.cli.project import HERE, ProjectOption, TargetOption, load_target
from headrace.cli.session import LazySession
from headrace.clients.storage import file_store, is_local
from headrace.errors import ConfigError
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.operate.checkpoint.backup import back_up
from headrace.operate.checkpoint.find import find_checkpoint
from headrace.operate.checkpoint.offsets import SourceReads
from headrace.operate.checkpoint.restore import (
    RestorePlan,
    has_tracking_sink,
    plan_restore,
    require_sinks_not_ahead,
    restore,
)
from headrace.operate.checkpoint.show import CheckpointSummary, count_rows, show
from headrace.operate.checkpoint.verify import CheckpointVerdict, verify
from headrace.project.project import Project
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.integrity import CheckpointProblem

# The most files of an unfinished batch that are named; `--json` has all.
_FEW = 5


def print_checkpoint(anatomy: CheckpointSummary) -> None:
    """Print a checkpoint: single values as lines, lists as tables."""
    out.print(Text.assemble((anatomy.flow, "bold"), "" if anatomy.declared else "  (not in the project anymore)"))
    for label, value in _lines(anatomy):
        out.print(Text.assemble((f"  {label:<11}", "dim"), value))
    if anatomy.reads:
        out.print(_next_offsets_table(anatomy))
        _print_files(anatomy.reads)
    if anatomy.state:
        out.print(_state_table(anatomy))
    if anatomy.lost:
        out.print(_lost_table(anatomy))
    for flaw in anatomy.damages:
        _print_flaw(flaw)


def print_verification(verdict: CheckpointVerdict) -> None:
    """Print every flaw and a summary line."""
    for flaw in verdict.flaws:
        _print_flaw(flaw)
    summary = f"{verdict.flow}: {verdict.files} files, {_bytes(verdict.bytes)}, {verdict.summed} with a checksum."
    if verdict.damages:
        out.print(Text.assemble(summary, " ", (f"{len(verdict.damages)} damaged.", "bold red")))
    elif verdict.files:
        out.print(Text.assemble(summary, " ", ("No damage.", "green")))
    else:
        out.print(f"{verdict.flow}: never started, nothing to verify.", markup=False)


def _lines(anatomy: CheckpointSummary) -> list[tuple[str, str]]:
    if anatomy.planned is None and not anatomy.damages:
        return [("folder", anatomy.folder), ("batches", "none: never started")]
    planned, committed = anatomy.planned, anatomy.committed
    holder = anatomy.holder
    lines = [
        ("folder", f"{anatomy.folder} ({_bytes(anatomy.bytes)})"),
        ("query", anatomy.query_id or "unreadable"),
        ("planned", f"{planned[0]} to {planned[1]}{_last_time_suffix(anatomy.begun_at)}" if planned else "none"),
        ("committed", f"{committed[0]} to {committed[1]}" if committed else "none"),
        ("next start", _next(anatomy)),
        ("watermark", anatomy.watermark or "none"),
        ("running", f"process {holder.get('pid')} on {holder.get('host')}" if holder else "no"),
        ("audited", f"up to batch {anatomy.audited}" if anatomy.audited is not None else "not yet"),
        ("manifest", f"{anatomy.noted} files" if anatomy.noted else "none yet: written with the next batch"),
    ]
    if anatomy.damages:
        lines.append(("damage", f"{len(anatomy.damages)} in the logs; `headrace checkpoint verify` checks the rest"))
    return lines


def _last_time_suffix(begun: str | None) -> str:
    return f", the last one at {begun}" if begun else ""


def _next(anatomy: CheckpointSummary) -> str:
    if anatomy.damages:
        return "refused: the checkpoint is damaged"
    if anatomy.unfinished is not None:
        return f"retries batch {anatomy.unfinished} with exactly these rows"
    return "continues from here"


def _next_offsets_table(anatomy: CheckpointSummary) -> Table:
    again = anatomy.unfinished is not None
    table = _table("The next start reads", ("input", "of", "from", "to" if again else "end now", "records"))
    for source in anatomy.reads:
        for offsets in source.ranges:
            to = offsets.end if again else offsets.latest
            cells = (offsets.start, to, offsets.records)
            table.add_row(source.input or str(source.source), offsets.place, *(_cell(cell) for cell in cells))
    return table


def _print_files(reads: tuple[SourceReads, ...]) -> None:
    for source in reads:
        if source.unknown:
            out.print(f"Lag unknown: {source.unknown}", markup=False)
        for path in source.files[:_FEW]:
            out.print(f"  {path}", markup=False)
        if len(source.files) > _FEW:
            out.print(f"  and {len(source.files) - _FEW} more files", markup=False)


def _state_table(anatomy: CheckpointSummary) -> Table:
    has_rows = any(store.rows is not None for store in anatomy.state)
    table = _table("State", ("operator", "store", "partition", "on disk", *(["rows"] if has_rows else [])))
    for store in anatomy.state:
        numbers = (str(store.partition), _bytes(store.bytes), *([_cell(store.rows)] if has_rows else []))
        table.add_row(f"{store.operator} {store.name}", store.store, *numbers)
    return table


def _lost_table(anatomy: CheckpointSummary) -> Table:
    table = _table("Lost offsets that the flow skipped", ("batch", "of", "from", "to", "kind"))
    for lost in anatomy.lost:
        partition = f"{lost.get('topic')}[{lost.get('partition')}]"
        values = (lost.get("batch"), partition, lost.get("first"), lost.get("end"), lost.get("kind"))
        table.add_row(*(_cell(value) for value in values))
    return table


def _table(title: str, headings: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < 2 else "right", overflow="fold")
    return table


def _print_flaw(flaw: CheckpointProblem) -> None:
    colour = "bold red" if flaw.level == "damage" else "yellow"
    out.print(Text.assemble((f"{flaw.level:<7}", colour), (flaw.path, "bold"), f" {flaw.problem}"))
    out.print(Text(f"       {flaw.means}"))
    out.print(Text(f"       {flaw.remedy}", style="dim"))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _bytes(count: int) -> str:
    if count < 1_000_000:
        return f"{count / 1e3:.1f} kB"
    return f"{count / 1e6:.1f} MB" if count < 1_000_000_000 else f"{count / 1e9:.1f} GB"


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
