"""Write each batch to a Kafka topic, once: in transactions that also record the batch in a ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa
from pyspark.sql import functions as F

from headrace.clients.topic_watch import TopicWatch
from headrace.errors import HeadraceError, Terminal
from headrace.flow.guarantee import Guarantee
from headrace.flow.sink import Batch, Held
from headrace.flow.target import Target
from headrace.sinks.kafka import errors as failures
from headrace.sinks.kafka.arrow_records import arrow_pieces, decoded, gathered
from headrace.sinks.kafka.ledger import create_ledger, held_entries, last_whole
from headrace.sinks.kafka.outbox import Outbox
from headrace.sinks.kafka.topic import KafkaTopicSink, as_records
from headrace.sinks.kafka.transaction import Slot, fenced, is_due, publish, sink_identity

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class KafkaExactlyOnceSink(KafkaTopicSink):
    """Send each row as a JSON object, keyed by one column, each batch in one transaction, or in one per slot.

    | field  | meaning                                                                                                |
    |--------|--------------------------------------------------------------------------------------------------------|
    | ledger | the topic that records which batches are in, `headrace-ledger-FLOW` unless given; made when not there  |
    | slots  | into how many transactions a batch is cut by the hash of its key, each sent by a task of its own       |
    | order  | columns by which the rows of a key are sorted within a batch; else they come as they were computed     |

    Exactly once, while:
      1. readers set `isolation.level=read_committed`. Others see the rows of transactions that were aborted;
      2. the ledger belongs to one checkpoint. It counts batches, so those of another checkpoint are refused, and so is
         a batch of the same number that was read from other offsets;
      3. nobody deletes the ledger's records. A checkpoint that is set back behind the ledger is refused;
      4. the rows of a batch, or of a slot, are sent within 120 seconds, else the broker aborts, again and again.

    The transform need not be deterministic. With one slot a batch is in as a whole or not at all, so the rows of two
    attempts at it never mix. With several, each slot is: the batch is first staged in an outbox below the lake, and
    every attempt sends the staged rows. A reader may then see some slots of a batch a moment before the others.

    Tasks on the executors send the rows, so the workers' Python needs Headrace and its client for Kafka.
    """

    ledger: str | None = None
    slots: int = 1
    order: Sequence[str] = ()
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    def preflight(self, target: Target) -> None:
        """Look at the number of slots, and ask the broker for the topic."""
        if self.slots < 1:
            raise failures.no_slots(self.topic, self.slots)
        super().preflight(target)

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Make a ledger that was given a name. The others are named after the flow, and the first batch brings it."""
        if self.ledger is not None:
            create_ledger(target, self.ledger)

    def held(self, spark: SparkSession, flow: str, step: str, target: Target) -> Held:
        """Return the last batch that every slot holds, as the ledger has it. Fences nobody."""
        entries = held_entries(target, self._ledger(flow), sink_identity(target.name, flow, step), range(self.slots))
        identity = TopicWatch(target, [self.topic]).identities().get(self.topic)
        return Held(f"the topic '{self.topic}'", identity, last_whole(entries, self.slots))

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Send the rows, unless an earlier attempt has; returns when every transaction is committed."""
        ledger = self._ledger(batch.flow)
        if batch.id == 0:
            create_ledger(batch.target, ledger)
        slots = [Slot(batch, self.topic, ledger, number, self.slots) for number in range(self.slots)]
        if len(slots) == 1:
            records = self._records(rows)
            if self.order:
                records = records.repartition(1).sortWithinPartitions("key", "order")
            pieces, number = gathered(records)
            _published([pieces.mapPartitions(partial(_send, slots[0], number, "pieces", _copies(rows)))])
        else:
            self._write_slots(rows, slots)

    def _write_slots(self, rows: DataFrame, slots: Sequence[Slot]) -> None:
        """Write the slots that are not in.

        1. Bar every earlier producer of all slots, then read the ledger: see `fenced`.
        2. Stage the batch, unless an earlier attempt has.
        3. Send each slot that lacks the batch, in a transaction of its own, from the staged rows: see `publish`.
        """
        batch = slots[0].batch
        entries = fenced(slots)
        due = [slot for slot in slots if is_due(entries, slot)]
        if not due:
            return
        outbox = Outbox(rows.sparkSession, batch, self.slots)
        outbox.tidy()
        staged = outbox.stage(self._records(rows))
        tasks = []
        for slot in (replace(each, staged=staged.attempt) for each in due):
            number = staged.rows.get(slot.number, 0)
            if number == 0:
                publish(slot, ())
            else:
                pieces = arrow_pieces(outbox.rows(staged, slot.number))
                tasks.append(pieces.mapPartitions(partial(_send, slot, number, "rows", _copies(rows))))
        _published(tasks)

    def _records(self, rows: DataFrame) -> DataFrame:
        """Return the rows as records, with what the rows of a key are sorted by as `order`."""
        if not self.order:
            return as_records(rows, self.key)
        return as_records(rows, self.key, F.struct(*(F.col(f"`{name}`") for name in self.order)).alias("order"))

    def _ledger(self, flow: str) -> str:
        return self.ledger or f"headrace-ledger-{flow}"


def _send(
    slot: Slot, number: int, counted: Literal["pieces", "rows"], copies: bool, pieces: Iterable[bytes]
) -> Iterator[HeadraceError | int]:
    """Publish a slot; yield how many rows it holds, or what stood in the way. Runs in a task on an executor.

    An error is handed over as a value, so that Spark does not run the task again: the supervisor knows better which
    error a second attempt can cure. Not so when Spark runs copies of slow tasks: of two copies one fences the other,
    and the fenced one must not speak for the task.
    """
    try:
        yield publish(slot, _whole(slot, number, counted, pieces))
    except HeadraceError as error:
        if copies and error.code == "HR-309":
            raise
        yield error


def _whole(slot: Slot, number: int, counted: str, pieces: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the pieces decoded; raise at their end unless they are as many as they should be.

    PySpark takes a connection that broke for the end of the rows. Without this a task that outlives its executor for a
    moment would commit a part of the rows, and record it as the whole.
    """
    came = 0
    for chunk in decoded(pieces):
        came += chunk.num_rows if counted == "rows" else 1
        yield chunk
    if came != number:
        raise failures.cut_off(slot.batch, came, number)


def _published(tasks: Sequence[RDD[HeadraceError | int]]) -> None:
    """Run the tasks at once and raise the worst of what they met."""
    if not tasks:
        return
    outcomes = tasks[0].context.union(list(tasks)).collect()
    if len(outcomes) != len(tasks):
        raise AssertionError(f"{len(outcomes)} of {len(tasks)} tasks have spoken")
    met = [each for each in outcomes if isinstance(each, HeadraceError)]
    for error in sorted(met, key=lambda each: not isinstance(each, Terminal)):
        raise error


def _copies(rows: DataFrame) -> bool:
    """Whether Spark may run two copies of one task."""
    return rows.sparkSession.sparkContext.getConf().get("spark.speculation", "false") == "true"
