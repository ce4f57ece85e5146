"""Maps the entries of the offset log to the inputs of a flow.

Each start reads the order from the query plan (`spark_plan.source_order`) and records it in the checkpoint's metadata,
for the audit and the commands:

    FLOW/headrace/order.json

The first batch fixes the order of the offsets. So a start with another order, or with more or fewer sources, is
refused: Spark would read one source from the offsets of another, or fail without a reason.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict

from headrace.errors import RecoveryError
from headrace.flow.flow import Flow
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.spark_plan.source_order import PlannedSource


def require_same_source_order(checkpoint: Checkpoint, order: Sequence[PlannedSource]) -> None:
    """Raise HR-343 unless the checkpoint has these sources in this order, else record it.

    Called under the lease, before each start of a query.
    """
    planned = checkpoint.planned_batches()
    if planned:
        recorded = read_source_order(checkpoint)
        count = len(checkpoint.offset_entry(planned[-1]).offsets)
        matches = len(order) == count and (
            recorded is None or all(old.is_same(new) for old, new in zip(recorded, order, strict=False))
        )
        if not matches:
            names = [str(source) for source in recorded] if recorded else [f"{count} sources"]
            current = ", ".join(str(source) for source in order)
            raise RecoveryError(
                f"Flow '{checkpoint.flow}' reads other sources than its checkpoint, or in another order.",
                why=f"The checkpoint has the offsets of {', '.join(names)}; the flow now reads {current}. Sources are "
                "numbered in the order in which the transform reads them, and an input with an idle_timeout has a "
                "second one for its idle ticks.",
                state="Nothing was started and nothing was written.",
                remedy="Restore the previous inputs and transform, or start the flow under a new name.",
                code="HR-343",
            )
    text = json.dumps({"sources": [asdict(source) for source in order]}, indent=1)
    checkpoint.files.write(_path(checkpoint), text)


def read_source_order(checkpoint: Checkpoint) -> tuple[PlannedSource, ...] | None:
    """Return the order of the last start, or None if not recorded. Raises HR-345 for a damaged record."""
    text = checkpoint.files.read(_path(checkpoint))
    if text is None:
        return None
    try:
        return tuple(PlannedSource(**source) for source in json.loads(text)["sources"])
    except (ValueError, KeyError, TypeError) as error:
        raise RecoveryError(
            f"Flow '{checkpoint.flow}': {_path(checkpoint)} cannot be read.",
            why=f"It has the order of the flow's sources in the offset log; here: {error}.",
            state="Nothing was started and nothing was changed.",
            remedy="Restore the file from a backup. If neither the inputs nor the transform changed since the flow "
            "last ran, delete it: the next start writes it again.",
            code="HR-345",
        ) from error


def source_index(checkpoint: Checkpoint, flow: Flow, name: str) -> int | None:
    """Return the index of an input in the offset log, or None if the transform does not read it.

    Without a record the order is that of the declaration.
    """
    order = read_source_order(checkpoint)
    if order is None:
        return list(flow.named_inputs).index(name)
    return next((n for n, source in enumerate(order) if (source.input, source.role) == (name, "rows")), None)


def _path(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.metadata_dir}/order.json"
