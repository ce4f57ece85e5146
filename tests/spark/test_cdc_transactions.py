"""Transactions over several tables, cut by batches anywhere: what is published contains complete ones only."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdc_changes import decoder
from headrace.cdc.apply.maintenance import CdcMaintenance
from headrace.cdc.apply.transactions import TransactionEnd, complete_transaction_ids
from headrace.cdc.capture.source_table import SourceColumn, SourceTable
from headrace.cdc.sink import DeltaCdc
from headrace.errors import DataError
from headrace.flow.sink import Batch
from headrace.flow.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = """
topic string, partition int, offset bigint, key string, op string, before map<string,string>, after map<string,string>,
source struct<lsn: bigint, file: string, pos: bigint, row: int>, ts_ms bigint, transaction struct<id: string>,
status string, id string, event_count bigint,
data_collections array<struct<data_collection: string, event_count: bigint>>
"""
Record = tuple[object, ...]
# As Debezium 3.6.1 names them; the number is another in every transaction.
MESSAGES = "io.debezium.connector.postgresql.LogicalDecodingMessageMonitor$LogicalDecodingMessageId@627152af"


def change(table: str, offset: int, transaction: int, key: str, order: str) -> Record:
    lsn = transaction * 100 + offset
    columns = {"id": key, "order": order}
    reported = (lsn, None, None, None)
    return (table, 0, offset, key, "c", None, columns, reported, 1, (f"{transaction}:{lsn}",), *(None,) * 4)


def end(offset: int, transaction: int, changes: int, ended_ms: int = 1, messages: int = 0) -> Record:
    """The end of a transaction. The connector counts its messages with its changes, under a name of their own."""
    parts = [("public.orders", changes), (MESSAGES, messages)]
    counted = (changes + messages, [part for part in parts if part[1]])
    return ("transaction", 0, offset, *(None,) * 5, ended_ms, None, "END", f"{transaction}:9{transaction}", *counted)


def table(name: str) -> SourceTable:
    columns = tuple(SourceColumn(item, "text", nullable=True) for item in ("id", "order"))
    return SourceTable("public", name, columns, ("id",), "postgres")


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))


@pytest.fixture
def sink() -> DeltaCdc:
    return DeltaCdc("shop", lambda topic, _target: table(topic), decoder, atomic_transactions=True)


def write(spark: SparkSession, sink: DeltaCdc, target: Target, batch: int, *records: Record) -> None:
    sink.write(spark.createDataFrame(list(records), RECORDS).coalesce(1), Batch("shop", "q1", batch, target))


def orders(spark: SparkSession, target: Target, name: str) -> list[str]:
    """The orders that a table contains, as the published version has them."""
    for row in spark.read.format("delta").load(f"{target.lake}/shop/_published").collect():
        if row.table == f"public.{name}":
            then = spark.read.format("delta").option("versionAsOf", row.version).load(row.path)
            return sorted(item["order"] for item in then.collect())
    return []


@pytest.mark.spark
def test_a_transaction_is_published_when_all_of_it_is_there_and_none_before(
    spark: SparkSession, target: Target, sink: DeltaCdc
):
    # Transaction 1 is an order of two items, of which the second comes with the second batch, as the end of 2 does.
    first = (
        change("orders", 0, 1, "a", "a"),
        change("items", 0, 1, "a1", "a"),
        end(0, 1, 3),
        change("orders", 1, 2, "b", "b"),
    )
    second = (change("items", 1, 1, "a2", "a"), end(1, 2, 1))

    write(spark, sink, target, 0, *first)
    assert (orders(spark, target, "orders"), orders(spark, target, "items")) == ([], [])

    # The second attempt finds what the first one found.
    for _ in range(2):
        write(spark, sink, target, 1, *second)
        assert (orders(spark, target, "orders"), orders(spark, target, "items")) == (["a", "b"], ["a", "a"])

    # A part of the first transaction is sent again after a crash of the connector: it waits for nothing.
    write(spark, sink, target, 2, change("items", 2, 1, "a2", "a"), end(2, 1, 3), end(3, 3, 1))
    # A batch that cleans its tables cleans its metadata tables, too.
    left = [Path(target.lake, "shop", name, "part-00000-killed.snappy.parquet") for name in ("_published", "_pending")]
    for file in left:
        file.write_bytes(b"PAR1")
        os.utime(file, (0, 0))
    cleaning = replace(sink, maintenance=CdcMaintenance(clean_every="1 second", retention="1 hour"))
    write(spark, cleaning, target, 3, change("orders", 2, 3, "c", "c"))
    assert [file for file in left if file.exists()] == []
    assert (orders(spark, target, "orders"), orders(spark, target, "items")) == (["a", "b", "c"], ["a", "a"])

    # A transaction with two messages in addition to its change, and one of a message alone, delay nothing.
    write(spark, sink, target, 4, change("orders", 3, 4, "d", "d"), end(4, 4, 1, messages=2), end(5, 5, 0, messages=1))
    assert orders(spark, target, "orders") == ["a", "b", "c", "d"]

    # One whose rest never comes is named, and not waited for in silence.
    with pytest.raises(DataError, match="Transaction 6 of the source is incomplete") as refused:
        write(spark, sink, target, 5, end(6, 6, 2, ended_ms=1), end(7, 7, 1, ended_ms=601_000))
    assert refused.value.code == "HR-548"


def test_what_is_complete_is_a_prefix_of_the_commits_and_the_longest():
    chance = random.Random(7)  # noqa: S311 - not for secrets
    for _ in range(500):
        changes = [chance.randint(1, 4) for _ in range(6)]
        observed = {str(n): chance.choice([size, size, size, size - 1]) for n, size in enumerate(changes)}
        done = [str(n) for n in range(chance.randint(0, 2))]
        ends = [TransactionEnd(n, str(n), size, 1) for n, size in enumerate(changes)]

        actual = complete_transaction_ids(ends, observed, done)

        complete = [n for n in range(6) if str(n) in done or observed[str(n)] == changes[n]]
        prefix = next((n for n in range(6) if n not in complete), 6)
        assert actual == [str(n) for n in range(prefix) if str(n) not in done]
