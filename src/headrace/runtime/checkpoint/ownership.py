"""Checks before a start that the checkpoint matches the tables and topics that the flow writes.

A sink records committed batches under the query id of the checkpoint, and skips those that it has. So a checkpoint that
was deleted, copied, restored or replaced would silently duplicate or lose rows. The committed batches of each sink are
compared with the offset log and the commit log:

| the checkpoint                    | the sink                                     | error  |
|-----------------------------------|----------------------------------------------|--------|
| has committed no batch            | has batches of an earlier checkpoint         | HR-331 |
| has committed batches             | is missing, was recreated, has none of them  | HR-332 |
| ends at batch N                   | has a later batch                            | HR-333 |
| has committed batch N             | ends before it                               | HR-334 |
| was copied or moved               |                                              | HR-335 |

After a crash a sink may be one batch ahead of the commit log, or of another sink. Sinks that do not record batches
(at-least-once, best-effort) are not checked.

`FLOW/headrace/identity.json` records the location of the checkpoint and the identity of each table or topic.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.clients.storage import is_local, local_path
from headrace.errors import RecoveryError
from headrace.flow.flow import Flow
from headrace.flow.sink import CommittedBatches, TracksBatches, leaf_sinks
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint

_NOTHING_STARTED = "Nothing was started and nothing was written."
_NEW_NAME = "start the flow under a new name with new tables"


@dataclass(frozen=True)
class _Identity:
    """The content of identity.json: the location of the checkpoint, and the identity of the table or topic per step."""

    location: str
    places: Mapping[str, str] = field(default_factory=dict)


def require_matching_sinks(spark: SparkSession, flow: Flow, target: Target, checkpoint: Checkpoint) -> None:
    """Compare every sink with the checkpoint; raise a RecoveryError unless they match, else record their identities.

    Called under the lease, before each start of a query, and before the sinks are prepared.
    """
    recorded = _recorded(checkpoint)
    _require_location(checkpoint, recorded)
    places = dict(recorded.places)
    for step, sink in leaf_sinks(flow.sink):
        if isinstance(sink, TracksBatches):
            committed = sink.committed_batches(spark, flow.name, step, target)
            _require_match(checkpoint, committed, places.get(step))
            if committed.identity is not None:
                places[step] = committed.identity
    identity = _Identity(_location(checkpoint), places)
    checkpoint.files.write(_path(checkpoint), json.dumps(asdict(identity), indent=1))


def _path(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.metadata_dir}/identity.json"


def _location(checkpoint: Checkpoint) -> str:
    """Return the canonical location of the checkpoint."""
    if not is_local(checkpoint.folder):
        return checkpoint.folder
    return str(Path(local_path(checkpoint.folder)).resolve())


def _recorded(checkpoint: Checkpoint) -> _Identity:
    """Read identity.json. A checkpoint without one is accepted as the original."""
    text = checkpoint.files.read(_path(checkpoint))
    if text is None:
        return _Identity(_location(checkpoint))
    try:
        record = json.loads(text)
        return _Identity(str(record["location"]), {**record["places"]})
    except (ValueError, KeyError, TypeError) as error:
        raise RecoveryError(
            f"Flow '{checkpoint.flow}': {_path(checkpoint)} cannot be read.",
            why=f"It records which places belong to the checkpoint; here: {error}.",
            state=_NOTHING_STARTED,
            remedy="Restore the file, or delete it: the batches of the sinks are compared in any case.",
            code="HR-338",
        ) from error


def _require_location(checkpoint: Checkpoint, recorded: _Identity) -> None:
    """Raise if the checkpoint was copied or moved."""
    if recorded.location != _location(checkpoint):
        raise RecoveryError(
            f"The checkpoint of flow '{checkpoint.flow}' is at {_location(checkpoint)}, and was created elsewhere.",
            why=f"It belongs to {recorded.location}. Two copies have the same batch numbers, and a sink that has "
            "a batch of one of them skips that of the other: its rows would be lost.",
            state=_NOTHING_STARTED,
            remedy="Run the flow on the original. If the original no longer exists, delete "
            f"{_path(checkpoint)}: the next start then treats this folder as the original.",
            code="HR-335",
        )


def _require_match(checkpoint: Checkpoint, sink: CommittedBatches, identity: str | None) -> None:
    """Raise unless the committed batches of one sink match the checkpoint."""
    flow, query_id = checkpoint.flow, checkpoint.query_id()
    planned, committed = checkpoint.planned_batches(), checkpoint.committed_batches()
    last = None if query_id is None else sink.last.get(query_id)
    earlier = {other: number for other, number in sink.last.items() if other != query_id}
    if not committed and last is None and earlier:
        counts = ", ".join(f"{other} up to batch {number}" for other, number in earlier.items())
        raise RecoveryError(
            f"Flow '{flow}' has a new checkpoint, and {sink.place} has batches of an earlier one.",
            why=f"It has those of {counts}. A new checkpoint begins at the start of its sources.",
            state=f"{_NOTHING_STARTED} The rows in the sink would be written twice.",
            remedy=f"Restore the earlier checkpoint to {checkpoint.folder}; or, to start over, move it away; or "
            f"{_NEW_NAME}.",
            code="HR-331",
        )
    end = planned[-1] if planned else -1
    if last is not None and last > end:
        ends, before = (f"ends at batch {end}", end) if planned else ("has no batches", "before the first")
        raise RecoveryError(
            f"The checkpoint of flow '{flow}' was set back: {sink.place} is ahead of it.",
            why=f"It has batch {last}, and the checkpoint {ends}: an old copy was restored, or entries were deleted.",
            state=f"{_NOTHING_STARTED} Batches {end + 1} to {last} would be planned again with other rows. The "
            "sink skips these numbers: rows would be lost. At-least-once sinks would get rows twice.",
            remedy=f"Restore a checkpoint that ends at batch {last}, or restore the place to batch {before}; or "
            f"{_NEW_NAME}.",
            code="HR-333",
        )
    if not committed:
        return
    if sink.identity is None or last is None or (identity is not None and sink.identity != identity):
        problem = (
            "is not there" if sink.identity is None else "is another one now" if last is not None else "holds none"
        )
        raise RecoveryError(
            f"Flow '{flow}' has committed {committed[-1] + 1} batches to {sink.place}, which does not have them.",
            why=f"It {problem}: it was deleted, or created again, or added to the flow after these batches.",
            state=f"{_NOTHING_STARTED} The rows of batches 0 to {committed[-1]} would be lost.",
            remedy=f"Restore the place; or, to write everything again, {_NEW_NAME}.",
            code="HR-332",
        )
    if last < committed[-1]:
        raise RecoveryError(
            f"{sink.place[0].upper()}{sink.place[1:]} was restored to a state before the checkpoint of flow '{flow}'.",
            why=f"It ends at batch {last}, and the checkpoint has committed batch {committed[-1]}.",
            state=f"{_NOTHING_STARTED} The rows of batches {last + 1} to {committed[-1]} would be lost.",
            remedy=f"Restore the place to batch {committed[-1]}, or a checkpoint that ends at batch {last}; or "
            f"{_NEW_NAME}.",
            code="HR-334",
        )
