"""Rows joined with a dimension that changes: each once, enriched or waiting, in every version of the table."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from live_run import Folder, Hands, live
from pyspark.sql.types import DecimalType, StringType, StructField, StructType

from cdc_changes import BEGAN, frame, into, row
from headrace import Flow, Input, Watermark
from headrace.cdc.apply.history import History
from headrace.errors import HeadraceError
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.runtime.events import BatchCommitted
from headrace.sinks.delta.dimension import (
    AsOf,
    Dimension,
    DimensionCache,
    EachBatch,
    EveryInterval,
    OnNewVersion,
    Refresh,
)
from headrace.sinks.delta.enriched import DeltaEnriched
from headrace.sinks.delta.policy import TablePolicy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PRODUCTS = Dimension(
    "dim/products",
    key="id",
    columns=StructType([StructField("name", StringType()), StructField("price", DecimalType(10, 2))]),
    required=False,
)
# The purchase, the product, and what the table has of it: name, whether it is enriched, the version of the dimension.
Row = tuple[str, str, str | None, bool, int]


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))


def sink(dimension: Dimension = PRODUCTS) -> DeltaEnriched:
    return DeltaEnriched("silver/purchases", key="product", dimension=dimension)


def products(spark: SparkSession, target: Target, *names: str) -> None:
    """Write the next version of the dimension: products whose name equals their key."""
    rows = spark.createDataFrame([(name, name.upper(), None) for name in names], "id string, name string, price string")
    typed = rows.withColumn("price", rows.price.cast("decimal(10,2)")).coalesce(1)
    typed.write.format("delta").mode("overwrite").save(target.table("dim/products"))


def bought(spark: SparkSession, *rows: str) -> DataFrame:
    """Return purchases such as `1 nut`: an id and a product."""
    return spark.createDataFrame([tuple(row.split()) for row in rows], "id string, product string").coalesce(1)


def write(declared: DeltaEnriched, rows: DataFrame, batch: int, target: Target, cache: RunCache | None = None) -> None:
    declared.write(rows, Batch("purchases", "q", batch, target, cache=cache or RunCache()))


def stored_rows(spark: SparkSession, target: Target, version: int | None = None) -> list[Row]:
    reader = spark.read.format("delta")
    reader = reader if version is None else reader.option("versionAsOf", str(version))
    rows = reader.load(target.table("silver/purchases")).collect()
    return sorted((row.id, row.product, row.name, row.enriched, row.dimension_version) for row in rows)


def versions_seen(spark: SparkSession, target: Target) -> list[int]:
    history = spark.sql(f"DESCRIBE HISTORY delta.`{target.table('silver/purchases')}`").orderBy("version").collect()
    return [json.loads(row.userMetadata)["dimension_version"] for row in history]


def test_rows_wait_for_their_product_and_get_it_once(spark: SparkSession, target: Target):
    declared, cache = sink(), RunCache()
    declared.prepare(spark, target, cache)
    write(declared, bought(spark, "1 nut"), 0, target, cache)
    products(spark, target, "nut")
    write(declared, bought(spark, "2 nut", "3 bolt", "3 bolt"), 1, target, cache)
    write(declared, bought(spark, "4 gear"), 2, target, cache)
    products(spark, target, "nut", "bolt")
    write(declared, bought(spark), 3, target, cache)

    assert stored_rows(spark, target, 0) == [("1", "nut", None, False, -1)]
    assert stored_rows(spark, target) == [
        ("1", "nut", "NUT", True, 0),
        ("2", "nut", "NUT", True, 0),
        ("3", "bolt", "BOLT", True, 1),
        ("3", "bolt", "BOLT", True, 1),
        ("4", "gear", None, False, 1),
    ]
    assert versions_seen(spark, target) == [-1, 0, 0, 1]
    assert declared.committed_batches(spark, "purchases", "0", target).last == {"q": 3}
    # Nobody is there twice, and nobody is missing, in between.
    for number, rows in enumerate([1, 4, 5, 5]):
        assert len(stored_rows(spark, target, number)) == rows


def test_the_check_before_the_start_and_the_first_batch_load_the_dimension_once(spark: SparkSession, target: Target):
    declared, cache = sink(), RunCache()
    products(spark, target, "nut")
    declared.prepare(spark, target, cache)
    dimension = cache.get(DimensionCache, target.table("silver/purchases"))
    loaded = dimension.current(PRODUCTS, spark, target)
    write(declared, bought(spark, "1 nut"), 0, target, cache)
    assert dimension.current(PRODUCTS, spark, target) is loaded
    assert stored_rows(spark, target) == [("1", "nut", "NUT", True, 0)]


def test_a_row_that_waits_gets_its_product_while_no_other_row_comes(
    spark: SparkSession, target: Target, tmp_path: Path
):
    folder, clock = Folder(tmp_path / "in"), Hands(8)
    declared = DeltaEnriched("silver/purchases", key="product", dimension=PRODUCTS)
    flow = Flow(
        "purchases",
        Input(folder.source, watermark=Watermark("at", "1 minute", idle_timeout="2 seconds")),
        lambda rows: rows.selectExpr("CAST(id AS STRING) id", "shop AS product"),
        declared,
    )
    folder.put((1, 1))
    with live(spark, target, flow, clock) as running:
        running.wait_rows(read=1)
        assert stored_rows(spark, target) == [("1", "north", None, False, -1)]
        products(spark, target, "north")
        clock.minute = 60
        running.wait(lambda events: sum(isinstance(event, BatchCommitted) for event in events) == 2)
        assert stored_rows(spark, target) == [("1", "north", "NORTH", True, 0)]
        # Nobody waits any more, whatever becomes known.
        products(spark, target, "north", "south")
        assert not declared.is_due(spark, target, RunCache())
    assert versions_seen(spark, target) == [-1, 0]
    assert (running.figures["purchases"].rows_in, running.figures["purchases"].error) == (1, None)


def test_rows_that_wait_are_due_when_the_policy_takes_another_version(
    spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch
):
    now, cache = [1000.0], RunCache()
    monkeypatch.setattr(DimensionCache, "clock", lambda _self: now[0])
    declared = sink(replace(PRODUCTS, refresh=EveryInterval("5 minutes")))
    products(spark, target, "nut")
    declared.prepare(spark, target, cache)
    assert not declared.is_due(spark, target, cache)
    write(declared, bought(spark, "1 bolt"), 0, target, cache)
    write(declared, bought(spark, "2 nut"), 1, target, cache)
    assert not declared.is_due(spark, target, cache)
    products(spark, target, "nut", "bolt")
    now[0] += 299
    assert not declared.is_due(spark, target, cache)
    now[0] += 1
    assert declared.is_due(spark, target, cache)
    write(declared, bought(spark), 2, target, cache)
    assert not declared.is_due(spark, target, cache)
    # A batch without rows that has nobody to look up is in the table's log as any other.
    write(declared, bought(spark), 3, target, cache)
    assert versions_seen(spark, target) == [0, 0, 1, 1]


def test_what_is_enriched_stays_when_the_product_changes_or_goes_and_files_are_joined(
    spark: SparkSession, target: Target
):
    declared, cache = replace(sink(), policy=TablePolicy(small_files=2)), RunCache()
    products(spark, target, "nut")
    declared.prepare(spark, target, cache)
    write(declared, bought(spark, "1 nut"), 0, target, cache)
    products(spark, target, "bolt")
    write(declared, bought(spark, "2 nut"), 1, target, cache)

    write(declared, bought(spark, "3 bolt"), 2, target, cache)

    stays = [("1", "nut", "NUT", True, 0), ("2", "nut", None, False, 1), ("3", "bolt", "BOLT", True, 1)]
    assert stored_rows(spark, target) == stays
    history = spark.sql(f"DESCRIBE HISTORY delta.`{target.table('silver/purchases')}`").orderBy("version").collect()
    assert [item.operation for item in history] == ["WRITE", "WRITE", "WRITE", "OPTIMIZE"]


def test_a_batch_that_is_in_is_not_written_again_and_the_next_one_meets_the_new_version(
    spark: SparkSession, target: Target
):
    products(spark, target, "nut")
    first = sink()
    first.prepare(spark, target, RunCache())
    write(first, bought(spark, "1 nut", "2 bolt"), 0, target)
    # The driver died before Spark noted the batch. Meanwhile the bolt has become known.
    products(spark, target, "nut", "bolt")
    second, cache = sink(), RunCache()
    second.prepare(spark, target, cache)
    write(second, bought(spark, "1 nut", "2 bolt"), 0, target, cache)

    assert stored_rows(spark, target) == [("1", "nut", "NUT", True, 0), ("2", "bolt", None, False, 0)]

    write(second, bought(spark, "3 nut"), 1, target, cache)

    assert stored_rows(spark, target) == [
        ("1", "nut", "NUT", True, 0),
        ("2", "bolt", "BOLT", True, 1),
        ("3", "nut", "NUT", True, 1),
    ]


@pytest.mark.parametrize(
    ("refresh", "expected"),
    [(OnNewVersion(), [0, 1, 2]), (EachBatch(), [0, 1, 2]), (EveryInterval("5 minutes"), [0, 0, 2])],
)
def test_the_refresh_policy_decides_which_version_a_batch_reads(
    spark: SparkSession, target: Target, refresh: Refresh, expected: list[int], monkeypatch: pytest.MonkeyPatch
):
    now, cache = [1000.0], RunCache()
    monkeypatch.setattr(DimensionCache, "clock", lambda _self: now[0])
    declared = sink(replace(PRODUCTS, refresh=refresh))
    products(spark, target, "nut")
    declared.prepare(spark, target, cache)
    for number, seconds in enumerate([0, 299, 1]):
        now[0] += seconds
        write(declared, bought(spark, f"{number} bolt"), number, target, cache)
        products(spark, target, "nut", "bolt")

    assert versions_seen(spark, target) == expected


def test_by_event_time_a_row_gets_what_was_valid_then(spark: SparkSession, target: Target):
    def at(hour: int) -> datetime:
        return datetime(2026, 3, 2, hour, tzinfo=UTC)

    columns = "id string, name string, price decimal(10,2), valid_from timestamp, valid_to timestamp"
    # The version from 11 to 11 was never valid.
    reported = [
        ("nut", "first", 9, 11),
        ("nut", "never", 11, 11),
        ("nut", "second", 11, 13),
        ("nut", "third", 14, None),
    ]
    # Nobody knows since when.
    reported += [("bolt", "old", None, 11), ("bolt", "new", 11, None)]
    rows = [(key, name, None, *(hour and at(hour) for hour in hours)) for key, name, *hours in reported]
    spark.createDataFrame(rows, columns).write.format("delta").save(target.table("dim/products"))
    times = [8, 9, 10, 11, 13, 14, 20]
    bought = [(f"{hour}", product, at(hour)) for product in ("nut", "bolt") for hour in times]
    events = spark.createDataFrame(bought, "id string, product string, ts timestamp")
    declared = sink(replace(PRODUCTS, as_of=AsOf("ts")))
    declared.prepare(spark, target, RunCache())

    write(declared, events, 0, target)

    actual = {(row[1], int(row[0])): row[2] for row in stored_rows(spark, target)}
    expected = [None, "first", "first", "second", None, "third", "third"]
    assert [actual["nut", hour] for hour in times] == expected
    assert [actual["bolt", hour] for hour in times] == ["old"] * 3 + ["new"] * 4


def test_a_row_is_joined_with_the_version_that_was_valid_then_and_waits_if_there_was_none(
    spark: SparkSession, target: Target, tmp_path: Path
):
    marked = History("mark")
    # Inserted, changed, deleted and inserted again, at these seconds.
    log = [("c", 10, "a"), ("u", 20, "b"), ("d", 30, None), ("c", 40, "c")]
    marked.apply(frame(spark, [row(op, at, 7, note=note) for op, at, note in log]), into(tmp_path, 0))
    orders = Dimension("orders", key="id", columns=StructType([StructField("note", StringType())]), as_of=AsOf("ts"))
    declared = DeltaEnriched("silver/seen", key="order", dimension=orders)
    declared.prepare(spark, target, RunCache())
    seconds = [9, 10, 19, 20, 29, 30, 39, 40, 99]
    events = [(7, BEGAN + timedelta(seconds=second)) for second in seconds]

    write(declared, spark.createDataFrame(events, "order bigint, ts timestamp"), 0, target)

    actual = spark.read.format("delta").load(target.table("silver/seen")).orderBy("ts").collect()
    assert [item.note for item in actual] == [None, "a", "a", "b", "b", None, None, "c", "c"]
    assert [item.enriched for item in actual] == [item.note is not None for item in actual]


def refused(declared: DeltaEnriched, spark: SparkSession, target: Target) -> str:
    with pytest.raises(HeadraceError) as error:
        declared.prepare(spark, target, RunCache())
    assert not Path(target.table("silver/purchases")).exists()
    return f"{error.value.code} {error.value.what} {error.value.why}"


def test_a_dimension_that_would_double_rows_is_refused(spark: SparkSession, target: Target):
    products(spark, target, "nut", "bolt", "nut")

    assert "HR-562" in (message := refused(sink(), spark, target))
    assert "id nut." in message


def test_validity_that_overlaps_is_refused(spark: SparkSession, target: Target):
    moment = datetime(2026, 3, 2, tzinfo=UTC)
    columns = "id string, name string, price decimal(10,2), valid_from timestamp, valid_to timestamp"
    rows = [("nut", "a", None, moment, None), ("nut", "b", None, moment.replace(hour=5), None)]
    spark.createDataFrame(rows, columns).write.format("delta").save(target.table("dim/products"))

    declared = sink(replace(PRODUCTS, as_of=AsOf("ts")))
    assert "HR-562" in refused(declared, spark, target)
    # Nor may two of them have been valid from ever.
    unknown = [("nut", "a", None, None, moment), ("nut", "b", None, None, moment)]
    reported = spark.createDataFrame(unknown, columns)
    reported.write.format("delta").mode("overwrite").save(target.table("dim/products"))
    assert "HR-562" in refused(declared, spark, target)


@pytest.mark.parametrize("limit", ["100 B", "30 KB"])
def test_a_dimension_that_is_larger_than_the_limit_is_refused_before_anything_is_written(
    spark: SparkSession, target: Target, limit: str
):
    # 1,000 rows of three columns: 56 bytes and the texts, of 4 bytes twice at the most. Compressed they are a few KB.
    products(spark, target, *(f"p{number}" for number in range(1000)))

    message = refused(sink(replace(PRODUCTS, broadcast_limit=limit)), spark, target)

    assert "HR-561" in message
    assert "in 1,000 rows" in message


def test_columns_that_nobody_takes_do_not_count(spark: SparkSession, target: Target):
    products(spark, target, *(f"p{number}" for number in range(1000)))
    location = target.table("dim/products")
    # 128 KB that cannot be compressed.
    wide = spark.read.format("delta").load(location).selectExpr("*", "sha2(id, 512) one", "sha2(name, 512) other")
    wide.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(location)
    assert sum(path.stat().st_size for path in Path(location).glob("*.parquet")) > 128_000

    sink(replace(PRODUCTS, broadcast_limit="65 KB")).prepare(spark, target, RunCache())


def test_a_dimension_that_lacks_a_column_or_is_not_there_is_refused(spark: SparkSession, target: Target):
    with pytest.raises(HeadraceError, match="HR-565"):
        sink(replace(PRODUCTS, required=True)).preflight(target)
    assert "HR-565" in refused(sink(replace(PRODUCTS, required=True)), spark, target)
    spark.createDataFrame([("nut", "1.00")], "id string, price string").write.format("delta").save(
        target.table("dim/products")
    )

    message = refused(sink(), spark, target)

    assert "HR-563" in message
    assert "'name' does not exist; 'price' is string and not decimal(10,2)" in message


def test_a_column_of_the_rows_that_the_dimension_also_has_is_refused(spark: SparkSession, target: Target):
    with pytest.raises(HeadraceError, match="HR-564"):
        write(sink(), bought(spark, "1 nut").withColumnRenamed("id", "name"), 0, target)
