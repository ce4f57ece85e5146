"""Which batches of a flow are complete: what a ledger holds for a sink, and what follows from it for a batch."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass

from headrace.errors import RecoveryError
from headrace.flow.sink import Batch


@dataclass(frozen=True)
class Epoch:
    """The last batch that is complete, as the one entry of a ledger.

    | field    | meaning                                                                                       |
    |----------|-----------------------------------------------------------------------------------------------|
    | ledger   | drawn when the ledger began: told apart from one that was deleted and made again              |
    | query_id | the checkpoint whose batches are counted                                                      |
    | batch_id | the last batch that is complete                                                               |
    | offsets  | the digest of that batch                                                                      |
    | fence    | the token of the lease under which it was written                                             |
    """

    ledger: str
    query_id: str
    batch_id: int
    offsets: str
    fence: int

    def encoded(self) -> str:
        """Return the entry as a text."""
        return json.dumps(asdict(self))

    @classmethod
    def decoded(cls, text: str, place: str) -> Epoch:
        """Return the entry in a text; raise when it is none."""
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
                code="HR-314",
            ) from error


def following(last: Epoch | None, batch: Batch, place: str, *, whole: bool) -> Epoch | None:
    """Return the entry to record once the batch is complete, or None when it is complete already.

    Raises when the ledger does not fit the batch. `whole` says that the ledger has to hold every batch from the first:
    without it, a ledger that is not there begins with the batch at hand.
    """
    entry = Epoch(
        str(uuid.uuid4()) if last is None else last.ledger, batch.query_id, batch.id, batch.offsets, batch.fence
    )
    if last is None:
        if whole and batch.id > 0:
            raise _unfit(batch, place, f"It holds none, and {batch.id} batches were written before.")
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
            state="Nothing was written; the other driver goes on.",
            remedy="Stop one of the two drivers.",
            code="HR-304",
        )
    if last.batch_id == batch.id and last.offsets == batch.offsets:
        return None
    if last.batch_id >= batch.id:
        back = "the checkpoint was set back, and may cut its batches elsewhere"
        raise _unfit(batch, place, f"It holds every batch up to {last.batch_id}: {back}.")
    if last.batch_id < batch.id - 1:
        raise _unfit(batch, place, f"The last one is {last.batch_id}: those between are missing.")
    return entry


def _unfit(batch: Batch, place: str, why: str) -> RecoveryError:
    return RecoveryError(
        f"Batch {batch.id} of flow '{batch.flow}' does not follow the batches in the ledger in {place}.",
        why=why,
        state="Nothing was written.",
        remedy="Restore the ledger with what it counts, or a checkpoint that ends where it does; or start the flow "
        "under a new name, with another place for its rows.",
        code="HR-314",
    )
