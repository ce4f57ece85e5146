"""Replace a flow's checkpoint by a backup: plan, explain, then apply. Nothing is ever deleted.

The flow's folder and its lease stay. Its content moves to `FLOW.replaced-TIME` next to it:

1. Take the lease: a running flow is refused, and none can start during the restore.
2. Copy the backup next to the checkpoint, and compare each file with its sha256.
3. Write a note that a restore is in progress. A flow does not start while the note exists (HR-320).
4. Move the present content away, and the copy in.
5. Delete the note.

If a restore is interrupted, run it again: it moves away whatever is there.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.clients.storage import local_path
from headrace.errors import RecoveryError
from headrace.flow.flow import Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.sink import TracksBatches, leaf_sinks
from headrace.flow.target import Lease, Target
from headrace.operate.checkpoint.backup import Backup, copy_with_checksum, invalid_backup, is_lease_file, require_local
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.integrity import RESTORE_MARKER, batch_numbers
from headrace.runtime.checkpoint.lease import acquire_lease, raise_lease_number
from headrace.runtime.checkpoint.manifest import Manifest


@dataclass(frozen=True)
class RestorePlan:
    """What a restore does, in `lines` for people. `last` is the last batch that is known to be committed."""

    backup: Backup
    source: Path
    last: int
    lines: tuple[str, ...]


def plan_restore(checkpoint: Checkpoint, source: Path, flow: Flow | None) -> RestorePlan:
    """Check a backup and return what its restore does. Raises if it cannot be restored; changes nothing."""
    require_local(checkpoint)
    backup = Backup.read(source)
    present = _present_id(checkpoint)
    if backup.flow != checkpoint.flow:
        raise _wrong_backup(checkpoint, source, f"It is a backup of flow '{backup.flow}'.")
    if present not in (None, "", backup.query_id):
        raise _wrong_backup(
            checkpoint,
            source,
            f"It is of the checkpoint {backup.query_id}, and the present one is {present}, a new checkpoint. "
            "The sinks identify batches by it.",
        )
    backup.require_complete(source)
    # The manifest is outside of Spark's checkpoint, and still lists commits that were deleted with it.
    committed_names = {
        *Manifest(checkpoint).read().sums,
        *(f"commits/{number}" for number in checkpoint.committed_batches()),
    }
    last = max(batch_numbers(committed_names, "commits"), default=-1)
    _require_no_skipping(flow, backup, source, last)
    return RestorePlan(backup, source, last, tuple(_describe(checkpoint, backup, present, last, flow)))


def require_sinks_not_ahead(plan: RestorePlan, flow: Flow, target: Target, spark: SparkSession) -> None:
    """Raise if a sink has batches that the backup has not planned. Asks every sink that tracks batches."""
    for step, sink in leaf_sinks(flow.sink):
        if isinstance(sink, TracksBatches):
            sink_batches = sink.committed_batches(spark, flow.name, step, target)
            last = sink_batches.last.get(plan.backup.query_id, -1)
            if last > plan.backup.planned:
                raise _backup_too_old(plan.backup, plan.source, sink_batches.place, last)


def _require_no_skipping(flow: Flow | None, backup: Backup, source: Path, last: int) -> None:
    """Raise if an exactly-once sink that does not track batches must have more than the backup has planned."""
    for _, sink in leaf_sinks(flow.sink) if flow else ():
        if sink.guarantee is Guarantee.EXACTLY_ONCE and not isinstance(sink, TracksBatches) and last > backup.planned:
            raise _backup_too_old(backup, source, sink.name, last)


def has_tracking_sink(flow: Flow) -> bool:
    """Whether a sink of the flow tracks its batches; asking it needs a Spark session."""
    return any(isinstance(sink, TracksBatches) for _, sink in leaf_sinks(flow.sink))


def restore(checkpoint: Checkpoint, plan: RestorePlan, lease_settings: Lease | None = None) -> Path | None:
    """Apply a plan, and return the new location of the replaced checkpoint, or None if there was none."""
    folder, now = local_path(checkpoint.folder), datetime.now(UTC)
    # Without any metadata of the flow its leases would start at 1 again, below what its sinks have recorded.
    if not checkpoint.files.names(checkpoint.metadata_dir):
        raise_lease_number(checkpoint, plan.backup.lease)
    with acquire_lease(checkpoint, lease_settings):
        staged = folder.with_name(f".{folder.name}.restoring-{now:%Y%m%dT%H%M%S%fZ}")
        try:
            for path, expected in plan.backup.files.items():
                if copy_with_checksum(plan.source / path, staged / path) != expected:
                    raise invalid_backup(plan.source, f"{path} was changed while it was read.")
            note = {"from": str(plan.source), "at": now.isoformat(timespec="seconds")}
            checkpoint.files.write(f"{checkpoint.metadata_dir}/{RESTORE_MARKER}", json.dumps(note))
            replaced = _move_checkpoint(folder, folder.with_name(f"{folder.name}.replaced-{now:%Y%m%dT%H%M%S%fZ}"))
            _move_checkpoint(staged, folder)
            os.sync()
            checkpoint.files.delete(f"{checkpoint.metadata_dir}/{RESTORE_MARKER}")
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return replaced


def _move_checkpoint(source: Path, into: Path) -> Path | None:
    """Move the files of a checkpoint to another folder; return that folder if there were any."""
    any_moved = False
    for path in (source / "spark", *sorted((source / "headrace").glob("*"))):
        relative_path = str(path.relative_to(source))
        if path.exists() and not is_lease_file(relative_path) and path.name != RESTORE_MARKER:
            (into / relative_path).parent.mkdir(parents=True, exist_ok=True)
            path.rename(into / relative_path)
            any_moved = True
    return into if any_moved else None


def _present_id(checkpoint: Checkpoint) -> str | None:
    """Return the id of the present checkpoint, None without one, and an empty text if it cannot be read."""
    try:
        query_id = checkpoint.query_id()
    except RecoveryError:
        return ""
    return "" if query_id is None and (checkpoint.planned_batches() or checkpoint.committed_batches()) else query_id


def _describe(
    checkpoint: Checkpoint, backup: Backup, present: str | None, last: int, flow: Flow | None
) -> Iterator[str]:
    extent = "before its first batch" if backup.committed is None else f"up to batch {backup.committed}"
    files = f"{len(backup.files)} files, all verified"
    yield f"The backup of {backup.made_at} contains flow '{backup.flow}' {extent}: {files}."
    if present is None:
        yield "There is no present checkpoint."
    else:
        yield f"The present checkpoint is moved to {checkpoint.folder}.replaced-TIME."
    if present == "":
        yield "The id of the present checkpoint cannot be read, so it cannot be compared with that of the backup."
    if flow is None:
        yield "The project does not declare the flow: its sinks cannot be compared."
        return
    repeating = [sink.name for _, sink in leaf_sinks(flow.sink) if sink.guarantee is not Guarantee.EXACTLY_ONCE]
    if repeating:
        ahead = f"The present checkpoint is further, at batch {last}. " if last > backup.planned else ""
        yield f"{ahead}{', '.join(repeating)}: rows that were written since the backup are written again."


def _backup_too_old(backup: Backup, source: Path, place: str, last: int) -> RecoveryError:
    return RecoveryError(
        f"{source} is older than {place}.",
        why=f"The backup has planned batches up to {backup.planned}, and {place} holds them up to {last}. From the "
        f"backup the flow would rebuild batches {backup.planned + 1} to {last} with other rows. An exactly-once sink "
        "skips the numbers that it has already committed: those rows would be lost.",
        state="Nothing was changed: neither the checkpoint nor the sink.",
        remedy="Restore a backup that was made later, or restore the sink to the same point in time.",
        code="HR-327",
    )


def _wrong_backup(checkpoint: Checkpoint, source: Path, why: str) -> RecoveryError:
    return RecoveryError(
        f"{source} is not a backup of the checkpoint of flow '{checkpoint.flow}'.",
        why=why,
        state="Nothing was changed.",
        remedy="Name another backup with --from. To replace another checkpoint by this one, move "
        f"{checkpoint.folder} away first.",
        code="HR-326",
    )
