"""Changes that are applied by whole transactions: a reader of `_published` never sees an order without its items.

The topics of a database are read side by side, and a batch may end anywhere in each: with an order and not yet its
items. So a batch hands on the changes of the transactions that are whole, in the order of their commits up to the first
that is not, and keeps the others for the next batch:

    LAKE/INTO/_pending     changes that wait for the rest of their transaction; the ends of transactions that wait

The connector tells with the end of a transaction how many changes it has, by table. Messages that the transaction wrote
into the log (`pg_logical_emit_message`) are counted by it too, as a table of their own; they are in a topic that is not
read, so they are not waited for. Rows of a snapshot belong to none, and pass.
After a crash the connector sends again what it had not noted as sent, and that may be a part of a transaction only:
transactions that were applied are remembered, and their changes pass at once.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.errors import DataError
from headrace.flow.sink import Batch
from headrace.sinks.batch.persist import kept
from headrace.sinks.delta.log import version

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PENDING = "_pending"
BATCH, _QUERY, _DONE = "_headrace_batch", "_headrace_query", "_headrace_done"
# What the connector calls the messages of the log where it names a table: an object of its own, as Java tells one.
_MESSAGES = r"^(?:\S+[.$]LogicalDecodingMessageId@[0-9a-f]+|LOGICAL_DECODING_MESSAGE)$"
# More than a connector sends again: it notes every minute what it has sent.
_REMEMBERED = 20_000
# The end of a transaction is sent after its changes. One that lacks some for so long will lack them for ever.
_PATIENCE = dt.timedelta(minutes=10)


@dataclass(frozen=True)
class End:
    """The end of a transaction: its place in the topic of transactions, its id, its changes, when it was told."""

    offset: int
    transaction: str
    changes: int
    told_ms: int


@contextmanager
def whole(rows: DataFrame, location: str, batch: Batch) -> Iterator[DataFrame]:
    """Give the changes of transactions that are whole, and keep the others at a location for the next batch.

    `rows` are envelopes and the records of the topic of transactions, which have `status`, `id`, `event_count` and
    `data_collections`. An attempt that is made again finds what the first one found: what an earlier batch kept stays
    until this one is done.
    """
    session = rows.sparkSession
    before = _before(session, location, batch)
    waited = _waited(session, location, batch, before)
    everything = rows if waited is None else rows.unionByName(waited.drop(BATCH, _QUERY, _DONE))
    done = [] if waited is None else _done(waited)
    with kept(everything) as once:
        seen, ends = _seen(once), _ends(once)
        ready = complete(ends, seen, done)
        lacking = [end for end in ends if end.transaction not in {*ready, *done}]
        _require_no_loss(lacking, seen, ends)
        passes = sorted({*ready, *(each for each in done if each in seen)})
        mine = _transaction()
        now = F.col("op").isNotNull() & (mine.isNull() | mine.isin(passes))
        waits = F.when(F.col("op").isNull(), ~_of_end().isin([*ready, *done])).otherwise(~now)
        held = once.where(waits & (F.col("op").isNotNull() | (F.col("status") == "END")))
        _keep(session, held, [*done, *ready][-_REMEMBERED:], location, batch, before)
        yield once.where(now)


def complete(ends: Iterable[End], seen: Mapping[str, int], done: Sequence[str]) -> list[str]:
    """Return the transactions that are whole, in the order of their commits, up to the first that is not."""
    found, known = list[str](), set(done)
    for end in ends:
        if end.transaction in known:
            continue
        if seen.get(end.transaction, 0) < end.changes:
            break
        found.append(end.transaction)
        known.add(end.transaction)
    return found


def _transaction() -> Column:
    """Return the id of a change's transaction. Postgres writes the place of the single change behind it."""
    return F.split_part(F.col("transaction")["id"], F.lit(":"), F.lit(1))


def _of_end() -> Column:
    return F.split_part(F.col("id"), F.lit(":"), F.lit(1))


def _seen(once: DataFrame) -> Mapping[str, int]:
    """Count the changes of each transaction; one that was sent twice counts once."""
    source = F.col("source")
    place = F.struct("topic", source["lsn"], source["file"], source["pos"], source["row"], "op", "key")
    told = once.where((F.col("op") != "m") & F.col("transaction")["id"].isNotNull())
    found = told.groupBy(_transaction().alias("id")).agg(F.count_distinct(place).alias("changes"))
    return Counter({row.id: row.changes for row in found.collect()})


def _ends(once: DataFrame) -> list[End]:
    told = once.where(F.col("status") == "END").select("offset", _of_end().alias("id"), _changes(), "ts_ms")
    found = sorted(told.collect(), key=lambda row: row.offset)
    return [End(row.offset, row.id, row.changes or 0, row.ts_ms or 0) for row in found]


def _changes() -> Column:
    """Return how many changes of rows an end tells of: everything but messages."""
    messages = F.filter("data_collections", lambda each: each["data_collection"].rlike(_MESSAGES))
    counted = F.aggregate(messages, F.lit(0).cast("long"), lambda sum_, each: sum_ + each["event_count"])
    return (F.col("event_count") - F.coalesce(counted, F.lit(0))).alias("changes")


def _before(session: SparkSession, location: str, batch: Batch) -> int | None:
    """Return the last batch before this one that kept something."""
    if version(session, location) < 0:
        return None
    mine = (F.col(_QUERY) == batch.query_id) & (F.col(BATCH) < batch.id)
    found = session.read.format("delta").load(location).where(mine).agg(F.max(BATCH)).first()
    return None if found is None else found[0]


def _waited(session: SparkSession, location: str, batch: Batch, before: int | None) -> DataFrame | None:
    if before is None:
        return None
    mine = (F.col(_QUERY) == batch.query_id) & (F.col(BATCH) == before)
    return session.read.format("delta").load(location).where(mine)


def _done(waited: DataFrame) -> list[str]:
    found = waited.where(F.col(_DONE).isNotNull()).select(_DONE).first()
    return list(found[0]) if found else []


def _keep(
    session: SparkSession, held: DataFrame, done: Sequence[str], location: str, batch: Batch, before: int | None
) -> None:
    """Write what waits, and remove what this batch and every later attempt at it do not need."""
    mark = {BATCH: F.lit(batch.id).cast("long"), _QUERY: F.lit(batch.query_id)}
    rows = held.withColumns(mark | {_DONE: F.lit(None).cast("array<string>")})
    memory = session.createDataFrame([(list(done),)], f"{_DONE} array<string>").withColumns(mark)
    old = f"{_QUERY} <> '{batch.query_id}' OR {BATCH} >= {batch.id} OR {BATCH} < {before if before is not None else 0}"
    written = rows.unionByName(memory, allowMissingColumns=True).coalesce(1).write.format("delta").mode("overwrite")
    if version(session, location) >= 0:
        written = written.option("replaceWhere", old)
    written.save(location)


def _require_no_loss(lacking: Sequence[End], seen: Mapping[str, int], ends: Sequence[End]) -> None:
    if not lacking:
        return
    first, newest = lacking[0], max(end.told_ms for end in ends)
    if newest - first.told_ms < _PATIENCE.total_seconds() * 1000:
        return
    raise DataError(
        f"Transaction {first.transaction} of the source lacks changes.",
        why=f"It has {first.changes} and {seen.get(first.transaction, 0)} of them are in the topics, although others "
        f"have followed it for {_PATIENCE.total_seconds() / 60:.0f} minutes.",
        state="The tables hold every transaction before it, and nothing after it.",
        remedy="Look whether a topic of the capture was deleted or has lost records by its retention; then capture the "
        "database anew, or take `together` off the declaration.",
        code="HR-548",
    )
