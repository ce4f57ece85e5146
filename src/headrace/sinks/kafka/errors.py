"""The errors of the exactly-once Kafka sink."""

from __future__ import annotations

from confluent_kafka import KafkaError

from headrace.errors import DataError, PartUnavailable, RecoveryError
from headrace.flow.sink import Batch
from headrace.sinks.kafka.ledger import KafkaLedgerEntry

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


def ledger_of_other_checkpoint(batch: Batch, ledger: str, entry: KafkaLedgerEntry) -> RecoveryError:
    """Return HR-306: the ledger belongs to another checkpoint."""
    return RecoveryError(
        f"Flow '{batch.flow}' cannot write batch {batch.id}.",
        why=f"The ledger '{ledger}' counts the batches of another checkpoint ({entry.query_id}, up to "
        f"{entry.batch_id}); this one is {batch.query_id}.",
        state="Nothing was written. The topic holds the rows of the other checkpoint.",
        remedy="Restore the checkpoint that the ledger belongs to, or give the sink another topic and another "
        "`ledger`.",
        code="HR-306",
    )


def batch_out_of_order(batch: Batch, ledger: str, entry: KafkaLedgerEntry) -> RecoveryError:
    """Return HR-307: the last batch of the ledger is neither this batch nor the one before it."""
    # A checkpoint that was restored may retry batches with other offsets: skipping them could lose rows.
    why = "those between are missing" if entry.batch_id < batch.id else "the checkpoint was set back"
    return RecoveryError(
        f"Flow '{batch.flow}' cannot write batch {batch.id}.",
        why=f"The last batch in the ledger '{ledger}' is {entry.batch_id}: {why}.",
        state=f"Nothing was written. The topic holds every batch up to {entry.batch_id}.",
        remedy="Restore the ledger or a checkpoint that ends where it does, or start the flow under a new name "
        "with another topic.",
        code="HR-307",
    )


def ledger_missing(batch: Batch, ledger: str, why: str) -> RecoveryError:
    """Return HR-308: the ledger is missing or unreadable."""
    return RecoveryError(
        f"The ledger '{ledger}' of flow '{batch.flow}' does not say which batches are in the topic.",
        why=why,
        state=f"Nothing was written. Whether batch {batch.id} is in the topic is not known.",
        remedy="Restore the ledger, or start the flow under a new name with another topic. A flow that wrote to "
        "another sink before needs a new name too.",
        code="HR-308",
    )


def producer_fenced(batch: Batch, problem: KafkaError) -> RecoveryError:
    """Return HR-309: another driver has fenced this producer."""
    return RecoveryError(
        f"Flow '{batch.flow}' may no longer write to its topic.",
        why=f"Another driver took over its transactions. The broker says: {problem.str().rstrip('.')}.",
        state="The rows are committed completely or not at all; the other driver continues with them.",
        remedy="Stop one of the two drivers.",
        code="HR-309",
    )


def slot_count_changed(batch: Batch, ledger: str, entry: KafkaLedgerEntry, slots: int) -> RecoveryError:
    """Return HR-340: the ledger was written with another number of slots."""
    return RecoveryError(
        f"Flow '{batch.flow}' cannot write batch {batch.id} in {slots} slot(s).",
        why=f"The ledger '{ledger}' is kept in {entry.slots}: rows would move to slots that already contain them.",
        state=f"Nothing was written. The ledger has batches up to {entry.batch_id}.",
        remedy=f"Set `slots={entry.slots}` again; another number needs a new flow name with another topic.",
        code="HR-340",
    )


def invalid_slot_count(topic: str, slots: int) -> RecoveryError:
    """Return HR-346: `slots` is less than 1."""
    return RecoveryError(
        f"The sink for topic '{topic}' cannot write in {slots} slots.",
        why="A batch is written in at least one transaction.",
        state="Nothing was started.",
        remedy="Set `slots=` to 1 or more, or leave it out.",
        code="HR-346",
    )


def offsets_changed(batch: Batch, ledger: str, entry: KafkaLedgerEntry) -> RecoveryError:
    """Return HR-341: the batch was committed with other offsets."""
    return RecoveryError(
        f"Flow '{batch.flow}' cannot take batch {batch.id} for written.",
        why=f"The ledger '{ledger}' holds a batch {batch.id} of this checkpoint that was read from other offsets "
        f"({entry.offsets[:12]}, and this attempt has {batch.offsets[:12]}): the checkpoint was set back, or two "
        "drivers wrote it.",
        state=f"Nothing was written. The topic holds batch {batch.id} with the rows of the other offsets.",
        remedy="Restore the checkpoint that the ledger belongs to, or start the flow under a new name with another "
        "topic.",
        code="HR-341",
    )


def staged_rows_differ(batch: Batch, why: str) -> RecoveryError:
    """Return HR-342: the outbox does not contain the rows that other slots were written from."""
    return RecoveryError(
        f"The outbox of flow '{batch.flow}' does not hold the rows of batch {batch.id}.",
        why=f"{why[:1].upper()}{why[1:].rstrip('.')}.",
        state="Nothing was written in this attempt. The committed slots stay committed; the others lack the batch.",
        remedy="Restore the outbox, or start the flow under a new name with another topic.",
        code="HR-342",
    )


def broker_rejected(batch: Batch, problem: KafkaError) -> DataError:
    """Return HR-505: Kafka rejects the rows or lacks a permission; a retry would fail too."""
    return DataError(
        f"Kafka refuses batch {batch.id} of flow '{batch.flow}'.",
        why=f"The client says: {problem.str().rstrip('.')}.",
        state=NOT_COMMITTED,
        remedy="Make the rows smaller or raise the limit for records; or grant the right that is missing.",
        code="HR-505",
    )


def topic_missing(batch: Batch, problem: KafkaError) -> DataError:
    """Return HR-501: a topic does not exist."""
    return DataError(
        f"A topic that flow '{batch.flow}' writes to is not there.",
        why=f"The client says: {problem.str().rstrip('.')}.",
        state=NOT_COMMITTED,
        remedy="Create it with `headrace topics create NAME`, or correct the name in the flow.",
        code="HR-501",
    )


def transaction_unfinished(batch: Batch, why: str, state: str, seconds: float) -> PartUnavailable:
    """Return HR-604: the transaction did not finish; a retry may succeed."""
    return PartUnavailable(
        f"The transaction for batch {batch.id} of flow '{batch.flow}' did not come to its end.",
        why=f"The client says: {why.rstrip('.')}.",
        state=state,
        remedy=f"Nothing: the batch is run again. If that repeats, start the broker, or make batches smaller so that "
        f"one is sent within {seconds:.0f} seconds.",
        code="HR-604",
    )


def pieces_missing(batch: Batch, received: int, expected: int) -> PartUnavailable:
    """Return HR-609: the task did not receive all of its rows."""
    return PartUnavailable(
        f"Batch {batch.id} of flow '{batch.flow}' did not completely reach the task that sends it.",
        why=f"{received} of {expected} pieces came: the executor or the driver died, or a part was recomputed.",
        state=NOT_COMMITTED,
        remedy="Nothing: the batch is run again.",
        code="HR-609",
    )
