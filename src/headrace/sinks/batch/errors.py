"""The error of a sink that refuses a batch: a text per reason."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.errors import RecoveryError
from headrace.sinks.batch.ledger import Decision, RefusalReason, Refuse, Write


@dataclass(frozen=True)
class ErrorTemplate:
    """The parts of an error, with fields in braces such as `{batch.id}`, and its code."""

    what: str
    why: str
    state: str
    remedy: str
    code: str

    def error(self, **fields: object) -> RecoveryError:
        """Return the error with the fields filled in."""
        return RecoveryError(
            self.what.format(**fields),
            why=self.why.format(**fields),
            state=self.state.format(**fields),
            remedy=self.remedy.format(**fields),
            code=self.code,
        )


def must_write(decision: Decision, texts: Mapping[RefusalReason, ErrorTemplate], **fields: object) -> bool:
    """Return True to write the batch and False to skip it; raise the sink's error if it is refused."""
    if isinstance(decision, Refuse):
        raise texts[decision.reason].error(**fields)
    return isinstance(decision, Write)


_MISMATCH = ErrorTemplate(
    "Batch {batch.id} of flow '{batch.flow}' does not follow the batches in the ledger in {place}.",
    why="",
    state="Nothing was written.",
    remedy="Restore the ledger with what it counts, or a checkpoint that ends where it does; or start the flow under a "
    "new name, with another place for its rows.",
    code="HR-314",
)
_SET_BACK = replace(
    _MISMATCH,
    why="It holds every batch up to {last.batch_id}: the checkpoint was set back, and may cut its batches elsewhere.",
)

# Of custom sinks and of folders of files. The fields are `batch`, `last` and `place`.
LEDGER_ERRORS: Mapping[RefusalReason, ErrorTemplate] = {
    RefusalReason.OTHER_CHECKPOINT: ErrorTemplate(
        "Flow '{batch.flow}' cannot write batch {batch.id}.",
        why="The ledger in {place} counts the batches of another checkpoint ({last.query_id}, up to {last.batch_id}); "
        "this one is {batch.query_id}.",
        state="Nothing was written. What the other checkpoint wrote is as it was.",
        remedy="Restore the checkpoint that the ledger belongs to, or start the flow under a new name, with another "
        "place for its rows.",
        code="HR-313",
    ),
    RefusalReason.LOWER_FENCE: ErrorTemplate(
        "Flow '{batch.flow}' may no longer write.",
        why="A later driver has written batch {last.batch_id}.",
        state="Nothing was written; the other driver continues.",
        remedy="Stop one of the two drivers.",
        code="HR-304",
    ),
    RefusalReason.NO_ENTRY: replace(_MISMATCH, why="It has no entry, and {batch.id} batches were written before."),
    RefusalReason.SET_BACK: _SET_BACK,
    RefusalReason.OTHER_OFFSETS: _SET_BACK,
    RefusalReason.GAP: replace(_MISMATCH, why="The last one is {last.batch_id}: those between are missing."),
}
