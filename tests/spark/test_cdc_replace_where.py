"""Rows of a mirror replaced by key, where every change is newer than the table, and merged where one is not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delta.tables import DeltaTable
from pyspark.sql import types as T

from cdc_changes import BEGAN, frame, into, row
from headrace.cdc.apply import replace_where
from headrace.cdc.apply.mirror import Mirror
from headrace.cdc.apply.replace_where import key_condition
from headrace.flow.run_cache import RunCache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def stored_rows(spark: SparkSession, folder: Path) -> set[tuple[object, ...]]:
    rows = spark.read.format("delta").load(str(folder / "orders"))
    return {tuple(row) for row in rows.select("id", "pieces", "note").collect()}


def done_by(spark: SparkSession, folder: Path) -> str:
    last = DeltaTable.forPath(spark, str(folder / "orders")).history(1).first()
    assert last is not None
    return "REPLACE" if "predicate" in last.operationParameters and last.operation == "WRITE" else str(last.operation)


def test_rows_are_replaced_unless_a_change_is_older_or_needs_its_old_row_and_merged_where_most_are_late(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = RunCache()

    def apply(number: int, *changes: object) -> str:
        Mirror().apply(frame(spark, list(changes), 100 * number), into(tmp_path, number, cache=cache))  # type: ignore[arg-type]
        return done_by(spark, tmp_path)

    assert apply(0, *(row("c", key, key, key, "first") for key in range(1, 8))) == "WRITE"
    changes = [row("u", 10, 1, 10), row("u", 11, 1, 11), row("d", 12, 2), row("c", 13, 20, 13), row("d", 14, 99)]
    assert apply(1, *changes) == "REPLACE"
    now = {(1, 11, None), (20, 13, None), *((key, key, "first") for key in range(3, 8))}
    assert stored_rows(spark, tmp_path) == now

    # The same batch again, as after a crash, and one with a change that is older than a row and than a tombstone.
    apply(1, *changes)
    assert stored_rows(spark, tmp_path) == now
    late = [row("u", 9, 1, 9), row("u", 11, 2, 9), row("d", 13, 7), row("u", 15, 3, 15)]
    assert apply(2, *late) == "REPLACE"
    # The third one is earlier in the log than the last batch's end, and newer than its row all the same.
    now = (now - {(3, 3, "first"), (7, 7, "first")}) | {(3, 15, None)}
    assert stored_rows(spark, tmp_path) == now
    # A topic that is read again, most of which is late.
    with monkeypatch.context() as few:
        few.setattr("headrace.cdc.apply.replace_where._MOST_OVERLAPPING", 2)
        assert apply(21, *late) == "MERGE"
    assert stored_rows(spark, tmp_path) == now

    # A large value that the log left out is in the table only.
    assert apply(22, row("u", 16, 4, 16, None, "note")) == "MERGE"
    now = (now - {(4, 4, "first")}) | {(4, 16, "first")}
    assert stored_rows(spark, tmp_path) == now

    # Another's commit, by which a row is newer than the changes that are on their way.
    orders = DeltaTable.forPath(spark, str(tmp_path / "orders"))
    orders.update("id = 5", {"pieces": "50", "_headrace_position": f"'{30:020d}'"})  # type: ignore[dict-item]
    assert apply(23, row("u", 20, 5, 20), row("u", 21, 6, 21)) == "REPLACE"
    now = (now - {(5, 5, "first"), (6, 6, "first")}) | {(5, 50, "first"), (6, 21, None)}
    assert stored_rows(spark, tmp_path) == now
    assert apply(24, row("u", 31, 5, 31), row("d", 32, 6)) == "REPLACE"
    assert stored_rows(spark, tmp_path) == (now - {(5, 50, "first"), (6, 21, None)}) | {(5, 31, None)}


def test_late_changes_are_compared_with_those_of_the_batch_before_and_the_table_is_asked_for_earlier_ones_only(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = RunCache()

    def apply(number: int, *changes: object) -> None:
        Mirror().apply(frame(spark, list(changes), 100 * number), into(tmp_path, number, cache=cache))  # type: ignore[arg-type]
        assert number == 0 or done_by(spark, tmp_path) == "REPLACE"

    asked = list[str]()
    ask = replace_where._newest_positions

    def asking(session: SparkSession, location: str, key: T.StructType, named: str) -> dict[replace_where.Key, str]:
        asked.append(named)
        return ask(session, location, key, named)

    monkeypatch.setattr(replace_where, "_newest_positions", asking)
    apply(0, *(row("c", key, key, key, "first") for key in range(1, 8)))
    apply(1, row("u", 11, 1, 11), row("d", 14, 2), row("u", 20, 3, 20))
    # Between the changes of the batch before: older than its row, older than its tombstone, newer than either.
    apply(2, row("u", 10, 1, 10), row("u", 13, 2, 13), row("u", 12, 4, 12), row("u", 21, 5, 21))
    now = {(1, 11, None), (3, 20, None), (4, 12, None), (5, 21, None), (6, 6, "first"), (7, 7, "first")}
    assert (stored_rows(spark, tmp_path), asked) == (now, [])

    # Earlier than all of that batch: the rows and the tombstones are asked, for this key alone.
    apply(3, row("u", 13, 2, 13), row("u", 30, 6, 30))
    assert stored_rows(spark, tmp_path) == (now - {(6, 6, "first")}) | {(6, 30, None)}
    assert asked == ["`id` IN (2L)"] * 2


def test_keys_of_several_columns_and_of_texts_are_quoted_whatever_they_contain(spark: SparkSession, tmp_path: Path):
    schema = """
    _op string, _position string, _partition int, _offset bigint, _commit_time timestamp, _transaction string,
    _key struct<`a ``b`: string, n: int>, _after struct<`a ``b`: string, n: int, value: int>, _unavailable array<string>
    """

    cache = RunCache()

    def apply(number: int, *changes: tuple[str, str, int, int]) -> str:
        rows = [
            (op, f"{at:020d}", 0, at, BEGAN, None, (text, n), None if op == "d" else (text, n, at), [])
            for op, text, n, at in changes
        ]
        Mirror().apply(spark.createDataFrame(rows, schema).coalesce(1), into(tmp_path, number, cache=cache))
        return done_by(spark, tmp_path)

    texts = ["it's", "back\\slash", 'quo"te', "é\n", "%_", ""]
    apply(0, *(("c", item, n, n) for n, item in enumerate(texts)), ("c", "${user}", 0, 9))
    assert apply(1, *(("u", item, n, 100 + n) for n, item in enumerate(texts[:3])), ("d", "é\n", 3, 110)) == "REPLACE"
    # A text that SQL would read as the name of a setting, were it not quoted.
    assert apply(2, ("u", "${user}", 0, 200)) == "REPLACE"

    rows = spark.read.format("delta").load(str(tmp_path / "orders")).select("`a ``b`", "n", "value").collect()
    assert {tuple(row) for row in rows} == {
        *((item, n, 100 + n) for n, item in enumerate(texts[:3])),
        *((item, n, n) for n, item in enumerate(texts) if n > 3),
        ("${user}", 0, 200),
    }


def test_a_condition_names_the_keys_and_the_ranges_that_leave_most_others_out():
    first = T.StructType([T.StructField("id", T.IntegerType())])
    assert key_condition(first, [(7,), (5,), (6,)]) == "`id` IN (7, 5, 6)"
    assert key_condition(first, [(1,), (3,), (5,)]) == "`id` IN (1, 3, 5)"
    few = "(`id` BETWEEN 5 AND 5 OR `id` BETWEEN 7 AND 7 OR `id` BETWEEN 100 AND 102)"
    assert key_condition(first, [(7,), (100,), (101,), (102,), (5,)]) == f"{few} AND `id` IN (7, 100, 101, 102, 5)"

    two = T.StructType([T.StructField("id", T.LongType()), T.StructField("no", T.StringType())])
    named = "(`id`, `no`) IN ((2L, 'b'), (1L, 'a'))"
    assert key_condition(two, [(2, "b"), (1, "a")]) == f"`id` IN (1L, 2L) AND {named}"
    ranges = "(`id` BETWEEN 2L AND 2L OR `id` BETWEEN 900L AND 900L)"
    assert key_condition(two, [(2, "b"), (900, "c")]) == f"{ranges} AND (`id`, `no`) IN ((2L, 'b'), (900L, 'c'))"
