"""Write each batch to a Kafka topic exactly once, in transactions that also record the batch in a ledger."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import pyarrow as pa
from pyspark import RDD
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession, functions as F

from headrace.clients.spark.jvm import java_dataset
from headrace.clients.sql import column_named
from headrace.clients.topic_watch import TopicMonitor
from headrace.errors import HeadraceError, ProducerFenced, RecoveryError, ServiceUnavailable, Terminal
from headrace.flow.guarantee import Guarantee
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch, CommittedBatches, TracksBatches
from headrace.flow.target import Target
from headrace.sinks.kafka import errors
from headrace.sinks.kafka.ledger import committed_entries, create_ledger, last_complete_batches
from headrace.sinks.kafka.outbox import Outbox
from headrace.sinks.kafka.topic import KafkaTopicSink, as_records
from headrace.sinks.kafka.transaction import TransactionSlot, fence_slots, is_due, publish, sink_identity

# A record may be as large as a broker takes, 1 MB by default, and a piece has to stay below 2 GB.
_RECORDS_PER_PIECE = 1_000
_PIECE_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])


@dataclass(frozen=True)
class KafkaExactlyOnceSink(KafkaTopicSink, TracksBatches):
    """Send each row as a JSON object, keyed by one column, each batch in one transaction, or in one per slot.

    | field  | meaning                                                                                                |
    |--------|--------------------------------------------------------------------------------------------------------|
    | ledger | the topic that records committed batches, by default `headrace-ledger-FLOW`; created if missing        |
    | slots  | the number of transactions per batch: rows are split by the hash of their key, one task per slot       |
    | order  | columns that sort the rows of a key within a batch; without it their order is undefined                |

    Exactly once, while:
      1. readers set `isolation.level=read_committed`. Others see the rows of aborted transactions;
      2. the ledger belongs to one checkpoint. It counts batches, so the batches of another checkpoint are rejected, and
         so is a batch of the same number that was read from other offsets;
      3. nobody deletes the ledger's records. A checkpoint that was restored to before the ledger's end is rejected;
      4. the rows of a batch, or of a slot, are sent within 120 seconds; otherwise the broker aborts every attempt.

    The transform need not be deterministic. With one slot a batch is committed completely or not at all, so the rows of
    two attempts never mix. With several slots this holds for each slot: the batch is first staged in an outbox below
    the lake, and every attempt sends the staged rows. A reader may see some slots of a batch before the others.

    Tasks on the executors send the rows, so the workers' Python needs Headrace and its Kafka client.
    """

    ledger: str | None = None
    slots: int = 1
    order: Sequence[str] = ()
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    def preflight(self, target: Target) -> None:
        """Check the number of slots, and that the topic exists on the broker."""
        if self.slots < 1:
            raise RecoveryError(
                f"The sink for topic '{self.topic}' cannot write in {self.slots} slots.",
                why="A batch is written in at least one transaction.",
                state="Nothing was started.",
                remedy="Set `slots=` to 1 or more, or leave it out.",
                code="HR-346",
            )
        super().preflight(target)

    def prepare(self, spark: SparkSession, target: Target, cache: RunCache) -> None:
        """Create a ledger that has an explicit name. The default one needs the flow's name; batch 0 creates it."""
        if self.ledger is not None:
            create_ledger(target, self.ledger)

    def committed_batches(self, spark: SparkSession, flow: str, step: str, target: Target) -> CommittedBatches:
        """Return the last batch that every slot has committed, from the ledger. Does not fence producers."""
        entries = committed_entries(
            target, self._ledger(flow), sink_identity(target.name, flow, step), range(self.slots)
        )
        identity = TopicMonitor(target, [self.topic]).topic_ids().get(self.topic)
        return CommittedBatches(f"the topic '{self.topic}'", identity, last_complete_batches(entries, self.slots))

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Send the rows unless they are already committed; returns when every transaction is committed."""
        ledger = self._ledger(batch.flow)
        if batch.id == 0:
            create_ledger(batch.target, ledger)
        slots = [TransactionSlot(batch, self.topic, ledger, number, self.slots) for number in range(self.slots)]
        if len(slots) == 1:
            records = self._records(rows)
            if self.order:
                records = records.repartition(1).sortWithinPartitions("key", "order")
            pieces, number = _single_partition_chunks(records)
            _run_tasks([pieces.mapPartitions(partial(_send, slots[0], number, "pieces", _has_speculation(rows)))])
        else:
            self._write_slots(rows, slots)

    def _write_slots(self, rows: DataFrame, slots: Sequence[TransactionSlot]) -> None:
        """Write the slots that are not yet committed.

        1. Fence the earlier producers of all slots, then read the ledger: see `fence_slots`.
        2. Stage the batch, unless an earlier attempt has.
        3. Send each remaining slot in its own transaction from the staged rows: see `publish`.
        """
        batch = slots[0].batch
        entries = fence_slots(slots)
        due = [slot for slot in slots if is_due(entries, slot)]
        if not due:
            return
        outbox = Outbox(rows.sparkSession, batch, self.slots)
        outbox.delete_other_batches()
        staged = outbox.stage(self._records(rows))
        tasks = []
        for slot in (replace(due_slot, staged=staged.attempt) for due_slot in due):
            number = staged.rows.get(slot.number, 0)
            if number == 0:
                publish(slot, ())
            else:
                pieces = _arrow_pieces(outbox.rows(staged, slot.number))
                tasks.append(pieces.mapPartitions(partial(_send, slot, number, "rows", _has_speculation(rows))))
        _run_tasks(tasks)

    def _records(self, rows: DataFrame) -> DataFrame:
        """Return the rows as records, with the sort columns as a struct `order`."""
        order = [F.struct(*(column_named(name) for name in self.order)).alias("order")] if self.order else []
        return as_records(rows, self.key, *order)

    def _ledger(self, flow: str) -> str:
        return self.ledger or f"headrace-ledger-{flow}"


def _send(
    slot: TransactionSlot, number: int, counted: Literal["pieces", "rows"], copies: bool, pieces: Iterable[bytes]
) -> Iterator[HeadraceError | int]:
    """Publish a slot and yield its row count, or the error. Runs in a task on an executor.

    An error is returned as a value, so that Spark does not retry the task: the supervisor decides which errors to
    retry. With speculative execution, one copy of a task fences the other; the fenced copy raises instead, so that
    its error does not become the result of the task.
    """
    try:
        yield publish(slot, _require_all_pieces(slot, number, counted, pieces))
    except HeadraceError as error:
        if copies and isinstance(error, ProducerFenced):
            raise
        yield error


def _require_all_pieces(
    slot: TransactionSlot, expected: int, counted: str, pieces: Iterable[bytes]
) -> Iterator[pa.RecordBatch]:
    """Yield the decoded pieces; raise at the end unless all of them arrived.

    PySpark treats a broken connection as the end of the rows. Without this check, a task that outlives its executor
    would commit some of the rows and record the batch as complete.
    """
    received = 0
    for piece in pieces:
        chunk = pa.ipc.read_record_batch(pa.py_buffer(piece), _PIECE_SCHEMA)
        received += chunk.num_rows if counted == "rows" else 1
        yield chunk
    if received != expected:
        raise ServiceUnavailable(
            f"Batch {slot.batch.id} of flow '{slot.batch.flow}' did not completely reach the task that sends it.",
            why=f"{received} of {expected} pieces arrived: the executor or the driver died, or a part was recomputed.",
            state=errors.NOT_COMMITTED,
            remedy="Nothing: the batch is run again.",
            code="HR-609",
        )


def _run_tasks(tasks: Sequence[RDD[HeadraceError | int]]) -> None:
    """Run the tasks in one Spark job and raise the most severe of their errors."""
    if not tasks:
        return
    outcomes = tasks[0].context.union(list(tasks)).collect()
    if len(outcomes) != len(tasks):
        raise AssertionError(f"{len(outcomes)} of {len(tasks)} tasks returned a result")
    failures = [outcome for outcome in outcomes if isinstance(outcome, HeadraceError)]
    for error in sorted(failures, key=lambda outcome: not isinstance(outcome, Terminal)):
        raise error


def _has_speculation(rows: DataFrame) -> bool:
    """Whether speculative execution is on: Spark may run two copies of one task."""
    return rows.sparkSession.sparkContext.getConf().get("spark.speculation", "false") == "true"


def _single_partition_chunks(records: DataFrame) -> tuple[RDD[bytes], int]:
    """Compute the records in parallel and return them as one partition of pieces, with the number of pieces.

    The partition is read from shuffle files, so nothing is computed twice. Records of one partition of the DataFrame
    keep their order.
    """
    pieces = _java_pieces(records).coalesce(1, True)
    return RDD(pieces, records.sparkSession.sparkContext, NoOpSerializer()), int(pieces.count())


def _arrow_pieces(records: DataFrame) -> RDD[bytes]:
    """Return the records as pieces, in the partitions of the DataFrame. They are computed while a task reads them."""
    return RDD(_java_pieces(records), records.sparkSession.sparkContext, NoOpSerializer())


def _java_pieces(records: DataFrame):  # type: ignore[no-untyped-def]  # an object of the JVM
    both = records.selectExpr("cast(key as binary) as key", "cast(value as binary) as value")
    return java_dataset(both).toArrowBatchRdd(_RECORDS_PER_PIECE, "UTC", True, False).toJavaRDD()
