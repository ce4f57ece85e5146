"""Which entry of the offset log belongs to which input.

The order is worked out from the plan at each start (`spark_plan.source_order`) and kept beside the checkpoint, where
the audit and the commands find it:

    FLOW/headrace/order.json

The offsets of a checkpoint stand in the order of its first batch for ever. So a start with another order, or with more
or fewer sources, is refused: Spark would read one source from the offsets of another, or stop and not say why.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from headrace.errors import RecoveryError
from headrace.flow.flow import Flow
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.spark_plan.source_order import Place


def require_order(checkpoint: Checkpoint, order: Sequence[Place]) -> None:
    """Raise HR-343 unless the checkpoint is about these sources in this order, else record it.

    Called under the lease, before each start of a query.
    """
    planned = checkpoint.planned()
    if planned:
        kept = recorded_order(checkpoint)
        held = len(checkpoint.entry(planned[-1]).offsets)
        fits = len(order) == held and (kept is None or all(a.same(b) for a, b in zip(kept, order, strict=False)))
        if not fits:
            raise _changed(checkpoint, [str(each) for each in kept] if kept else [f"{held} sources"], order)
    text = json.dumps({"sources": [asdict(each) for each in order]}, indent=1)
    checkpoint.files.write(_path(checkpoint), text)


def recorded_order(checkpoint: Checkpoint) -> tuple[Place, ...] | None:
    """Return the order of the last start, or None where none is recorded. Raises HR-345 for a damaged record."""
    text = checkpoint.files.read(_path(checkpoint))
    if text is None:
        return None
    try:
        return tuple(Place(**each) for each in json.loads(text)["sources"])
    except (ValueError, KeyError, TypeError) as error:
        raise RecoveryError(
            f"Flow '{checkpoint.flow}': {_path(checkpoint)} cannot be read.",
            why=f"It holds the order of the flow's sources in the offset log; here: {error}.",
            state="Nothing was started and nothing was changed.",
            remedy="Restore the file from a backup. If neither the inputs nor the transform changed since the flow "
            "last ran, delete it: the next start writes it anew.",
            code="HR-345",
        ) from error


def source_index(checkpoint: Checkpoint, flow: Flow, name: str) -> int | None:
    """Return where the offsets of an input stand in the offset log, or None when the transform does not read it.

    A checkpoint without a record has the inputs in the order of their declaration.
    """
    order = recorded_order(checkpoint)
    if order is None:
        return list(flow.named_inputs).index(name)
    return next((n for n, each in enumerate(order) if (each.input, each.role) == (name, "rows")), None)


def _path(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.house}/order.json"


def _changed(checkpoint: Checkpoint, kept: Sequence[str], order: Sequence[Place]) -> RecoveryError:
    now = ", ".join(str(each) for each in order)
    return RecoveryError(
        f"Flow '{checkpoint.flow}' reads other sources than its checkpoint is about, or in another order.",
        why=f"The checkpoint holds the offsets of {', '.join(kept)}; the flow now reads {now}. Sources are numbered in "
        "the order in which the transform reads them, and an input whose watermark has an `idle` has a second one for "
        "its heartbeats.",
        state="Nothing was started and nothing was written.",
        remedy="Restore the previous inputs and transform, or start the flow under a new name.",
        code="HR-343",
    )
