"""A mirror compared with a real database, row for row, and repaired."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from debezium_records import record, rows
from headrace.cdc.apply.table import POSITION
from headrace.cdc.capture.catalogue import position_now, read_tables
from headrace.cdc.capture.declaration import TableSelection
from headrace.cdc.capture.source_table import SourceTable
from headrace.cdc.decode.envelope import change_decoder
from headrace.cdc.reconcile.compare import compare, repair
from headrace.clients.postgres import connect
from headrace.errors import DataError
from headrace.flow.target import Database

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.stack]

# Type, what is inserted by SQL, and how the connector writes it, for one full row; a second one holds the edges.
COLUMNS: dict[str, tuple[str, str, object, str, object]] = {
    "b": ("boolean", "true", True, "false", False),
    "n": ("numeric(12,2)", "1.50", "1.50", "-0.01", "-0.01"),
    "free": ("numeric", "3.14000", "3.14000", "'NaN'", "NAN"),
    "money": ("money", "1234.56", "1234.56", "-0.5", "-0.50"),
    "r": ("real", "0.1", 0.1, "'NaN'", "NaN"),
    "d": ("double precision", "1e22", 1e22, "'-Infinity'", "-Infinity"),
    "day": ("date", "'2024-02-29'", 19782, "'infinity'", -2147472692),
    "ts": ("timestamp", "'2024-02-29 12:34:56.123456'", 1709210096123456, "'-infinity'", -9223372036832400000),
    "ts3": ("timestamp(3)", "'1969-12-31 23:59:59.999'", -1, "'12024-01-02 03:04:05.678'", 317273684645678),
    "tz": (
        *("timestamptz", "'2024-02-29 12:34:56.123456+02'", "2024-02-29T10:34:56.123456Z"),
        *("'0044-03-15 12:00:00+00 BC'", "-0043-03-15T12:00:00.000000Z"),
    ),
    "clock": ("time", "'12:34:56.5'", 45296500000, "'24:00:00'", 86400000000),
    "zoned": ("timetz", "'12:34:56.5+05:30'", "07:04:56.5Z", "'00:00:00-12'", "12:00:00Z"),
    "span": (
        *("interval", "'1 year 2 mons 3 days 04:05:06.789012'", "P1Y2M3DT4H5M6.789012S"),
        *("'-1 year -2 days +00:00:00.000001'", "P-1Y0M-2DT0H0M0.000001S"),
    ),
    "bytes": ("bytea", r"'\x00ff'", "00ff", "''", ""),
    "id2": ("uuid", "'A0EEBC99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "null", None),
    "doc": ("jsonb", """'{"b": 1.10, "a": null}'""", '{"a": null, "b": 1.10}', "'null'", "null"),
    "code": ("char(4)", "'ab'", "ab  ", "''", "    "),
    "ip": ("inet", "'10.1.1.1'", "10.1.1.1", "'::1/64'", "::1/64"),
    "bits": ("bit(5)", "B'10101'", "FQ==", "B'00000'", ""),
    "flag": ("bit(1)", "B'1'", True, "B'0'", False),
    "words": ("text[]", """array['a', null, 'q "x" , {y}']""", ["a", None, 'q "x" , {y}'], "'{}'", []),
    "nums": ("integer[]", "'{1,null}'", [1, None], "null", None),
}
SPOT = "p'oint"


def create_table(postgres: Database, name: str) -> SourceTable:
    """Make a table of three rows at the source: full, edges, and nothing but nulls."""
    typed = ", ".join(f"{column} {kind[0]}" for column, kind in COLUMNS.items())
    with connect(postgres) as connection:
        connection.execute(f'CREATE TABLE {name} (id bigint PRIMARY KEY, {typed}, "{SPOT}" point)')
        for key, place in ((1, 1), (2, 3)):
            values = ", ".join(kind[place] for kind in COLUMNS.values())
            connection.execute(f"INSERT INTO {name} VALUES ({key}, {values}, '(1,2)')")  # noqa: S608
        connection.execute(f"INSERT INTO {name} (id) VALUES (3)")  # noqa: S608
    (table,) = read_tables(postgres, TableSelection((f"public.{name}",)))
    return table


def mirrored(spark: SparkSession, table: SourceTable, path: Path) -> str:
    """Make the mirror out of changes as the connector writes them."""
    reported = []
    for key, place in ((1, 2), (2, 4), (3, None)):
        after = {"id": key, SPOT: None}
        after |= {name: None if place is None else kind[place] for name, kind in COLUMNS.items()}
        source = {"lsn": 100 + key, "ts_ms": 1}
        reported.append(record({"op": "c", "before": None, "after": after, "source": source}, {"id": key}, key))
    frame = change_decoder(table)(rows(spark, reported))
    frame.selectExpr("_after.*", f"_position AS {POSITION}").coalesce(1).write.format("delta").save(str(path))
    return str(path)


def test_a_mirror_with_the_rows_of_its_source_is_equal(spark: SparkSession, postgres: Database, tmp_path: Path) -> None:
    table = create_table(postgres, "reconcile_equal")
    before = position_now(postgres)

    actual = compare(spark, postgres, table, mirrored(spark, table, tmp_path / "t"))

    assert actual.differences == ()
    assert (actual.equal, actual.rows, actual.missing_columns, actual.uncompared_columns) == (True, 3, (), (SPOT,))
    assert before <= actual.position <= position_now(postgres)


def test_rows_that_differ_are_named_with_their_columns_and_repaired(
    spark: SparkSession, postgres: Database, tmp_path: Path
) -> None:
    table = create_table(postgres, "reconcile_repair")
    location = mirrored(spark, table, tmp_path / "t")
    mirror = f"delta.`{location}`"
    spark.sql(f"DELETE FROM {mirror} WHERE id = 1")  # noqa: S608
    spark.sql(f"UPDATE {mirror} SET n = 7, words = array('x') WHERE id = 2")  # noqa: S608
    spark.sql(f"INSERT INTO {mirror} (id, {POSITION}) VALUES (9, '{109:020d}')")  # noqa: S608

    actual = compare(spark, postgres, table, location)

    assert [(difference.key, difference.kind, difference.columns) for difference in actual.differences] == [
        ({"id": "1"}, "missing", ()),
        ({"id": "2"}, "different", ("n", "words")),
        ({"id": "9"}, "extra", ()),
    ]

    repair(spark, actual)
    assert compare(spark, postgres, table, location).equal
    positions = spark.read.format("delta").load(location).orderBy("id").select("id", POSITION).collect()
    # The row that was missing sorts before every change; the others are unchanged.
    assert [tuple(item) for item in positions] == [
        (1, f"-{actual.position[1:]}"),
        (2, f"{102:020d}"),
        (3, f"{103:020d}"),
    ]

    # A second attempt at the same repair is passed over.
    spark.sql(f"DELETE FROM {mirror} WHERE id = 1")  # noqa: S608
    repair(spark, actual)
    assert [difference.kind for difference in compare(spark, postgres, table, location).differences] == ["missing"]


def test_rows_on_their_way_are_waited_for(spark: SparkSession, postgres: Database, tmp_path: Path) -> None:
    table = create_table(postgres, "reconcile_wait")
    location = mirrored(spark, table, tmp_path / "t")
    with connect(postgres) as connection:
        connection.execute("UPDATE reconcile_wait SET n = 8 WHERE id = 3")
    arriving = threading.Timer(1, lambda: spark.sql(f"UPDATE delta.`{location}` SET n = 8 WHERE id = 3"))  # noqa: S608

    assert [difference.columns for difference in compare(spark, postgres, table, location).differences] == [("n",)]
    arriving.start()
    actual = compare(spark, postgres, table, location, patience=60)

    arriving.join()
    assert actual.equal


def test_a_column_that_the_mirror_lacks_is_reported(spark: SparkSession, postgres: Database, tmp_path: Path) -> None:
    table = create_table(postgres, "reconcile_lacking")
    location = mirrored(spark, table, tmp_path / "t")
    with connect(postgres) as connection:
        connection.execute("ALTER TABLE reconcile_lacking ADD COLUMN added integer DEFAULT 5")
    (table,) = read_tables(postgres, TableSelection(("public.reconcile_lacking",)))

    actual = compare(spark, postgres, table, location)

    assert (actual.equal, actual.missing_columns, actual.differences) == (False, ("added",), ())


def test_a_mirror_that_is_not_there_is_refused(spark: SparkSession, postgres: Database, tmp_path: Path) -> None:
    table = create_table(postgres, "reconcile_nowhere")

    with pytest.raises(DataError) as refused:
        compare(spark, postgres, table, str(tmp_path / "nowhere"))

    assert refused.value.code == "HR-526"
