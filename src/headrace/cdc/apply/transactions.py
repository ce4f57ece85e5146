"""Apply complete transactions only: a reader of `_published` never sees an order without its items.

The topics of a database are read concurrently, and a batch may end anywhere in each: with an order and not yet its
items. So a batch applies the complete transactions, in commit order up to the first incomplete one, and stores the
other changes for the next batch:

    LAKE/INTO/_pending     changes and end records of incomplete transactions

The end record of a transaction has its number of changes, by table. It also counts log messages
(`pg_logical_emit_message`) under a separate name. Their topic is not read, so they are subtracted. Snapshot rows
belong to no transaction and are applied immediately. After a crash the connector sends records again, possibly only a
part of a transaction. So the ids of applied transactions are stored, and their changes are applied immediately.
"""

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from headrace.clients.spark.delta_log import version
from headrace.clients.sql import string_literal
from headrace.errors import DataError
from headrace.flow.sink import Batch
from headrace.sinks.batch.persist import persisted

PENDING = "_pending"
BATCH, _QUERY, _APPLIED = "_headrace_batch", "_headrace_query", "_headrace_done"
# The name under which the connector counts log messages, in place of a table: the text of a Java object.
_MESSAGES = r"^(?:\S+[.$]LogicalDecodingMessageId@[0-9a-f]+|LOGICAL_DECODING_MESSAGE)$"
# More than a connector sends again: it records its position every minute.
_REMEMBERED = 20_000
# The end record is sent after the changes. If changes are missing for this long, they will never arrive.
_PATIENCE = dt.timedelta(minutes=10)


@dataclass(frozen=True)
class TransactionEnd:
    """The end of a transaction: its offset in the transaction topic, its id, its number of changes, its time."""

    offset: int
    transaction: str
    changes: int
    ended_ms: int


@contextmanager
def complete_transactions(rows: DataFrame, location: str, batch: Batch) -> Iterator[DataFrame]:
    """Yield the changes of complete transactions, and store the others at a location for the next batch.

    `rows` are envelopes and the records of the transaction topic, which have `status`, `id`, `event_count` and
    `data_collections`. A retried attempt reads the same pending changes as the first one: they are deleted only by a
    later batch.
    """
    session = rows.sparkSession
    pending, previous_batch = _pending_changes(session, location, batch)
    applied = [] if pending is None else _applied_transaction_ids(pending)
    with persisted(rows if pending is None else rows.unionByName(pending.drop(BATCH, _QUERY, _APPLIED))) as cached:
        change_counts, ends = _count_changes(cached), _transaction_ends(cached)
        complete = complete_transaction_ids(ends, change_counts, applied)
        incomplete = [end for end in ends if end.transaction not in {*complete, *applied}]
        _require_no_loss(incomplete, change_counts, ends)
        ready_ids = sorted({*complete, *(transaction for transaction in applied if transaction in change_counts)})
        transaction_id = _change_transaction_id()
        is_ready = F.col("op").isNotNull() & (transaction_id.isNull() | transaction_id.isin(ready_ids))
        is_pending_end = (F.col("status") == "END") & ~_end_transaction_id().isin([*complete, *applied])
        still_pending = cached.where(F.when(F.col("op").isNull(), is_pending_end).otherwise(~is_ready))
        remembered = [*applied, *complete][-_REMEMBERED:]
        _write_pending(session, still_pending, remembered, location, batch, previous_batch)
        yield cached.where(is_ready)


def complete_transaction_ids(
    ends: Iterable[TransactionEnd], change_counts: Mapping[str, int], applied: Sequence[str]
) -> list[str]:
    """Return the ids of the complete transactions in commit order, up to the first incomplete one."""
    ids, finished = list[str](), set(applied)
    for end in ends:
        if end.transaction in finished:
            continue
        if change_counts.get(end.transaction, 0) < end.changes:
            break
        ids.append(end.transaction)
        finished.add(end.transaction)
    return ids


def _change_transaction_id() -> Column:
    """Return the transaction id of a change. Postgres appends the position of the single change to it."""
    return F.split_part(F.col("transaction")["id"], F.lit(":"), F.lit(1))


def _end_transaction_id() -> Column:
    return F.split_part(F.col("id"), F.lit(":"), F.lit(1))


def _count_changes(once: DataFrame) -> Mapping[str, int]:
    """Count the changes of each transaction. A change that was sent twice counts once."""
    source = F.col("source")
    place = F.struct("topic", source["lsn"], source["file"], source["pos"], source["row"], "op", "key")
    changes = once.where((F.col("op") != "m") & F.col("transaction")["id"].isNotNull())
    counts = changes.groupBy(_change_transaction_id().alias("id")).agg(F.count_distinct(place).alias("changes"))
    return Counter({row.id: row.changes for row in counts.collect()})


def _transaction_ends(once: DataFrame) -> list[TransactionEnd]:
    rows = once.where(F.col("status") == "END").select(
        "offset", _end_transaction_id().alias("id"), _change_count(), "ts_ms"
    )
    ordered = sorted(rows.collect(), key=lambda row: row.offset)
    return [TransactionEnd(row.offset, row.id, row.changes or 0, row.ts_ms or 0) for row in ordered]


def _change_count() -> Column:
    """Return the number of row changes of a transaction, without log messages."""
    messages = F.filter("data_collections", lambda table_count: table_count["data_collection"].rlike(_MESSAGES))
    counted = F.aggregate(messages, F.lit(0).cast("long"), lambda sum_, table_count: sum_ + table_count["event_count"])
    return (F.col("event_count") - F.coalesce(counted, F.lit(0))).alias("changes")


def _pending_changes(session: SparkSession, location: str, batch: Batch) -> tuple[DataFrame | None, int]:
    """Return the changes that an earlier batch left pending, and the last batch before this one that stored any."""
    if version(session, location) < 0:
        return None, 0
    own = session.read.format("delta").load(location).where(F.col(_QUERY) == batch.query_id)
    row = own.where(F.col(BATCH) < batch.id).agg(F.max(BATCH)).first()
    if row is None or row[0] is None:
        return None, 0
    return own.where(F.col(BATCH) == row[0]), row[0]


def _applied_transaction_ids(pending: DataFrame) -> list[str]:
    row = pending.where(F.col(_APPLIED).isNotNull()).select(_APPLIED).first()
    return list(row[0]) if row else []


def _write_pending(
    session: SparkSession, pending: DataFrame, applied: Sequence[str], location: str, batch: Batch, before: int
) -> None:
    """Write the pending changes, and delete those that neither this batch nor a retry of it needs."""
    mark = {BATCH: F.lit(batch.id).cast("long"), _QUERY: F.lit(batch.query_id)}
    rows = pending.withColumns(mark | {_APPLIED: F.lit(None).cast("array<string>")})
    ids = session.createDataFrame([(list(applied),)], f"{_APPLIED} array<string>").withColumns(mark)
    old = f"{_QUERY} <> {string_literal(batch.query_id)} OR {BATCH} >= {batch.id} OR {BATCH} < {before}"
    written = rows.unionByName(ids, allowMissingColumns=True).coalesce(1).write.format("delta").mode("overwrite")
    if version(session, location) >= 0:
        written = written.option("replaceWhere", old)
    written.save(location)


def _require_no_loss(
    incomplete: Sequence[TransactionEnd], change_counts: Mapping[str, int], ends: Sequence[TransactionEnd]
) -> None:
    if not incomplete:
        return
    first, newest = incomplete[0], max(end.ended_ms for end in ends)
    if newest - first.ended_ms < _PATIENCE.total_seconds() * 1000:
        return
    raise DataError(
        f"Transaction {first.transaction} of the source is incomplete.",
        why=f"It has {first.changes} changes, and {change_counts.get(first.transaction, 0)} of them are in the topics. "
        f"Later transactions have followed it for {_PATIENCE.total_seconds() / 60:.0f} minutes.",
        state="The tables contain every transaction before it, and nothing after it.",
        remedy="Check whether a topic of the capture was deleted, or lost records to its retention. Then capture the "
        "database again, or remove `atomic_transactions` from the declaration.",
        code="HR-548",
    )
