"""The errors of the exactly-once Kafka sink."""

from collections.abc import Mapping
from dataclasses import replace

from confluent_kafka import KafkaError

from headrace.errors import DataError, ProducerFenced, ServiceUnavailable
from headrace.flow.sink import Batch
from headrace.sinks.batch.errors import ErrorTemplate
from headrace.sinks.batch.ledger import RefusalReason

FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
NO_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
REFUSED = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
)

ALL_OR_NOTHING = "The rows are committed completely or not at all; the next attempt finds out which."
NOT_COMMITTED = "Nothing of the transaction can be read by a reader of committed records."


LEDGER_MISSING = ErrorTemplate(
    "The ledger '{ledger}' of flow '{batch.flow}' does not say which batches are in the topic.",
    why="{why}",
    state="Nothing was written. It is unknown whether batch {batch.id} is in the topic.",
    remedy="Restore the ledger, or start the flow under a new name with another topic. A flow that wrote to another "
    "sink before needs a new name too.",
    code="HR-308",
)
STAGED_ROWS_DIFFER = ErrorTemplate(
    "The outbox of flow '{batch.flow}' does not have the rows of batch {batch.id}.",
    why="{why}",
    state="Nothing was written in this attempt. Committed slots stay committed; the others do not have the batch.",
    remedy="Restore the outbox, or start the flow under a new name with another topic.",
    code="HR-342",
)
_OUT_OF_ORDER = ErrorTemplate(
    "Flow '{batch.flow}' cannot write batch {batch.id}.",
    why="",
    state="Nothing was written. The topic holds every batch up to {last.batch_id}.",
    remedy="Restore the ledger or a checkpoint that ends where it does, or start the flow under a new name with "
    "another topic.",
    code="HR-307",
)

# The fields are `batch`, `ledger`, `slot` of the attempt, and an entry: `last`, and the `number` of its slot.
LEDGER_ERRORS: Mapping[RefusalReason, ErrorTemplate] = {
    RefusalReason.NO_ENTRY: replace(
        LEDGER_MISSING, why="It has no record of this flow, and {batch.id} batches were written before."
    ),
    RefusalReason.OTHER_CHECKPOINT: ErrorTemplate(
        "Flow '{batch.flow}' cannot write batch {batch.id}.",
        why="The ledger '{ledger}' counts the batches of another checkpoint ({last.query_id}, up to {last.batch_id}); "
        "this one is {batch.query_id}.",
        state="Nothing was written. The topic holds the rows of the other checkpoint.",
        remedy="Restore the checkpoint that the ledger belongs to, or give the sink another topic and another "
        "`ledger`.",
        code="HR-306",
    ),
    RefusalReason.OTHER_SLOTS: ErrorTemplate(
        "Flow '{batch.flow}' cannot write batch {batch.id} in {slot.slots} slot(s).",
        why="The ledger '{ledger}' has {last.slots} slots: rows would move to slots that already contain them.",
        state="Nothing was written. The ledger has batches up to {last.batch_id}.",
        remedy="Set `slots={last.slots}` again; another number needs a new flow name with another topic.",
        code="HR-340",
    ),
    RefusalReason.SET_BACK: replace(
        _OUT_OF_ORDER, why="The last batch in the ledger '{ledger}' is {last.batch_id}: the checkpoint was set back."
    ),
    RefusalReason.GAP: replace(
        _OUT_OF_ORDER, why="The last batch in the ledger '{ledger}' is {last.batch_id}: those between are missing."
    ),
    RefusalReason.OTHER_OFFSETS: ErrorTemplate(
        "Flow '{batch.flow}' cannot treat batch {batch.id} as written.",
        why="The ledger '{ledger}' holds a batch {batch.id} of this checkpoint that was read from other offsets "
        "({last.offsets:.12}, and this attempt has {batch.offsets:.12}): the checkpoint was set back, or two drivers "
        "wrote it.",
        state="Nothing was written. The topic holds batch {batch.id} with the rows of the other offsets.",
        remedy="Restore the checkpoint that the ledger belongs to, or start the flow under a new name with another "
        "topic.",
        code="HR-341",
    ),
    RefusalReason.OTHER_STAGED_ROWS: replace(
        STAGED_ROWS_DIFFER, why="Slot {number} was sent from {last.staged}, not {slot.staged}."
    ),
}


def producer_fenced(batch: Batch, problem: KafkaError) -> ProducerFenced:
    """Return HR-309: another driver has fenced this producer."""
    return ProducerFenced(
        f"Flow '{batch.flow}' may no longer write to its topic.",
        why=f"Another driver took over its transactions. The broker says: {problem.str().rstrip('.')}.",
        state="The rows are committed completely or not at all; the other driver continues with them.",
        remedy="Stop one of the two drivers.",
    )


def broker_rejected(batch: Batch, problem: KafkaError) -> DataError:
    """Return HR-505: Kafka rejects the rows or lacks a permission; a retry would fail too."""
    return DataError(
        f"Kafka rejects batch {batch.id} of flow '{batch.flow}'.",
        why=f"The client says: {problem.str().rstrip('.')}.",
        state=NOT_COMMITTED,
        remedy="Make the rows smaller or raise the limit for records; or grant the missing permission.",
        code="HR-505",
    )


def transaction_unfinished(batch: Batch, why: str, state: str, seconds: float) -> ServiceUnavailable:
    """Return HR-604: the transaction did not finish; a retry may succeed."""
    return ServiceUnavailable(
        f"The transaction for batch {batch.id} of flow '{batch.flow}' did not finish.",
        why=f"The client says: {why.rstrip('.')}.",
        state=state,
        remedy=f"Nothing: the batch is run again. If that repeats, start the broker, or make batches smaller so that "
        f"one is sent within {seconds:.0f} seconds.",
        code="HR-604",
    )
