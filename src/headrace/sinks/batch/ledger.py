"""The ledger of an exactly-once sink: the last committed batch, and whether the next batch may be written."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass

from headrace.errors import RecoveryError
from headrace.flow.sink import Batch


@dataclass(frozen=True)
class LedgerEntry:
    """The last committed batch of a sink.

    | field    | meaning                                                                                       |
    |----------|-----------------------------------------------------------------------------------------------|
    | ledger   | random id of the ledger; a ledger that was deleted and recreated has another one              |
    | query_id | the checkpoint whose batches are counted                                                      |
    | batch_id | the last committed batch                                                                      |
    | offsets  | the digest of that batch                                                                      |
    | fence    | the token of the lease under which it was written                                             |
    """

    ledger: str
    query_id: str
    batch_id: int
    offsets: str
    fence: int

    def encoded(self) -> str:
        """Return the entry as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decoded(cls, text: str, place: str) -> LedgerEntry:
        """Parse an entry; raise RecoveryError (HR-319) if the text is not one."""
        try:
            fields = json.loads(text)
            return cls(
                str(fields["ledger"]),
                str(fields["query_id"]),
                int(fields["batch_id"]),
                str(fields["offsets"]),
                int(fields["fence"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise RecoveryError(
                f"The ledger in {place} cannot be read.",
                why=f"It holds {text!r}.",
                state="Nothing was written.",
                remedy="Restore the ledger, or start the flow under a new name.",
                code="HR-319",
            ) from error


def next_entry(last: LedgerEntry | None, batch: Batch, place: str, *, require_complete: bool) -> LedgerEntry | None:
    """Return the entry to record after the batch, or None if the batch is already committed.

    Raises if the batch does not follow the last entry. With `require_complete` the ledger must contain every batch
    since batch 0; without it, a missing ledger starts with the current batch.
    """
    entry = LedgerEntry(
        str(uuid.uuid4()) if last is None else last.ledger, batch.query_id, batch.id, batch.offsets, batch.fence
    )
    if last is None:
        if require_complete and batch.id > 0:
            raise _mismatch_error(batch, place, f"It holds none, and {batch.id} batches were written before.")
        return entry
    if last.query_id != batch.query_id:
        raise RecoveryError(
            f"Flow '{batch.flow}' cannot write batch {batch.id}.",
            why=f"The ledger in {place} counts the batches of another checkpoint ({last.query_id}, up to "
            f"{last.batch_id}); this one is {batch.query_id}.",
            state="Nothing was written. What the other checkpoint wrote is as it was.",
            remedy="Restore the checkpoint that the ledger belongs to, or start the flow under a new name, with "
            "another place for its rows.",
            code="HR-313",
        )
    if last.fence > batch.fence:
        raise RecoveryError(
            f"Flow '{batch.flow}' may no longer write.",
            why=f"A later driver has written batch {last.batch_id}.",
            state="Nothing was written; the other driver continues.",
            remedy="Stop one of the two drivers.",
            code="HR-304",
        )
    if last.batch_id == batch.id and last.offsets == batch.offsets:
        return None
    if last.batch_id >= batch.id:
        problem = "the checkpoint was set back, and may cut its batches elsewhere"
        raise _mismatch_error(batch, place, f"It holds every batch up to {last.batch_id}: {problem}.")
    if last.batch_id < batch.id - 1:
        raise _mismatch_error(batch, place, f"The last one is {last.batch_id}: those between are missing.")
    return entry


def _mismatch_error(batch: Batch, place: str, why: str) -> RecoveryError:
    return RecoveryError(
        f"Batch {batch.id} of flow '{batch.flow}' does not follow the batches in the ledger in {place}.",
        why=why,
        state="Nothing was written.",
        remedy="Restore the ledger with what it counts, or a checkpoint that ends where it does; or start the flow "
        "under a new name, with another place for its rows.",
        code="HR-314",
    )
