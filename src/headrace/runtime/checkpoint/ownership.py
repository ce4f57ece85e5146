"""Whether a checkpoint and the places that its flow writes belong together, asked before a flow starts.

A sink counts batches under the checkpoint's query id, and passes over a number that it knows. So a checkpoint that was
deleted, copied, set back or exchanged beneath its tables would double rows, or lose them, in silence. What each sink
holds is compared with the offset log and the commit log:

| the checkpoint                    | the place                                    |        |
|-----------------------------------|----------------------------------------------|--------|
| has committed nothing             | holds batches of an earlier checkpoint       | HR-331 |
| has committed batches             | is not there, is another, holds none of them | HR-332 |
| ends at batch N                   | holds a later one                            | HR-333 |
| has committed batch N             | ends before it                               | HR-334 |
| lies elsewhere than it was made   |                                              | HR-335 |

A sink that is one batch ahead of the commit log, or of another sink, is what a crash leaves. Sinks that keep no account
(at-least-once, best-effort) are not asked.

`FLOW/headrace/identity.json` records where the checkpoint lies and the identity of each place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.clients.storage import is_local, local_path
from headrace.errors import RecoveryError
from headrace.flow.flow import Flow
from headrace.flow.sink import Accountable, Held, leaves
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNTOUCHED = "Nothing was started and nothing was written."
_NEW_NAME = "start the flow under a new name with new tables"


@dataclass(frozen=True)
class _Identity:
    """What identity.json holds: where the checkpoint lies, and the identity of the place of each step."""

    location: str
    places: Mapping[str, str] = field(default_factory=dict)


def require_lineage(spark: SparkSession, flow: Flow, target: Target, checkpoint: Checkpoint) -> None:
    """Ask every sink what it holds; raise a RecoveryError unless the checkpoint fits, else record who belongs to it.

    Called under the lease, before each start of a query, and before the sinks are prepared.
    """
    recorded = _recorded(checkpoint)
    _require_place(checkpoint, recorded)
    places = dict(recorded.places)
    for step, sink in leaves(flow.sink):
        if isinstance(sink, Accountable):
            held = sink.held(spark, flow.name, step, target)
            _require_fit(checkpoint, held, places.get(step))
            if held.identity is not None:
                places[step] = held.identity
    now = _Identity(_location(checkpoint), places)
    checkpoint.files.write(_path(checkpoint), json.dumps(asdict(now), indent=1))


def _path(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.house}/identity.json"


def _location(checkpoint: Checkpoint) -> str:
    """Return where the checkpoint is, the same by whatever way it is reached."""
    if not is_local(checkpoint.folder):
        return checkpoint.folder
    return str(Path(local_path(checkpoint.folder)).resolve())


def _recorded(checkpoint: Checkpoint) -> _Identity:
    """Read identity.json. A checkpoint without one is taken for what it is."""
    text = checkpoint.files.read(_path(checkpoint))
    if text is None:
        return _Identity(_location(checkpoint))
    try:
        read = json.loads(text)
        return _Identity(str(read["location"]), {**read["places"]})
    except (ValueError, KeyError, TypeError) as error:
        raise RecoveryError(
            f"Flow '{checkpoint.flow}': {_path(checkpoint)} cannot be read.",
            why=f"It records which places belong to the checkpoint; here: {error}.",
            state=_UNTOUCHED,
            remedy="Restore the file, or delete it: what the sinks hold is compared all the same.",
            code="HR-338",
        ) from error


def _require_place(checkpoint: Checkpoint, recorded: _Identity) -> None:
    """Raise when the checkpoint was copied or moved."""
    if recorded.location != _location(checkpoint):
        raise RecoveryError(
            f"The checkpoint of flow '{checkpoint.flow}' lies at {_location(checkpoint)}, and was made elsewhere.",
            why=f"It belongs to {recorded.location}. Two copies count the same batches, and a sink that has a batch "
            "of one of them passes over the other's: its rows would be lost.",
            state=_UNTOUCHED,
            remedy="Run the flow on the original. If that is gone for good and this one stays in its place, delete "
            f"{_path(checkpoint)}: the next start then takes this folder for the original.",
            code="HR-335",
        )


def _require_fit(checkpoint: Checkpoint, held: Held, identity: str | None) -> None:
    """Raise unless the batches of one place are those of the checkpoint."""
    flow, query_id = checkpoint.flow, checkpoint.query_id()
    planned, committed = checkpoint.planned(), checkpoint.committed()
    last = None if query_id is None else held.last.get(query_id)
    earlier = {each: number for each, number in held.last.items() if each != query_id}
    if not committed and last is None and earlier:
        counts = ", ".join(f"{each} up to batch {number}" for each, number in earlier.items())
        raise RecoveryError(
            f"Flow '{flow}' has a new checkpoint, and {held.place} holds batches of an earlier one.",
            why=f"It holds those of {counts}. A new checkpoint begins at the start of its sources.",
            state=f"{_UNTOUCHED} The rows that are in would be written twice.",
            remedy=f"Restore the earlier checkpoint to {checkpoint.folder}; or, to begin anew, move the place away; or "
            f"{_NEW_NAME}.",
            code="HR-331",
        )
    end = planned[-1] if planned else None
    if last is not None and (end is None or last > end):
        ends = "has no batches" if end is None else f"ends at batch {end}"
        raise RecoveryError(
            f"The checkpoint of flow '{flow}' was set back: {held.place} is ahead of it.",
            why=f"It holds batch {last}, and the checkpoint {ends}: an old copy was restored, or entries were deleted.",
            state=f"{_UNTOUCHED} Batches would be cut anew under the numbers {_after(end)} to {last}. This place has "
            "these numbers and passes over them: rows would be lost. At-least-once sinks would get rows twice.",
            remedy=f"Restore a checkpoint that ends at batch {last}, or restore the place to batch {_before(end)}; or "
            f"{_NEW_NAME}.",
            code="HR-333",
        )
    if not committed:
        return
    if held.identity is None or last is None or (identity is not None and held.identity != identity):
        found = "is not there" if held.identity is None else "is another one now" if last is not None else "holds none"
        raise RecoveryError(
            f"Flow '{flow}' has committed {committed[-1] + 1} batches to {held.place}, which does not have them.",
            why=f"It {found}: it was deleted, or made again, or named in the flow after these batches.",
            state=f"{_UNTOUCHED} The rows of batches 0 to {committed[-1]} would be missing for ever.",
            remedy=f"Restore the place; or, to write everything again, {_NEW_NAME}.",
            code="HR-332",
        )
    if last < committed[-1]:
        raise RecoveryError(
            f"{held.place[0].upper()}{held.place[1:]} was set back behind the checkpoint of flow '{flow}'.",
            why=f"It ends at batch {last}, and the checkpoint has committed batch {committed[-1]}.",
            state=f"{_UNTOUCHED} The rows of batches {last + 1} to {committed[-1]} would be missing for ever.",
            remedy=f"Restore the place to batch {committed[-1]}, or a checkpoint that ends at batch {last}; or "
            f"{_NEW_NAME}.",
            code="HR-334",
        )


def _after(end: int | None) -> int:
    return 0 if end is None else end + 1


def _before(end: int | None) -> str:
    return "before the first" if end is None else str(end)
