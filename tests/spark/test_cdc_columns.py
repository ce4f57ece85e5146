"""Columns of a source that change while its changes are on their way, read by the decoder that flows use."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.cdc.apply.change_log import ChangeLog
from headrace.cdc.apply.history import History
from headrace.cdc.apply.mirror import Mirror
from headrace.cdc.capture.source_table import SourceColumn, SourceTable
from headrace.cdc.decode.envelope import ENVELOPE, PLACEHOLDER, change_decoder, has_ambiguous_unit
from headrace.cdc.sink import DeltaCdc, StoredAs
from headrace.clients.sql import quote_name
from headrace.errors import DataError
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch
from headrace.flow.target import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

RECORDS = StructType().add("topic", "string").add("partition", "integer").add("offset", "long").add("key", "string")
Texts = dict[str, str | None]
STORED_AS = [
    pytest.param(Mirror(), id="mirror"),
    pytest.param(History(), id="history", marks=pytest.mark.certify),
    pytest.param(ChangeLog(), id="log", marks=pytest.mark.certify),
]


def table(**columns: str) -> SourceTable:
    reported = tuple(SourceColumn(name, kind.replace("_", " "), True) for name, kind in columns.items())
    return SourceTable("public", "orders", reported, ("id",), "postgres")


FIRST = table(id="integer", qty="integer", price="numeric(6,2)", note="text")
WIDER = table(id="bigint", qty="bigint", price="numeric(10,4)", note="text")
LARGER = table(id="bigint", qty="bigint", price="numeric(10,4)", note="text", extra="integer")
SMALLER = table(id="bigint", qty="bigint", price="numeric(10,4)", extra="integer")


@dataclass
class Source:
    """A catalogue that is changed, and counts how often it is asked."""

    now: SourceTable
    asked: int = 0
    place: int = 0
    batch: int = field(default=0)

    def __call__(self, _topic: str, _target: Target) -> SourceTable:
        self.asked += 1
        return self.now

    def batches(self, spark: SparkSession, *reported: tuple[str, Texts | None, Texts | None]) -> DataFrame:
        rows = []
        for op, before, after in reported:
            self.place += 1
            key = {name: (after or before or {})[name] for name in self.now.key}
            source = {"ts_us": self.place * 1_000_000, "txId": "7", "lsn": self.place}
            envelope = {"op": op, "before": before, "after": after, "source": source}
            rows.append(
                {"topic": "shop.orders", "partition": 0, "offset": self.place, "key": json.dumps(key), **envelope}
            )
        return spark.createDataFrame(rows, StructType([*RECORDS, *ENVELOPE])).coalesce(1)


def order(key: str, qty: str, price: str, note: str | None = None, **more: str) -> Texts:
    return {"id": key, "qty": qty, "price": price, **({"note": note} if note else {}), **more}


def history_of(rows: DataFrame) -> set[tuple[object, ...]]:
    return {tuple(row) for row in rows.select("id", "qty", "price", "note", "extra", "is_current").collect()}


@pytest.mark.parametrize("stored_as", STORED_AS)
def test_rows_from_before_and_after_a_column_change_in_one_batch_are_distinguished(
    spark: SparkSession, tmp_path: Path, stored_as: StoredAs
):
    target = Target("test", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))
    source = Source(FIRST)
    dropped = "drop" if isinstance(stored_as, Mirror) else "keep"
    sink = DeltaCdc(
        "shop",
        source,
        partial(change_decoder, before=isinstance(stored_as, ChangeLog)),
        stored_as,
        dropped_columns=dropped,
    )
    cache = RunCache()

    def write(number: int, *reported: tuple[str, Texts | None, Texts | None]) -> DataFrame:
        sink.write(source.batches(spark, *reported), Batch("shop", "q1", number, target, cache=cache))
        return spark.read.format("delta").load(f"{tmp_path}/shop/orders")

    write(
        0,
        ("c", None, order("1", "1", "1.50", "a")),
        ("c", None, order("2", "2", "2.50", "b")),
        ("c", None, order("5", "5", "5.50", "e")),
        ("d", order("5", "5", "5.50", "e"), None),
    )
    # Wider types, with no other column to indicate it: a number that does not fit does.
    wider = (("u", None, order("1", "5", "1.75", "a")), ("c", None, order("3000000000", "3000000001", "3.1234", "c")))
    source.now, alone = WIDER, isinstance(stored_as, Mirror)
    if alone:
        write(1, *wider)
    # A column more.
    source.now = LARGER
    write(
        2,
        *(() if alone else wider),
        ("u", None, order("2", "6", "2.50", "b")),
        ("c", None, order("4", "4", "4", "d")),
        ("u", None, order("1", "7", "1.75", "a", extra="9")),
    )
    # A column less.
    source.now = SMALLER
    rows = write(
        3,
        ("u", None, order("4", "8", "4", "e", extra="1")),
        ("u", order("1", "7", "1.75", extra="9"), order("1", "7", "1.75", extra="10")),
        ("d", {"id": "2"}, None),
    )

    assert source.asked == (4 if alone else 3)
    d = Decimal
    if isinstance(stored_as, Mirror):
        assert {tuple(row) for row in rows.drop("_headrace_position").collect()} == {
            (1, 7, d("1.7500"), 10),
            (3_000_000_000, 3_000_000_001, d("3.1234"), None),
            (4, 8, d("4.0000"), 1),
        }
    elif isinstance(stored_as, History):
        assert history_of(rows) == {
            (1, 1, d("1.5000"), "a", None, False),
            (1, 5, d("1.7500"), "a", None, False),
            (1, 7, d("1.7500"), "a", 9, False),
            (1, 7, d("1.7500"), None, 10, True),
            (2, 2, d("2.5000"), "b", None, False),
            (2, 6, d("2.5000"), "b", None, False),
            (3_000_000_000, 3_000_000_001, d("3.1234"), "c", None, True),
            (4, 4, d("4.0000"), "d", None, False),
            (4, 8, d("4.0000"), None, 1, True),
            (5, 5, d("5.5000"), "e", None, False),
        }
    else:
        columns = ("offset", "op", "key.id", "before.extra", "after.qty", "after.extra", "unavailable", "transaction")
        reported = {row[0]: tuple(row)[1:] for row in rows.select(*columns).collect()}
        assert rows.count() == len(reported) == 12
        assert reported[4] == ("d", 5, None, None, None, [], "7")
        assert reported[7] == ("u", 2, None, 6, None, ["extra"], "7")
        assert reported[11] == ("u", 1, 9, 7, 10, [], "7")
        assert reported[12] == ("d", 2, None, None, None, [], "7")


def test_what_would_lose_something_is_refused_with_statements_that_mend_it(spark: SparkSession, tmp_path: Path):
    target = Target("test", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))
    source = Source(table(id="integer", qty="bigint", at="timestamp(6)_without_time_zone"))
    sink = DeltaCdc("shop", source, change_decoder)

    def write(number: int, **texts: str) -> None:
        sink.write(
            source.batches(spark, ("c", None, {"id": str(number), **texts})), Batch("shop", "q1", number, target)
        )

    def refused(number: int, **texts: str) -> list[str]:
        with pytest.raises(DataError) as raised:
            write(number, **texts)
        assert raised.value.code == "HR-542"
        return re.findall(r"((?:ALTER|UPDATE) [^;]*);", raised.value.remedy)

    write(0, qty="1", at="1000000")
    # Known from the first batch on.
    (reported,) = spark.sql(f"SHOW TBLPROPERTIES delta.`{tmp_path}/shop/orders` ('headrace.text_format')").collect()
    assert json.loads(reported.value) == {"at": "microseconds"}

    # Another name: the first two of the statements say that it is one column.
    source.now = table(id="integer", amount="bigint", at="timestamp(6)_without_time_zone")
    for statement in refused(1, amount="2", at="1000000")[:2]:
        spark.sql(statement)
    write(1, amount="2", at="1000000")

    # Fewer digits.
    source.now = table(id="integer", amount="integer", at="timestamp(6)_without_time_zone")
    for statement in refused(2, amount="3", at="1000000"):
        spark.sql(statement)
    write(2, amount="3", at="1000000")

    # Milliseconds in the place of microseconds: the same column type, and another number for the same time.
    source.now = table(id="integer", amount="integer", at="timestamp(3)_without_time_zone")
    for statement in refused(3, amount="4", at="1000"):
        spark.sql(statement)
    write(3, amount="4", at="1000")

    rows = spark.read.format("delta").load(f"{tmp_path}/shop/orders")
    assert dict(rows.dtypes)["amount"] == "int"
    assert {(row.id, row.amount, str(row.at)) for row in rows.collect()} == {
        (key, key + 1, "1970-01-01 00:00:01") for key in range(4)
    }

    # The same under a running flow: the first time of more digits has the catalogue asked.
    asked, cache = source.asked, RunCache()
    running = DeltaCdc("shop", source, change_decoder, is_ambiguous=has_ambiguous_unit)
    row = ("c", None, {"id": "4", "amount": "5", "at": "1700000000123"})
    running.write(source.batches(spark, row), Batch("shop", "q1", 4, target, cache=cache))
    assert source.asked == asked + 1
    source.now = table(id="integer", amount="integer", at="timestamp(6)_without_time_zone")
    row = ("c", None, {"id": "5", "amount": "6", "at": "1700000000123456"})
    with pytest.raises(DataError, match="HR-542"):
        running.write(source.batches(spark, row), Batch("shop", "q1", 5, target, cache=cache))
    source.now = table(id="integer", amount="integer", at="timestamp(3)_without_time_zone")

    # No type of the source has this text.
    with pytest.raises(DataError, match="HR-540"):
        write(5, amount="many", at="1000")

    # Kept in another way.
    with pytest.raises(DataError, match="HR-543"):
        DeltaCdc("shop", source, change_decoder, Mirror("soft")).write(
            source.batches(spark, ("d", {"id": "1"}, None)), Batch("shop", "q1", 5, target)
        )


HOUR, DAY = 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("column", "other", "safe"),
    [
        # A type, how many the other unit counts in a second, and texts that are no reason to ask.
        ("timestamp(3) without time zone", 1_000_000, ["0", "4102444800000", "-8000000000000", None]),
        ("timestamp without time zone", 1_000, ["0", "4102444800000000", "-8000000000000000", None]),
        ("time(0) without time zone", 1_000_000, ["0", str(DAY), str(HOUR)]),
        ("time(6) without time zone", 1_000, ["0", str(DAY * 1_000), str(HOUR * 1_000)]),
    ],
)
def test_a_time_in_another_unit_than_its_type_has_is_ambiguous(
    spark: SparkSession, column: str, other: int, safe: list[str | None]
):
    of = SourceTable("public", "orders", (SourceColumn("at", column, True),), ("at",), "postgres")
    is_clock = column.startswith("time(")
    # Noon, one o'clock; days of 1800, 1930, 1975, 2024 and 2200.
    seconds = (
        (43_200, 3_600) if is_clock else (-5_364_662_400, -1_262_304_000, 157_766_400, 1_704_067_200, 7_258_118_400)
    )
    doubtful = [str(second * other) for second in seconds]
    rows = spark.createDataFrame([({"at": item},) for item in [*safe, *doubtful]], "after map<string,string>")
    condition = has_ambiguous_unit(of)
    assert condition is not None

    actual = rows.withColumn("before", F.lit(None).cast("map<string,string>")).select(condition).collect()

    assert [row[0] for row in actual] == [False] * len(safe) + [True] * len(doubtful)


def test_a_dropped_column_does_not_block_a_new_one_and_comes_back_empty(spark: SparkSession, tmp_path: Path):
    target = Target("test", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))
    source = Source(table(id="integer", note="text"))
    sink, cache = DeltaCdc("shop", source, change_decoder), RunCache()

    def write(number: int, now: SourceTable, **texts: str) -> None:
        source.now = now
        rows = source.batches(spark, ("c", None, {"id": str(number), **texts}))
        sink.write(rows, Batch("shop", "q1", number, target, cache=cache))

    write(0, source.now, note="old")
    write(1, table(id="integer"))
    write(2, table(id="integer", extra="integer"), extra="2")
    rows = spark.read.format("delta").load(f"{tmp_path}/shop/orders")
    assert {(row.id, row.note, row.extra) for row in rows.collect()} == {
        (0, "old", None),
        (1, None, None),
        (2, None, 2),
    }

    # Without the new one the rows look as before: it was dropped, and that is asked for too.
    asked = source.asked
    write(4, table(id="integer"))
    assert source.asked == asked + 1

    # A column that is recreated is empty at the source, whatever a column of its name contained before.
    write(5, table(id="integer", note="text"), note="new")
    rows = spark.read.format("delta").load(f"{tmp_path}/shop/orders")
    assert {(row.id, row.note) for row in rows.collect()} == {(0, None), (1, None), (2, None), (4, None), (5, "new")}


# A space, a dot, quotes of all kinds, and what Spark takes for the name of a setting.
DAY_OF, WHO, NOTE = "day of.order", "it's `who`", 'a "${spark.app.name}", (note)'
ODD = SourceTable(
    "public",
    "orders",
    (SourceColumn(DAY_OF, "date", False), SourceColumn(WHO, "text", False), SourceColumn(NOTE, "text", True)),
    (DAY_OF, WHO),
    "postgres",
)
# Days since 1970: 31 December 999, 1 January 200, a day before the year 1 and one after the year 9999.
OLD, OLDER, OLDEST, FAR = "-354286", "-646479", "-735602", "3673000"


@pytest.mark.parametrize("stored_as", STORED_AS)
def test_names_and_values_that_mean_something_to_sql_are_names_and_values(
    spark: SparkSession, tmp_path: Path, stored_as: StoredAs
):
    target = Target("test", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))
    source = Source(ODD)
    sink, cache = DeltaCdc("shop", source, change_decoder, stored_as), RunCache()
    who, note, other = "${spark.master} `'\\\"", "it's ${env:HOME}", "${spark.app.name}"

    def reported(op: str, day: str, who: str, note: str | None = None) -> tuple[str, Texts | None, Texts | None]:
        row = {DAY_OF: day, WHO: who, NOTE: note}
        return (op, row, None) if op == "d" else (op, None, row)

    recorded = [reported("c", OLD, who, note), reported("c", OLDER, who, note), reported("c", OLD, other, other)]
    first = [*recorded, reported("c", FAR, who), reported("c", OLDEST, who, note)]
    # Old days only, by which Delta leaves files out; the last two are a row that moves, without its large value.
    second = [reported("u", OLDER, who, PLACEHOLDER), reported("u", OLD, other, note)]
    second += [reported("d", OLD, who), reported("c", OLD, "moved", PLACEHOLDER)]
    for number, batch in enumerate((first, second)):
        rows = source.batches(spark, *batch)
        move = F.when(F.col("offset") == 9, 8).otherwise(F.col("source.lsn"))
        rows = rows.withColumn("source", F.col("source").withField("lsn", move))
        sink.write(rows, Batch("shop", "q1", number, target, cache=cache))

    table = spark.read.format("delta").load(f"{tmp_path}/shop/orders")
    inside = "after." if isinstance(stored_as, ChangeLog) else ""
    values = [F.col(f"{inside}{quote_name(name)}") for name in (DAY_OF, WHO, NOTE)]
    actual = table.where("is_current") if isinstance(stored_as, History) else table
    rows = actual.select(F.unix_date(values[0]).cast("string"), *values[1:]).collect()
    if isinstance(stored_as, ChangeLog):
        assert len(rows) == 9
    else:
        expected = {(OLDER, who, note), (OLD, other, note), (OLD, "moved", note), (OLDEST, who, note), (FAR, who, None)}
        assert len(rows) == 5
        assert {tuple(row) for row in rows} == expected
