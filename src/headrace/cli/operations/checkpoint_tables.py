"""Checkpoints as tables for people. A terminal of 80 columns is wide enough."""

from rich.table import Table
from rich.text import Text

from headrace.cli.output import out
from headrace.operate.checkpoint.offsets import SourceReads
from headrace.operate.checkpoint.show import CheckpointSummary
from headrace.operate.checkpoint.verify import CheckpointVerdict
from headrace.runtime.checkpoint.integrity import Flaw

# The most files of an unfinished batch that are named; `--json` has all.
_FEW = 5


def print_checkpoint(anatomy: CheckpointSummary) -> None:
    """Print a checkpoint: single values as lines, lists as tables."""
    out.print(Text.assemble((anatomy.flow, "bold"), "" if anatomy.declared else "  (not in the project anymore)"))
    for label, value in _lines(anatomy):
        out.print(Text.assemble((f"  {label:<11}", "dim"), value))
    if anatomy.reads:
        out.print(_reads_table(anatomy))
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


def _reads_table(anatomy: CheckpointSummary) -> Table:
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


def _print_flaw(flaw: Flaw) -> None:
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
