"""What the checkpoints of flows say against their declarations, before anything is started.

| code    | severity | finds                                                                             |
|---------|----------|-----------------------------------------------------------------------------------|
| HRC-121 | error    | state that is kept in another kind of store than declared: the start is HR-344    |
| HRC-122 | error    | an `idle_timeout` that was added: the checkpoint has no heartbeats, the start is HR-343   |
| HRC-123 | error    | state that is over its budget: the start is HR-229                                |
| HRC-213 | warning  | another number of shuffle partitions than declared, or than the machine has cores |
| HRC-215 | warning  | state that has used four fifths of its budget                                     |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.clients.storage import file_store, is_local
from headrace.flow.checks.finding import Finding, Severity
from headrace.flow.flow import Flow
from headrace.flow.size import format_bytes
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.integrity import find_log_flaws
from headrace.runtime.checkpoint.pinned_settings import read_pinned_settings
from headrace.runtime.checkpoint.source_order import read_source_order
from headrace.runtime.session import local_cores
from headrace.runtime.state.size import read_state_size

_NEAR = 0.8


def state_findings(flows: Sequence[Flow], target: Target) -> list[Finding]:
    """Return what is found in the checkpoints of a target. Those on other storage than a local disk are not looked at.

    Called by `headrace check`. Starts no Spark and changes nothing. Damage is left to `headrace checkpoint verify`.
    """
    if not is_local(target.checkpoints):
        return []
    found: list[Finding] = []
    for flow in flows:
        checkpoint = Checkpoint.of(flow.name, target, file_store(target.checkpoints))
        if checkpoint.planned_batches() and not any(flaw.level == "damage" for flaw in find_log_flaws(checkpoint)):
            found.extend(_frozen(flow, checkpoint, target))
            found.extend(_beats(flow, checkpoint))
            found.extend(_budget(flow, checkpoint))
    return found


def _frozen(flow: Flow, checkpoint: Checkpoint, target: Target) -> Iterator[Finding]:
    kept, declared = read_pinned_settings(checkpoint), type(flow.state).__name__
    if kept is None:
        return
    if kept.state_class != declared:
        yield Finding(
            "HRC-121",
            Severity.ERROR,
            f"flow '{flow.name}'",
            f"{declared}() is declared, and the checkpoint keeps the state with {kept.state_class}. The first batch "
            "decides it.",
            f"Declare state={kept.state_class}(), or give the flow a new name.",
        )
    wanted = flow.state.shuffle_partitions or local_cores(target.master)
    if wanted is not None and wanted != kept.partitions:
        because = "are declared" if flow.state.shuffle_partitions else "would be taken for the cores of this machine"
        yield Finding(
            "HRC-213",
            Severity.WARNING,
            f"flow '{flow.name}'",
            f"{wanted} shuffle partitions {because}, and the checkpoint has {kept.partitions}. The first batch decides "
            "it, and the flow goes on with that number.",
            f"Declare shuffle_partitions={kept.partitions}. Another number needs a new name.",
        )


def _beats(flow: Flow, checkpoint: Checkpoint) -> Iterator[Finding]:
    order = read_source_order(checkpoint) or ()
    beating = {place.input for place in order if place.role == "beats"}
    for name, given in flow.named_inputs.items():
        if given.watermark is not None and given.watermark.idle_timeout and name not in beating:
            yield Finding(
                "HRC-122",
                Severity.ERROR,
                f"flow '{flow.name}', input '{name}'",
                "`idle_timeout` was added after the first batch. Idle ticks are a separate source, and the checkpoint "
                "has no offsets of it.",
                "Take `idle_timeout` away, or give the flow a new name.",
            )


def _budget(flow: Flow, checkpoint: Checkpoint) -> Iterator[Finding]:
    note = read_state_size(checkpoint)
    limits = flow.state.budget.limits if flow.state.budget is not None else {}
    for measure, limit in limits.items():
        used = note.amount(measure) if note is not None else 0
        if note is None or used < _NEAR * limit:
            continue
        said = (f"{used:,}", f"{limit:,} rows") if measure == "rows" else (format_bytes(used), format_bytes(limit))
        over = used > limit
        yield Finding(
            "HRC-123" if over else "HRC-215",
            Severity.ERROR if over else Severity.WARNING,
            f"flow '{flow.name}'",
            f"After batch {note.batch} the state had {said[0]} of a budget of {said[1]}.",
            "Raise the budget, or shorten the delay of the watermark or the window.",
        )
