"""Put a backup in the place of a flow's checkpoint: planned, explained, then done. Nothing is ever deleted.

The flow's folder stays where it is, and with it the lease. What is in it moves to `FLOW.replaced-TIME` beside it:

1. The lease is taken: a running flow is refused, and cannot be started meanwhile.
2. The backup is copied beside the checkpoint, each file compared with its sha256.
3. A note says that a restore is under way. A flow is not started while it is there (HR-320).
4. What is there is moved aside; what was copied is moved in.
5. The note is deleted.

A restore that is cut off is run again: what it finds then is moved aside too.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.clients.storage import local_path
from headrace.errors import RecoveryError
from headrace.flow.flow import Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.sink import TracksBatches, leaf_sinks
from headrace.flow.target import Lease, Target
from headrace.operate.checkpoint.backup import Backup, copied, is_of_the_lease, require_local, untrusted
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.integrity import RESTORE_MARKER, batch_numbers
from headrace.runtime.checkpoint.lease import acquire_lease, raise_lease_number
from headrace.runtime.checkpoint.manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Plan:
    """What a restore would do, in `lines` for people. `last` is the last batch that is known to be committed."""

    backup: Backup
    source: Path
    last: int
    lines: tuple[str, ...]


def plan_restore(checkpoint: Checkpoint, source: Path, flow: Flow | None) -> Plan:
    """Judge a backup and say what its restore does. Raises when it cannot be done; changes nothing."""
    require_local(checkpoint)
    backup = Backup.read(source)
    present = _present_id(checkpoint)
    if backup.flow != checkpoint.flow:
        raise _of_another(checkpoint, source, f"It is a backup of flow '{backup.flow}'.")
    if present not in (None, "", backup.query_id):
        raise _of_another(
            checkpoint,
            source,
            f"It is of the checkpoint {backup.query_id}, and the present one is {present}: one that was begun anew. "
            "The sinks know batches by that identity.",
        )
    backup.require_whole(source)
    # The manifest lies beside Spark's checkpoint, and knows commits that are gone with it.
    known = {*Manifest(checkpoint).read().sums, *(f"commits/{number}" for number in checkpoint.committed_batches())}
    last = max(batch_numbers(known, "commits"), default=-1)
    _require_no_skipping(flow, backup, source, last)
    return Plan(backup, source, last, tuple(_explained(checkpoint, backup, present, last, flow)))


def require_not_ahead(plan: Plan, flow: Flow, target: Target, spark: SparkSession) -> None:
    """Raise when a sink holds batches that the backup has not planned. Asks every sink that can say."""
    for step, sink in leaf_sinks(flow.sink):
        if isinstance(sink, TracksBatches):
            held = sink.committed_batches(spark, flow.name, step, target)
            last = held.last.get(plan.backup.query_id, -1)
            if last > plan.backup.planned:
                raise _too_old(plan.backup, plan.source, held.place, last)


def _require_no_skipping(flow: Flow | None, backup: Backup, source: Path, last: int) -> None:
    """Raise when an exactly-once sink that cannot say what it holds must hold more than the backup has planned."""
    for _, sink in leaf_sinks(flow.sink) if flow else ():
        if sink.guarantee is Guarantee.EXACTLY_ONCE and not isinstance(sink, TracksBatches) and last > backup.planned:
            raise _too_old(backup, source, sink.name, last)


def accountable(flow: Flow) -> bool:
    """Whether a sink of the flow can say which batches it holds: asking it takes a Spark session."""
    return any(isinstance(sink, TracksBatches) for _, sink in leaf_sinks(flow.sink))


def restore(checkpoint: Checkpoint, plan: Plan, terms: Lease | None = None) -> Path | None:
    """Carry out a plan, and return where the checkpoint that was there is now; None when there was none."""
    folder, now = local_path(checkpoint.folder), datetime.now(UTC)
    # Where nothing is left of the flow, its leases would begin at 1 again, below what its sinks remember.
    if not checkpoint.files.names(checkpoint.metadata_dir):
        raise_lease_number(checkpoint, plan.backup.lease)
    with acquire_lease(checkpoint, terms):
        staged = folder.with_name(f".{folder.name}.restoring-{now:%Y%m%dT%H%M%S%fZ}")
        try:
            for path, noted in plan.backup.files.items():
                if copied(plan.source / path, staged / path) != noted:
                    raise untrusted(plan.source, f"{path} was changed while it was read.")
            note = {"from": str(plan.source), "at": now.isoformat(timespec="seconds")}
            checkpoint.files.write(f"{checkpoint.metadata_dir}/{RESTORE_MARKER}", json.dumps(note))
            aside = _moved(folder, folder.with_name(f"{folder.name}.replaced-{now:%Y%m%dT%H%M%S%fZ}"))
            _moved(staged, folder)
            os.sync()
            checkpoint.files.delete(f"{checkpoint.metadata_dir}/{RESTORE_MARKER}")
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return aside


def _moved(source: Path, into: Path) -> Path | None:
    """Move what makes up a checkpoint from one flow's folder to another; return where to, if there was anything."""
    moved = False
    for each in (source / "spark", *sorted((source / "headrace").glob("*"))):
        path = str(each.relative_to(source))
        if each.exists() and not is_of_the_lease(path) and each.name != RESTORE_MARKER:
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            each.rename(into / path)
            moved = True
    return into if moved else None


def _present_id(checkpoint: Checkpoint) -> str | None:
    """Return the identity of the present checkpoint, None when there is none, and nothing when it cannot be read."""
    try:
        found = checkpoint.query_id()
    except RecoveryError:
        return ""
    return "" if found is None and (checkpoint.planned_batches() or checkpoint.committed_batches()) else found


def _explained(
    checkpoint: Checkpoint, backup: Backup, present: str | None, last: int, flow: Flow | None
) -> Iterator[str]:
    upto = "before its first batch" if backup.committed is None else f"up to batch {backup.committed}"
    yield f"The backup of {backup.made_at} holds flow '{backup.flow}' {upto}: {len(backup.files)} files, all verified."
    if present is None:
        yield "There is no checkpoint to set aside."
    else:
        yield f"The present checkpoint is set aside as {checkpoint.folder}.replaced-TIME and kept."
    if present == "":
        yield "The identity of the present checkpoint cannot be read; that it is the same one cannot be proven."
    if flow is None:
        yield "The project does not declare the flow: what its sinks hold cannot be compared."
        return
    again = [sink.name for _, sink in leaf_sinks(flow.sink) if sink.guarantee is not Guarantee.EXACTLY_ONCE]
    if again:
        further = f"The present checkpoint is further, at batch {last}. " if last > backup.planned else ""
        yield f"{further}{', '.join(again)}: rows that were written since the backup are written again."


def _too_old(backup: Backup, source: Path, place: str, last: int) -> RecoveryError:
    return RecoveryError(
        f"{source} is older than {place}.",
        why=f"The backup has planned batches up to {backup.planned}, and {place} holds them up to {last}. From the "
        f"backup the flow would make batches {backup.planned + 1} to {last} anew, of other rows. An exactly-once sink "
        "takes a number that it holds for written and skips it: those rows would be lost.",
        state="Nothing was changed: neither the checkpoint nor the sink.",
        remedy="Restore a backup that was made later, or bring the sink back to what it was when this one was made.",
        code="HR-327",
    )


def _of_another(checkpoint: Checkpoint, source: Path, why: str) -> RecoveryError:
    return RecoveryError(
        f"{source} is not a backup of the checkpoint of flow '{checkpoint.flow}'.",
        why=why,
        state="Nothing was changed.",
        remedy="Name another backup with --from. To put this one in the place of another checkpoint, move "
        f"{checkpoint.folder} away first.",
        code="HR-326",
    )
