"""Envelopes into changes: ops, keys, positions, what is unavailable and what is unreadable."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql import functions as F

from debezium_records import Record, record, rows
from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.source_table import SourceColumn, SourceTable
from headrace.cdc.decode.envelope import PLACEHOLDER, change_decoder
from headrace.cdc.flows import CdcSettings, mirror
from headrace.errors import FlowError
from headrace.ingest.parse import valid_rows, validate

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.spark

SHOP = mirror(CdcSettings(Capture("shop", r"public\..*")))

ITEMS = SourceTable(
    "public",
    "items",
    (
        SourceColumn("id", "bigint", nullable=False),
        SourceColumn("price", "numeric(12,2)", nullable=True),
        SourceColumn("note", "text", nullable=True),
        SourceColumn("photo", "bytea", nullable=True),
        SourceColumn("tags", "text[]", nullable=True),
        SourceColumn("sizes", "integer[]", nullable=True),
    ),
    key=("id",),
    family="postgres",
)
PAIRS = SourceTable(
    "shop",
    "pairs",
    (SourceColumn("b", "int(11)", nullable=False), SourceColumn("a", "varchar(9)", nullable=False)),
    key=("a", "b"),
    family="mysql",
)
EMPTY = {"id": 1, "price": None, "note": None, "photo": None, "tags": None, "sizes": None}


def at(lsn: int = 1, **more: object) -> dict[str, object]:
    return {"ts_ms": 1, "lsn": lsn, "table": "items", "snapshot": "false", **more}


def change(op: str, after: object = None, before: object = None, source: object = None) -> dict[str, object]:
    return {"op": op, "before": before, "after": after, "source": source or at(), "ts_ms": 5, "transaction": None}


def place(op: str, lsn: int) -> str:
    return f"-{lsn:019d}" if op == "r" else f"{lsn:020d}"


def decoded(spark: SparkSession, *records: Record, table: SourceTable = ITEMS) -> list[Row]:
    return change_decoder(table)(rows(spark, records)).orderBy("_position", "_offset", F.desc("_op")).collect()


def test_each_op_has_its_key_and_its_row(spark: SparkSession) -> None:
    row = EMPTY | {"price": "1.50", "note": "x"}
    actual = decoded(
        spark,
        record(change("r", row, source=at(1)), {"id": 1}, 0),
        record(change("c", row | {"id": 2}, source=at(2)), {"id": 2}, 1),
        record(change("u", row | {"note": "y"}, source=at(3)), {"id": 1}, 2),
        record(change("d", None, {"id": 1}, source=at(4)), {"id": 1}, 3),
        record(change("t", source=at(5)), None, 4),
    )

    assert [item._op for item in actual] == ["r", "c", "u", "d", "t"]
    assert [item._key and item._key.id for item in actual] == [1, 2, 1, 1, None]
    assert [item._after and item._after.note for item in actual] == ["x", "x", "y", None, None]
    assert actual[0]._after.asDict() == EMPTY | {"price": Decimal("1.50"), "note": "x"}
    assert [(item._unavailable, item._unreadable) for item in actual] == [([], [])] * 5


def test_the_last_row_of_a_snapshot_marks_older_rows_as_deleted(spark: SparkSession) -> None:
    reported = [
        record(change("r", EMPTY | {"id": number}, source=at(4) | {"snapshot": mark}), {"id": number}, number)
        for number, mark in enumerate(("first", "true", "last_in_data_collection"))
    ]
    actual = change_decoder(ITEMS, cleared=True)(rows(spark, reported)).orderBy("_offset", F.desc("_op")).collect()

    assert [(item._op, item._key and item._key.id) for item in actual] == [("r", 0), ("r", 1), ("t", None), ("r", 2)]
    # It sorts between this snapshot and any earlier one, wherever its row comes among the others.
    place, before = f"-{4:019}", f"-{3:019}"
    assert [item._position for item in actual] == [place, place, before, place]
    assert [item._unreadable for item in actual] == [[]] * 4


def test_a_key_comes_from_the_message_key_and_else_from_the_row(spark: SparkSession) -> None:
    row = EMPTY | {"id": 7}
    actual = decoded(
        spark,
        record(change("c", row, source=at(1)), {"id": 7}),
        record(change("c", row, source=at(2))),
        record(change("d", None, {"id": 7}, source=at(3)), {"id": 7}),
        record(change("d", None, {"id": 7}, source=at(4))),
    )

    assert [item._key.id for item in actual] == [7, 7, 7, 7]
    assert [item._unreadable for item in actual] == [[]] * 4


def test_a_change_without_a_key_is_unreadable(spark: SparkSession) -> None:
    (actual,) = decoded(spark, record(change("d", None, None)))

    assert actual._unreadable == ["id"]


def test_a_key_of_several_columns_has_the_order_of_the_primary_key(spark: SparkSession) -> None:
    source = {"ts_ms": 1, "file": "binlog.000007", "pos": 12, "row": 3}
    (actual,) = decoded(spark, record(change("c", {"b": 1, "a": "x"}, source=source), {"b": 1, "a": "x"}), table=PAIRS)

    assert actual._key.asDict() == {"a": "x", "b": 1}
    assert list(actual._key.asDict()) == ["a", "b"]
    assert list(actual._after.asDict()) == ["b", "a"]


def test_a_table_without_a_primary_key_is_refused(spark: SparkSession) -> None:
    bare = SourceTable("public", "bare", (SourceColumn("a", "integer", nullable=True),), (), "postgres")

    with pytest.raises(FlowError, match=r"public\.bare has no primary key") as refused:
        change_decoder(bare)(rows(spark, []))

    assert refused.value.code == "HR-245"


def test_an_update_that_changes_the_key_is_a_delete_and_an_insert(spark: SparkSession) -> None:
    old, new = EMPTY | {"id": 1, "note": "x"}, EMPTY | {"id": 2, "note": "x"}
    missing, come = decoded(spark, record(change("u", new, old), {"id": 2}, 4))

    assert (missing._op, missing._key.id, missing._after) == ("d", 1, None)
    assert (come._op, come._key.id, come._after.note) == ("c", 2, "x")
    assert missing._unreadable == come._unreadable == []


def test_an_update_of_the_same_key_stays_one(spark: SparkSession) -> None:
    (actual,) = decoded(spark, record(change("u", EMPTY | {"note": "y"}, EMPTY), {"id": 1}))

    assert (actual._op, actual._key.id, actual._after.note) == ("u", 1, "y")


def test_messages_of_the_log_are_left_out(spark: SparkSession) -> None:
    input_rows = rows(spark, [record(change("m"), {"prefix": "note"}), record(change("c", EMPTY), {"id": 1}, 1)])

    assert [row._op for row in change_decoder(ITEMS)(input_rows).collect()] == ["c"]


def test_positions_of_postgres_sort_as_numbers(spark: SparkSession) -> None:
    lsns = [9, 10, 2**63 - 1, 100]
    actual = decoded(spark, *(record(change("c", EMPTY, source=at(lsn)), {"id": 1}, n) for n, lsn in enumerate(lsns)))

    assert [item._position for item in actual] == [f"{lsn:020d}" for lsn in sorted(lsns)]


def test_rows_of_a_snapshot_come_before_changes_at_lower_log_positions(spark: SparkSession) -> None:
    actual = decoded(
        spark,
        record(change("r", EMPTY, source=at(100)), {"id": 1}, 0),
        record(change("r", EMPTY, source=at(90)), {"id": 1}, 1),
        record(change("u", EMPTY, source=at(50)), {"id": 1}, 2),
    )

    assert [item._offset for item in actual] == [1, 0, 2]


def test_a_transaction_of_several_changes_has_one_name(spark: SparkSession) -> None:
    first, second = (
        change("c", EMPTY, source=at(lsn, txId=859)) | {"transaction": {"id": f"859:{lsn}", "total_order": lsn}}
        for lsn in (1, 2)
    )
    actual = decoded(spark, record(first, {"id": 1}), record(second, {"id": 2}))

    assert [item._transaction for item in actual] == ["859", "859"]


def test_positions_of_a_binlog_sort_by_file_place_and_row(spark: SparkSession) -> None:
    places = [("log.000010", 4, 0), ("log.000009", 900, 1), ("log.000009", 900, 0), ("log.000009", 1000, 0)]
    sources = [{"ts_ms": 1, "file": file, "pos": pos, "row": row} for file, pos, row in places]
    records = [record(change("c", {"a": "x", "b": 1}, source=item), None, n) for n, item in enumerate(sources)]

    actual = decoded(spark, *records, table=PAIRS)

    assert [item._offset for item in actual] == [2, 1, 3, 0]
    assert actual[0]._position == "0000000009" + "00000000000000000900" + "0000000000"


def test_a_change_without_a_position_is_unreadable(spark: SparkSession) -> None:
    (actual,) = decoded(spark, record(change("c", EMPTY, source={"ts_ms": 1}), {"id": 1}))

    assert actual._unreadable == ["_position"]


def test_an_op_that_nobody_knows_is_unreadable(spark: SparkSession) -> None:
    (actual,) = decoded(spark, record(change("x", EMPTY), {"id": 1}))

    assert actual._unreadable == ["_op"]


def test_the_commit_time_has_microseconds_if_the_source_sends_them(spark: SparkSession) -> None:
    actual = change_decoder(ITEMS)(
        rows(
            spark,
            [
                record(
                    change("c", EMPTY, source=at(1, ts_ms=1_700_000_000_123, ts_us=1_700_000_000_123_456)), {"id": 1}
                ),
                record(change("c", EMPTY, source=at(2, ts_ms=1_700_000_000_123)), {"id": 1}),
            ],
        )
    )

    texts = actual.orderBy("_position").select(F.col("_commit_time").cast("string")).collect()
    moment = datetime.fromtimestamp(1_700_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    assert [text[0] for text in texts] == [f"{moment}.123456", f"{moment}.123"]


def test_a_placeholder_is_unavailable_in_each_of_its_forms(spark: SparkSession) -> None:
    row = {
        "id": 1,
        "price": PLACEHOLDER,
        "note": PLACEHOLDER,
        "photo": PLACEHOLDER.encode().hex(),
        "tags": [PLACEHOLDER],
        "sizes": list(PLACEHOLDER.encode()),
    }
    (actual,) = decoded(spark, record(change("u", row), {"id": 1}))

    assert actual._unavailable == ["price", "note", "photo", "tags", "sizes"]
    assert actual._unreadable == []
    assert actual._after.asDict() == EMPTY


def test_a_column_that_an_update_lacks_retains_its_old_value(spark: SparkSession) -> None:
    row = {name: value for name, value in EMPTY.items() if name != "note"}
    update, insert = decoded(
        spark, record(change("u", row, source=at(1)), {"id": 1}), record(change("c", row, source=at(2)), {"id": 1})
    )

    assert update._unavailable == ["note"]
    assert insert._unavailable == []


def test_a_null_is_a_value(spark: SparkSession) -> None:
    (actual,) = decoded(spark, record(change("u", EMPTY), {"id": 1}))

    assert (actual._unavailable, actual._unreadable, actual._after.note) == ([], [], None)


UNFIT: list[tuple[str, object]] = [
    ("id", "x"),
    ("price", "1.239"),
    ("price", "12345678901.00"),
    ("price", "NAN"),
    ("photo", "0f0"),
    ("tags", "text"),
    ("sizes", [1, "x"]),
    ("sizes", [1, 2**31]),
]


def test_a_text_that_does_not_fit_its_type_is_named_and_never_a_silent_null(spark: SparkSession) -> None:
    actual = decoded(
        spark,
        *(
            record(change("c", EMPTY | {column: value}, source=at(n)), {"id": 1}, n)
            for n, (column, value) in enumerate(UNFIT)
        ),
    )

    assert [item._unreadable for item in actual] == [[column] for column, _ in UNFIT]


TEXTS = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)
HISTORY = st.lists(st.tuples(st.sampled_from("cudr"), st.integers(0, 5), TEXTS | st.none()), min_size=1, max_size=12)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=HISTORY, data=st.data())
def test_any_order_and_doubling_of_records_sorts_to_the_same_changes(
    spark: SparkSession, history: list[tuple[str, int, str | None]], data: st.DataObject
) -> None:
    records = []
    for offset, (op, number, note) in enumerate(history):
        row = EMPTY | {"id": number, "note": note}
        # Two changes may have one position of the log: the offset distinguishes them.
        source = at(100 + offset // 2)
        value = change(op, None, {"id": number}, source) if op == "d" else change(op, row, None, source)
        records.append(record(value, {"id": number}, offset))
    shuffled = data.draw(st.permutations(records + records[: len(records) // 2]))

    frame = change_decoder(ITEMS)(rows(spark, shuffled))
    actual = frame.dropDuplicates(["_position", "_offset"]).orderBy("_position", "_offset").collect()

    expected = [
        (op, place(op, 100 + n // 2), n, number, None if op == "d" or note == PLACEHOLDER else note)
        for n, (op, number, note) in enumerate(history)
    ]
    expected.sort(key=lambda item: item[1:3])
    assert [
        (item._op, item._position, item._offset, item._key.id, item._after and item._after.note) for item in actual
    ] == expected


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source_texts=st.lists(TEXTS | st.none(), min_size=1, max_size=20))
def test_texts_and_lists_of_texts_arrive_as_they_were_sent(spark: SparkSession, source_texts: list[str | None]) -> None:
    records = [
        record(change("c", EMPTY | {"note": text, "tags": [text, "x"]}, source=at(n)), {"id": 1}, n)
        for n, text in enumerate(source_texts)
    ]

    actual = decoded(spark, *records)

    assert [(item._after.note, item._after.tags) for item in actual] == [(text, [text, "x"]) for text in source_texts]
    assert json.dumps([item._unreadable for item in actual]) == json.dumps([[] for _ in source_texts])


def test_a_change_of_any_size_is_read_and_none_is_set_aside(spark: SparkSession):
    (input_,) = SHOP.named_inputs.values()
    head, tail = '{"op":"c","before":null,"after":{"id":1,"note":"', '"},"source":{"lsn":1}}'
    # More than Spark reads by default, and than was once the bound.
    note = F.repeat(F.lit("x"), 21_000_000)
    raw = spark.range(1).select(
        F.lit("shop.public.items").alias("topic"),
        F.lit(0).alias("partition"),
        F.lit(7).cast("long").alias("offset"),
        F.lit(bytearray(b'{"id":1}')).alias("key"),
        F.concat(F.lit(head), note, F.lit(tail)).cast("binary").alias("value"),
        F.current_timestamp().alias("timestamp"),
    )
    read = valid_rows(validate(raw, input_), input_).select("offset", F.length(F.col("after")["note"]))
    assert [tuple(row) for row in read.collect()] == [(7, 21_000_000)]
