"""A batch of envelopes of several tables, each applied to a Delta table of its own, once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdc_changes import decoder
from headrace.cdc.apply.maintenance import CdcMaintenance
from headrace.cdc.apply.mirror import Mirror
from headrace.cdc.capture.source_table import SourceColumn, SourceTable
from headrace.cdc.sink import DeltaCdc, SkippedTable
from headrace.errors import DataError, FlowError
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch, DeadLetters, Sink, TracksBatches, WritesFolder
from headrace.flow.target import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ENVELOPES = """
topic string, partition int, offset bigint, key string, op string, before map<string,string>, after map<string,string>,
source struct<lsn: bigint>
"""


MISSING = DataError("It is gone.", why="w.", state="s.", remedy="r.", code="HR-547")


def table(name: str, *columns: str, schema: str = "public") -> SourceTable:
    return SourceTable(
        schema, name, tuple(SourceColumn(column, "text", True) for column in columns), ("id",), "postgres"
    )


@dataclass
class Catalogue:
    """A catalogue that counts how often it is asked."""

    tables: dict[str, SourceTable | SkippedTable]
    asked: list[str] = field(default_factory=list)

    def __call__(self, topic: str, _target: Target) -> SourceTable | SkippedTable:
        self.asked.append(topic)
        return self.tables[topic]


def envelopes(spark: SparkSession, *rows: tuple[str, str, int, dict[str, str]]) -> DataFrame:
    reported = [
        (topic, 0, position, None, op, after if op == "d" else None, None if op == "d" else after, (position,))
        for topic, op, position, after in rows
    ]
    return spark.createDataFrame(reported, ENVELOPES).coalesce(1)


def stored_rows(spark: SparkSession, target: Target, name: str) -> set[tuple[str | None, ...]]:
    rows = spark.read.format("delta").load(f"{target.lake}/shop/{name}").drop("_headrace_position")
    return {tuple(row) for row in rows.collect()}


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))


def test_each_table_of_a_batch_is_applied_once_and_its_version_published(
    spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch
):
    looked_after: list[str] = []
    monkeypatch.setattr(
        CdcMaintenance, "compact", lambda _self, _session, location, _cache: looked_after.append(location)
    )
    catalogue = Catalogue(
        {
            "shop.orders": table("orders", "id", "state"),
            "shop.items": table("items", "id"),
            "shop.brief": SkippedTable("shop.brief", "gone", MISSING),
        }
    )
    sink, cache = DeltaCdc("shop", catalogue, decoder), RunCache()
    first = envelopes(
        spark,
        ("shop.orders", "c", 1, {"id": "1", "state": "new"}),
        ("shop.orders", "c", 2, {"id": "2", "state": "new"}),
    )
    second = envelopes(
        spark,
        ("shop.orders", "d", 3, {"id": "1"}),
        ("shop.items", "c", 4, {"id": "7"}),
        ("shop.orders", "m", 5, {"id": "1"}),
        ("shop.brief", "c", 6, {"id": "1"}),
        ("shop.brief", "d", 7, {"id": "1"}),
    )
    reported: list[DeadLetters] = []

    sink.write(first, Batch("shop", "q1", 0, target, cache=cache))
    for _ in range(2):
        sink.write(second, Batch("shop", "q1", 1, target, cache=cache, on_dead_letters=reported.append))
    sink.write(envelopes(spark), Batch("shop", "q1", 2, target, cache=cache))

    # A table that was made and dropped again stops no other. One of which rows are stored may not be dropped silently.
    assert [(item.rows, item.why) for item in reported] == [(2, "gone")] * 2
    # A new run asks again.
    catalogue.tables["shop.orders"] = SkippedTable("shop.orders", "gone", MISSING)
    with pytest.raises(DataError) as lacking:
        sink.write(first, Batch("shop", "q1", 3, target))
    assert lacking.value is MISSING

    assert stored_rows(spark, target, "orders") == {("2", "new")}
    assert {f"{target.lake}/shop/orders", f"{target.lake}/shop/_tombstones/orders"} <= {*looked_after}
    assert stored_rows(spark, target, "items") == {("7",)}
    assert catalogue.asked == ["shop.orders", "shop.brief", "shop.items", "shop.brief", "shop.orders"]
    assert {name for name in vars(Sink) if name[0] != "_"} <= set(dir(sink))
    assert isinstance(sink, TracksBatches)
    assert isinstance(sink, WritesFolder)
    assert sink.committed_batches(spark, "shop", "0", target).last == {"q1": 2}
    published = spark.read.format("delta").load(f"{target.lake}/shop/_published").collect()
    for row in published:
        then = spark.read.format("delta").option("versionAsOf", row.version).load(row.path)
        assert then.count() == 1, row.table


def test_the_next_attempt_repairs_a_crash_between_two_tables(
    spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch
):
    catalogue = Catalogue({"shop.items": table("items", "id"), "shop.orders": table("orders", "id")})
    sink = DeltaCdc("shop", catalogue, decoder)
    rows = envelopes(spark, ("shop.items", "c", 1, {"id": "1"}), ("shop.orders", "c", 2, {"id": "2"}))
    applies = Mirror.apply

    def dies(self: Mirror, changes: DataFrame, into: object) -> None:
        if "orders" in str(into):
            raise KeyboardInterrupt
        applies(self, changes, into)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Mirror, "apply", dies)
        with pytest.raises(KeyboardInterrupt):
            sink.write(rows, Batch("shop", "q1", 0, target))
    assert stored_rows(spark, target, "items") == {("1",)}
    assert sink.committed_batches(spark, "shop", "0", target).last == {}

    sink.write(rows, Batch("shop", "q1", 0, target))
    assert stored_rows(spark, target, "items") == {("1",)}
    assert stored_rows(spark, target, "orders") == {("2",)}


def test_a_column_that_is_new_is_looked_up_and_added_and_a_renamed_one_refused(spark: SparkSession, target: Target):
    catalogue = Catalogue({"shop.orders": table("orders", "id")})
    sink, cache = DeltaCdc("shop", catalogue, decoder), RunCache()
    sink.write(envelopes(spark, ("shop.orders", "c", 1, {"id": "1"})), Batch("shop", "q1", 0, target, cache=cache))
    catalogue.tables["shop.orders"] = table("orders", "id", "state")

    late = envelopes(spark, ("shop.orders", "c", 2, {"id": "2", "state": "new"}))
    sink.write(late, Batch("shop", "q1", 1, target, cache=cache))

    rows = spark.read.format("delta").load(f"{target.lake}/shop/orders").collect()
    assert {(row.id, row.state) for row in rows} == {("1", None), ("2", "new")}

    # Without a column of before and with another one: a rename, for all that the log says.
    catalogue.tables["shop.orders"] = table("orders", "id", "status")
    renamed = envelopes(spark, ("shop.orders", "c", 3, {"id": "3", "status": "new"}))
    with pytest.raises(DataError, match="'status' is new and 'state' is missing"):
        sink.write(renamed, Batch("shop", "q1", 2, target, cache=cache))
    assert stored_rows(spark, target, "orders") == {("1", None), ("2", "new")}


def test_two_tables_of_one_name_are_refused(spark: SparkSession, target: Target):
    catalogue = Catalogue({"shop.a": table("orders", "id"), "shop.b": table("orders", "id", schema="old")})
    rows = envelopes(spark, ("shop.a", "c", 1, {"id": "1"}), ("shop.b", "c", 2, {"id": "2"}))

    with pytest.raises(FlowError, match="HR-247"):
        DeltaCdc("shop", catalogue, decoder).write(rows, Batch("shop", "q1", 0, target))
