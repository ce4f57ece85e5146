"""Compare the checkpoints of flows with their declarations, before anything starts.

| code    | severity | finds                                                                             |
|---------|----------|-----------------------------------------------------------------------------------|
| HRC-121 | error    | state in another kind of store than declared: the start fails with HR-344         |
| HRC-122 | error    | an added `idle_timeout`: the checkpoint has no idle ticks, the start fails with HR-343    |
| HRC-123 | error    | state over its budget: the start fails with HR-229                                |
| HRC-213 | warning  | a number of shuffle partitions that differs from the declaration or the cores     |
| HRC-215 | warning  | state that has used four fifths of its budget                                     |
"""

from collections.abc import Iterator, Sequence

from headrace.clients.storage import is_local
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

_WARNING_SHARE = 0.8


def state_findings(flows: Sequence[Flow], target: Target) -> list[Finding]:
    """Return the findings in the checkpoints of a target. Skips checkpoints that are not on a local disk.

    Used by `headrace check`. Starts no Spark and changes nothing. `headrace checkpoint verify` reports damage.
    """
    if not is_local(target.checkpoints):
        return []
    findings: list[Finding] = []
    for flow in flows:
        checkpoint = Checkpoint.of(flow.name, target)
        if checkpoint.planned_batches() and not any(flaw.level == "damage" for flaw in find_log_flaws(checkpoint)):
            findings.extend(_pinned_setting_findings(flow, checkpoint, target))
            findings.extend(_idle_findings(flow, checkpoint))
            findings.extend(_budget_findings(flow, checkpoint))
    return findings


def _pinned_setting_findings(flow: Flow, checkpoint: Checkpoint, target: Target) -> Iterator[Finding]:
    pinned, declared = read_pinned_settings(checkpoint), type(flow.state).__name__
    if pinned is None:
        return
    if pinned.state_class != declared:
        yield Finding(
            "HRC-121",
            f"flow '{flow.name}'",
            f"{declared}() is declared, and the checkpoint has its state in {pinned.state_class}. The first "
            "batch fixes it.",
            f"Declare state={pinned.state_class}(), or give the flow a new name.",
        )
    partitions = flow.state.shuffle_partitions or local_cores(target.master)
    if partitions is not None and partitions != pinned.partitions:
        reason = "are declared" if flow.state.shuffle_partitions else "would match the cores of this machine"
        yield Finding(
            "HRC-213",
            f"flow '{flow.name}'",
            f"{partitions} shuffle partitions {reason}, and the checkpoint has {pinned.partitions}. The first batch "
            "fixes the number, and the flow keeps it.",
            f"Declare shuffle_partitions={pinned.partitions}. Another number needs a new name.",
            severity=Severity.WARNING,
        )


def _idle_findings(flow: Flow, checkpoint: Checkpoint) -> Iterator[Finding]:
    order = read_source_order(checkpoint) or ()
    inputs_with_idle_ticks = {place.input for place in order if place.role == "idle ticks"}
    for name, input_ in flow.named_inputs.items():
        if input_.watermark is not None and input_.watermark.idle_timeout and name not in inputs_with_idle_ticks:
            yield Finding(
                "HRC-122",
                f"flow '{flow.name}', input '{name}'",
                "`idle_timeout` was added after the first batch. Idle ticks are a separate source, and the checkpoint "
                "has no offsets of it.",
                "Remove `idle_timeout`, or give the flow a new name.",
            )


def _budget_findings(flow: Flow, checkpoint: Checkpoint) -> Iterator[Finding]:
    note = read_state_size(checkpoint)
    limits = flow.state.budget.limits if flow.state.budget is not None else {}
    for measure, limit in limits.items():
        used = note.amount(measure) if note is not None else 0
        if note is None or used < _WARNING_SHARE * limit:
            continue
        amounts = (f"{used:,}", f"{limit:,} rows") if measure == "rows" else (format_bytes(used), format_bytes(limit))
        is_over = used > limit
        yield Finding(
            "HRC-123" if is_over else "HRC-215",
            f"flow '{flow.name}'",
            f"After batch {note.batch} the state had {amounts[0]} of a budget of {amounts[1]}.",
            "Raise the budget, or shorten the delay of the watermark or the window.",
            severity=Severity.ERROR if is_over else Severity.WARNING,
        )
