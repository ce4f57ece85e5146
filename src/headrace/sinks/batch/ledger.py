"""The exactly-once decision: the last entry of a ledger, and whether a batch may be written after it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Self

from headrace.flow.sink import Batch

# The batch before the first one. A ledger that was claimed but has no committed batch ends with it.
NO_BATCH = -1


@dataclass(frozen=True)
class LedgerEntry:
    """The last committed batch of a sink, or of one slot of a sink.

    Each sink stores the fields that it needs, in the system that contains its rows.

    | field    | meaning                                                                                       |
    |----------|-----------------------------------------------------------------------------------------------|
    | query_id | the checkpoint whose batches are counted                                                      |
    | batch_id | the last committed batch; NO_BATCH if there is none                                           |
    | offsets  | the digest of that batch, as in `Batch.offsets`                                               |
    | fence    | the highest fence that claimed or wrote the ledger; 0 if the store fences earlier drivers     |
    | ledger   | random id of the ledger; a ledger that was deleted and recreated has another one              |
    | rows     | the number of rows of that batch in the slot                                                  |
    | slots    | the number of slots of the sink; never changes                                                |
    | staged   | the outbox attempt it was written from; empty if it was not staged                            |
    """

    query_id: str
    batch_id: int
    offsets: str = ""
    fence: int = 0
    ledger: str = ""
    rows: int = 0
    slots: int = 1
    staged: str = ""

    def to_json(self, names: Sequence[str]) -> str:
        """Return some of the fields as JSON."""
        return json.dumps({name: getattr(self, name) for name in names})

    @classmethod
    def from_json(cls, text: str | bytes, names: Sequence[str]) -> Self:
        """Parse JSON with these fields; raise ValueError if it is not an entry."""
        try:
            stored = json.loads(text)
            kinds = {field.name: int if field.type == "int" else str for field in fields(cls)}
            values: dict[str, Any] = {name: kinds[name](stored[name]) for name in names}
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an entry: {text!r}") from error


class RefusalReason(Enum):
    """Why a batch may not be written: how it differs from the last entry of the ledger."""

    NO_ENTRY = "batches were written before, and the ledger has no entry"
    OTHER_CHECKPOINT = "the ledger counts the batches of another checkpoint"
    OTHER_SLOTS = "the ledger was written with another number of slots"
    LOWER_FENCE = "a later driver has claimed or written the ledger"
    SET_BACK = "the ledger has later batches: the checkpoint was set back"
    GAP = "the ledger lacks batches between its last one and this one"
    OTHER_OFFSETS = "the batch was committed with other offsets"
    OTHER_STAGED_ROWS = "the batch was committed from other staged rows"


@dataclass(frozen=True)
class Write:
    """The batch is the next one: write it."""


@dataclass(frozen=True)
class Skip:
    """The batch is already committed."""


@dataclass(frozen=True)
class Refuse:
    """The batch may not be written: the ledger does not match it."""

    reason: RefusalReason


Decision = Write | Skip | Refuse


def decide(
    last: LedgerEntry | None, batch: Batch, *, slots: int = 1, staged: str = "", claimed: bool = False
) -> Decision:
    """Decide whether a batch is written, skipped or refused after the last entry of its ledger.

    Pure: reads `query_id`, `id`, `offsets` and `fence` of the batch, and nothing but its arguments. The caller reads
    `last` when no earlier attempt can commit any more, or in the transaction of the rows. `slots` and `staged` are
    those of the attempt; an attempt without `staged` may skip rows of any staging. `claimed` says that the store has an
    entry before batch 0, because a transaction has to lock and update it.

    | last entry                      | same offsets  | decision                                   |
    |---------------------------------|---------------|--------------------------------------------|
    | none                            |               | write batch 0, refuse later ones           |
    | none, although claimed          |               | refuse                                     |
    | of another checkpoint           |               | refuse, unless it has no committed batch   |
    | other slots, or a higher fence  |               | refuse                                     |
    | a later batch                   |               | refuse: the checkpoint was set back        |
    | this batch                      | yes           | skip, or refuse other staged rows          |
    | this batch                      | no            | refuse: other rows are committed           |
    | the batch before                |               | write                                      |
    | an earlier batch                |               | refuse: batches are missing                |

    A restored checkpoint may cut its batches elsewhere. So an earlier batch is refused, because skipping it could lose
    rows.

    Two stores take the decision, or a part of it, themselves, and Headrace does not repeat it. Delta skips a commit by
    its `txnVersion`: see docs/adr/0013-delta-decides-by-txnversion.md. Kafka fences the producers of earlier drivers,
    so the entries of its ledger have no fence.
    """
    if last is None:
        return Write() if batch.id == 0 and not claimed else Refuse(RefusalReason.NO_ENTRY)
    is_committed = last.batch_id == batch.id
    # In the order of precedence: an entry of another checkpoint or driver says nothing about the batches of this one.
    mismatches = (
        (RefusalReason.OTHER_CHECKPOINT, last.batch_id > NO_BATCH and last.query_id != batch.query_id),
        (RefusalReason.OTHER_SLOTS, last.slots != slots),
        (RefusalReason.LOWER_FENCE, batch.fence < last.fence),
        (RefusalReason.SET_BACK, batch.id < last.batch_id),
        (RefusalReason.GAP, batch.id > last.batch_id + 1),
        (RefusalReason.OTHER_OFFSETS, is_committed and batch.offsets != last.offsets),
        (RefusalReason.OTHER_STAGED_ROWS, is_committed and staged not in ("", last.staged)),
    )
    for reason, applies in mismatches:
        if applies:
            return Refuse(reason)
    return Skip() if is_committed else Write()
