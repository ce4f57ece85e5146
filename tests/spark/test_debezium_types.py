"""Every type, value by value: what was inserted by SQL against what is decoded from records of the real connectors."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DateType, StructField, TimestampNTZType, TimestampType

from debezium_records import record, recorded, rows
from headrace.cdc.capture.source_table import Family, SourceColumn, SourceTable
from headrace.cdc.decode.envelope import PLACEHOLDER, change_decoder
from headrace.errors import FlowError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

NAN = "NaN"
LAST_DAY, FIRST_DAY = "+5881580-07-11", "-5877641-06-23"
LAST, FIRST = "+294247-01-10 04:00:54.775807", "-290308-12-21 19:59:05.224192"

# Column, type as the catalogue writes it, and the value in the full row. Times are texts, so that those outside
# Python's calendar can be compared too.
POSTGRES: list[tuple[str, str, object]] = [
    ("b", "boolean", True),
    ("i2", "smallint", -32768),
    ("i4", "integer", 2147483647),
    ("i8", "bigint", 9223372036854775807),
    ("r", "real", 3.4028234663852886e38),
    ("d", "double precision", 0.1),
    ("n122", "numeric(12,2)", Decimal("1234567890.12")),
    ("n38", "numeric(38,10)", Decimal("1234567890123456789012345678.0123456789")),
    ("nfree", "numeric", "123456789012345678901234567890.000100"),
    ("m", "money", Decimal("1234.56")),
    ("t", "text", 'zażółć "quoted" \\ \n line \U0001f600'),
    ("vc", "character varying(20)", "x y"),
    ("ch", "character(5)", "ab   "),
    ("cit", "text", ""),
    ("m2", "enum", "it's"),
    ("ms", "enum[]", ["sad", "it's"]),
    ("dt", "date", "2024-02-29"),
    ("tm", "time without time zone", "23:59:59.123456"),
    ("tm3", "time(3) without time zone", "00:00:00.001000"),
    ("tmtz", "time with time zone", "07:04:56.789012Z"),
    ("ts", "timestamp without time zone", "2024-02-29 23:59:59.123456"),
    ("ts3", "timestamp(3) without time zone", "2024-02-29 23:59:59.123"),
    ("tstz", "timestamp with time zone", "2024-02-29 21:59:59.123456"),
    ("tstz0", "timestamp(0) with time zone", "2024-02-29 21:59:59"),
    ("iv", "interval", "P1Y2M3DT4H5M6.789012S"),
    ("u", "uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("j", "json", '{"b": 1, "a": [1.10, null], "b": 2}'),
    ("jb", "jsonb", '{"a": [1.10, null, 12345678901234567890.123], "b": 1}'),
    ("by", "bytea", bytes.fromhex("00deadbeefff")),
    ("bt", "bit(1)", True),
    ("bt5", "bit(5)", "10101"),
    ("ip", "inet", "192.168.1.5/24"),
    ("cd", "cidr", "10.0.0.0/8"),
    ("mac", "macaddr", "08:00:2b:01:02:03"),
    ("r4", "int4range", "[1,10)"),
    ("nr", "numrange", "(1.5,2.5]"),
    ("tsr", "tsrange", '["2020-01-01 00:00:00","2021-01-01 00:00:00")'),
    ("tzr", "tstzrange", '["2020-01-01 00:00:00+00",)'),
    ("dr", "daterange", "[2020-01-01,2020-02-01)"),
    ("ai", "integer[]", [1, -2, None, 3]),
    ("al", "bigint[]", [9223372036854775807]),
    ("at", "text[]", ["a", "NULL", None, 'with "quote" , comma', ""]),
    ("an", "numeric(10,3)[]", [Decimal("1.500"), None, Decimal("-0.001")]),
    ("ab", "boolean[]", [True, False, None]),
    ("ad", "date[]", ["2024-02-29", LAST_DAY]),
    ("ats", "timestamp without time zone[]", ["2024-02-29 01:02:03.000004"]),
    ("atz", "timestamp with time zone[]", ["2024-02-29 01:02:03.000004", LAST]),
    ("au", "uuid[]", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    ("ar", "double precision[]", [0.1, NAN, float("inf")]),
    ("aby", "bytea[]", [b"\x00\xff"]),
    ("aj", "jsonb[]", ['{"a": 1}']),
    ("tsv", "tsvector", "'a':1 'cat':3 'fat':2"),
    ("o", "oid", 4294967295),
]
TOASTED = {
    "big": "text",
    "bigby": "bytea",
    "bigj": "jsonb",
    "bigai": "integer[]",
    "bigat": "text[]",
    "bigu": "uuid[]",
    "bign": "numeric",
}

MARIADB: list[tuple[str, str, object]] = [
    ("b", "tinyint(1)", 1),
    ("ti", "tinyint(4)", -128),
    ("tu", "tinyint(3) unsigned", 255),
    ("si", "smallint(6)", -32768),
    ("mi", "mediumint(9)", -8388608),
    ("mu", "mediumint(8) unsigned", 16777215),
    ("i", "int(11)", 2147483647),
    ("iu", "int(10) unsigned", 4294967295),
    ("bi", "bigint(20)", 9223372036854775807),
    ("bu", "bigint(20) unsigned", Decimal("18446744073709551615")),
    ("zf", "int(8) unsigned zerofill", 42),
    ("f", "float", 1.100000023841858),
    ("d", "double", 0.1),
    ("dc", "decimal(12,2)", Decimal("1234567890.12")),
    ("dcu", "decimal(38,10) unsigned", Decimal("1234567890123456789012345678.0123456789")),
    ("dc0", "decimal(20,0)", Decimal("99999999999999999999")),
    ("bt", "bit(1)", True),
    ("bt5", "bit(5)", "10101"),
    ("bt64", "bit(64)", "1" * 64),
    ("ch", "char(5)", "ab"),
    ("vc", "varchar(40)", 'x "y" \\ zażółć \U0001f600'),
    ("tx", "text", "text"),
    ("lt", "longtext", "long"),
    ("bin", "binary(4)", b"\x00\xff\x00\x00"),
    ("vb", "varbinary(20)", bytes.fromhex("00deadbeef")),
    ("bl", "blob", b"\x00\xff\x10"),
    ("e", "enum('sad','ok','it''s, x')", "it's, x"),
    ("s", "set('a','b','c')", "a,c"),
    ("dt", "date", "2024-02-29"),
    ("tm", "time", "-838:59:59.000000"),
    ("tm3", "time(3)", "23:59:59.123000"),
    ("tm6", "time(6)", "838:59:59.123456"),
    ("dtm", "datetime", "2024-02-29 23:59:59"),
    ("dtm3", "datetime(3)", "2024-02-29 23:59:59.123"),
    ("dtm6", "datetime(6)", "2024-02-29 23:59:59.123456"),
    ("ts", "timestamp", "2024-02-29 23:59:59"),
    ("ts6", "timestamp(6)", "2024-02-29 23:59:59.123456"),
    ("y", "year(4)", 2024),
    ("j", "longtext", '{"b": 1, "a": [1.10, null, 12345678901234567890.123]}'),
    ("u", "uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("gen", "bigint(20)", None),
    ("lat", "varchar(20)", "é"),
    ("pt", "point", '{"x":1.5,"y":-2.25,"wkb":"AQEAAAAAAAAAAAD4PwAAAAAAAALA","srid":null}'),
]


def table(family: Family, columns: list[tuple[str, str, object]]) -> SourceTable:
    existing = tuple(SourceColumn(name, kind, nullable=True) for name, kind, _ in columns)
    # Arrays that do not arrive marked are refused otherwise; no record here leaves one of them out.
    return SourceTable("s", "everything", (SourceColumn("id", "bigint", False), *existing), ("id",), family, "full")


def as_text(value: Column, kind: DataType) -> Column:
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda item: as_text(item, kind.elementType))
    return value.cast("string") if isinstance(kind, DateType | TimestampType | TimestampNTZType) else value


def shown(frame: DataFrame, key: int, op: str) -> dict[str, object]:
    """The row of one change, times as texts."""
    after: list[StructField] = frame.schema["_after"].dataType.fields  # type: ignore[attr-defined]
    texts = [as_text(F.col(f"_after.`{item.name}`"), item.dataType).alias(item.name) for item in after]
    (row,) = frame.where((F.col("_key.id") == key) & (F.col("_op") == op)).select("_unreadable", *texts).collect()
    return {name: plain(value) for name, value in row.asDict().items()}


def plain(value: object) -> object:
    """NaN as a word, since it differs from itself; bytes as bytes."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, bytearray):
        return bytes(value)
    return NAN if isinstance(value, float) and value != value else value  # noqa: PLR0124


@pytest.fixture(scope="module")
def postgres_changes(spark: SparkSession) -> DataFrame:
    return change_decoder(table("postgres", POSTGRES))(rows(spark, recorded("postgres"))).cache()


@pytest.fixture(scope="module")
def mariadb_changes(spark: SparkSession) -> DataFrame:
    return change_decoder(table("mysql", MARIADB))(rows(spark, recorded("mariadb"))).cache()


@pytest.mark.parametrize(("key", "op"), [(1, "r"), (11, "c")])
def test_every_type_of_postgres_arrives_as_it_was_inserted(postgres_changes: DataFrame, key: int, op: str) -> None:
    expected = {name: value for name, _, value in POSTGRES}

    assert shown(postgres_changes, key, op) == expected | {"id": key, "_unreadable": []}


@pytest.mark.parametrize(("key", "op"), [(1, "r"), (11, "c")])
def test_every_type_of_mariadb_arrives_as_it_was_inserted(mariadb_changes: DataFrame, key: int, op: str) -> None:
    expected = {name: value for name, _, value in MARIADB}

    assert shown(mariadb_changes, key, op) == expected | {"id": key, "gen": 2 * key, "_unreadable": []}


# What Debezium itself gets wrong is left out: a date BC within a snapshot, and an interval without an end.
ODD_ROWS: list[tuple[int, str, dict[str, object], list[str]]] = [
    (
        2,
        "r",
        {"b": False, "r": NAN, "d": float("-inf"), "nfree": "NaN", "n122": None, "dt": LAST_DAY, "ts": LAST}
        | {"tstz": FIRST, "iv": "P-1Y0M-2DT0H0M0.000001S", "tm": "24:00:00.000000", "t": None},
        ["n122"],
    ),
    (
        3,
        "r",
        {"ts": "-0043-03-15 12:00:00", "tstz": "-0043-03-15 12:00:00", "d": 1e-300, "nfree": "Infinity"}
        | {"n122": Decimal("-0.01"), "n38": Decimal("0.0000000001"), "i2": 0, "ts3": "1969-12-31 23:59:59.999"}
        | {"tm": "00:00:00.000000", "r": -0.0},
        [],
    ),
    (
        5,
        "r",
        {"dt": "+5874897-12-31", "ts": None, "tstz": None, "nfree": "0.00000000000000000001"}
        | {"iv": "P101Y1M400DT25H0M0S"},
        # Beyond the last timestamp of Spark.
        ["ts", "tstz"],
    ),
    (4, "r", {}, []),
]


@pytest.mark.parametrize(("key", "op", "values", "unreadable"), ODD_ROWS, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize("streamed", [False, True], ids=["snapshot", "stream"])
def test_the_edges_of_postgres_arrive_as_they_were_inserted(
    postgres_changes: DataFrame, key: int, op: str, values: dict[str, object], unreadable: list[str], streamed: bool
) -> None:
    key, op = (key + 10, "c") if streamed else (key, op)
    actual = shown(postgres_changes, key, op)
    faulty = {"iv", "dt"} if key % 10 == 3 else set()

    expected = {name: values.get(name) for name, _, _ in POSTGRES if name not in faulty}
    assert {name: actual[name] for name in expected} == expected
    assert actual["_unreadable"] == unreadable


def test_a_date_before_christ_arrives_from_the_stream(postgres_changes: DataFrame) -> None:
    assert shown(postgres_changes, 13, "c")["dt"] == "-0043-03-15"


MARIADB_ODD: list[tuple[int, dict[str, object]]] = [
    (
        2,
        {"b": 0, "f": 0.0, "d": 1e-300, "dc": Decimal("-0.01"), "e": "", "s": "", "vc": "", "tm": "00:00:00.000000"}
        | {"bt": False, "dtm6": "1969-12-31 23:59:59.999999", "ts6": "1970-01-01 00:00:01.000001"},
    ),
    (
        3,
        {"dt": "9999-12-31", "dtm": "1000-01-01 00:00:00", "dtm6": "9999-12-31 23:59:59.999999", "e": "ok"}
        | {"tm6": "-00:00:00.000001", "y": 2155},
    ),
    (4, {}),
]


@pytest.mark.parametrize(("key", "values"), MARIADB_ODD, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize("streamed", [False, True], ids=["snapshot", "stream"])
def test_the_edges_of_mariadb_arrive_as_they_were_inserted(
    mariadb_changes: DataFrame, key: int, values: dict[str, object], streamed: bool
) -> None:
    key, op = (key + 10, "c") if streamed else (key, "r")
    actual = shown(mariadb_changes, key, op)

    # Two that Debezium encodes differently in a snapshot than in the stream: the year 0000 and a timestamp of zeros.
    faulty = {"y", "ts", "gen"} if key % 10 == 2 else {"gen"}
    expected = {name: values.get(name) for name, _, _ in MARIADB if name not in faulty}
    assert {name: actual[name] for name in expected} == expected
    assert actual["_unreadable"] == []


SCALARS: list[tuple[str, str, object]] = [
    ("c_date", "date", None),
    ("c_ts", "timestamp without time zone", None),
    ("c_ts3", "timestamp(3) without time zone", None),
    ("c_tstz", "timestamp with time zone", None),
    ("c_tstz3", "timestamp(3) with time zone", None),
    ("c_real", "real", None),
    ("c_double", "double precision", None),
    ("c_bare", "numeric", None),
]
# Inserted by SQL under these keys, in the order of the columns above.
EDGES: dict[int, list[object]] = {
    4: [LAST_DAY, LAST, LAST, LAST, LAST, NAN, NAN, "NaN"],
    6: [FIRST_DAY, FIRST, FIRST, FIRST, FIRST, float("inf"), float("inf"), "Infinity"],
    8: [
        *("+12024-01-02", "+12024-01-02 03:04:05.678901", "+12024-01-02 03:04:05.678"),
        *("+12024-01-02 03:04:05.678901", "+12024-01-02 03:04:05.678", -0.0, -0.0, "0"),
    ],
    9: [
        *("1500-02-28", "1500-02-28 12:00:00", "1582-10-10 00:00:00", "1500-02-28 12:00:00.000001"),
        *("1582-10-10 00:00:00", 999999986991104.0, 1e22, "1000000000000000000000000000000"),
    ],
    # Beyond Spark's last timestamp, the date excepted.
    13: ["+294276-12-31", None, None, None, None, 16777216.0, 9007199254740992.0, "100"],
}


# Of the same topic, under the key 1.
RARE: list[tuple[str, str, object]] = [
    ("c_name", "name", "name"),
    ("c_xml", "xml", "<a>x</a>"),
    ("c_mac8", "macaddr8", "08:00:2b:01:02:03:04:05"),
    ("c_point", "point", '{"x":1.5,"y":2.5,"wkb":"AQEAAAAAAAAAAAD4PwAAAAAAAARA","srid":null}'),
]


def test_rare_types_of_postgres_arrive_as_they_were_inserted(spark: SparkSession) -> None:
    records = [item for item in recorded("postgres_edges") if str(item["topic"]).endswith("scalars")]
    frame = change_decoder(table("postgres", RARE))(rows(spark, records)).where("_key.id = 1")
    expected = ([], 1, *(value for _, _, value in RARE))
    assert [tuple(row) for row in frame.select("_unreadable", "_after.*").collect()] == [expected] * 2


@pytest.mark.parametrize("op", ["r", "u"])
def test_times_outside_the_usual_calendar_arrive_as_they_were_inserted(spark: SparkSession, op: str) -> None:
    records = [item for item in recorded("postgres_edges") if str(item["topic"]).endswith("scalars")]
    frame = change_decoder(table("postgres", SCALARS))(rows(spark, records)).cache()

    for key, values in EDGES.items():
        actual = shown(frame, key, op)
        assert [actual[name] for name, _, _ in SCALARS] == values
        assert actual["_unreadable"] == (["c_ts", "c_ts3", "c_tstz", "c_tstz3"] if key == 13 else [])


ARRAYS: list[tuple[str, str, object]] = [
    ("a_small", "smallint[]", [1, None, -32768]),
    ("a_real", "real[]", [0.10000000149011612, NAN, float("inf"), None]),
    ("a_varchar", "character varying(20)[]", ["x", None]),
    ("a_char", "character(4)[]", ["ab  ", None]),
    ("a_bytea", "bytea[]", [b"\x00\xff", None, b""]),
    ("a_uuid", "uuid[]", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None]),
    ("a_json", "json[]", ['{"a": 1}', None]),
    ("a_jsonb", "jsonb[]", ['{"a": 1.10}', "null", None]),
    ("a_date", "date[]", ["2024-02-29", None, LAST_DAY, "1500-02-28"]),
    # The last was 1500-02-28: within arrays, the connector counts old timestamps by the Julian calendar.
    ("a_ts", "timestamp without time zone[]", ["2024-02-29 12:34:56.123456", None, LAST, "1500-03-09 00:00:00"]),
    ("a_ts3", "timestamp(3) without time zone[]", ["2024-02-29 12:34:56.123", None]),
    ("a_tstz", "timestamp with time zone[]", ["2024-02-29 10:34:56.123456", None, FIRST]),
    ("a_inet", "inet[]", ["10.1.1.1", None]),
    ("a_range", "int4range[]", ["[1,5)", None]),
    ("a_text", "text[]", ["a", None, "null", 'with "quote" \\ and , {comma}', "", "\U0001f600"]),
]


@pytest.mark.parametrize("op", ["r", "u"])
def test_arrays_arrive_with_their_nulls_and_edges(spark: SparkSession, op: str) -> None:
    records = [item for item in recorded("postgres_edges") if str(item["topic"]).endswith("arrays")]
    frame = change_decoder(table("postgres", ARRAYS))(rows(spark, records)).cache()

    assert shown(frame, 1, op) == {name: value for name, _, value in ARRAYS} | {"id": 1, "_unreadable": []}
    assert shown(frame, 2, op) == {name: [] for name, _, _ in ARRAYS} | {"id": 2, "_unreadable": []}


def test_what_an_update_leaves_alone_is_unavailable_in_the_recorded_forms(spark: SparkSession) -> None:
    existing = [(name, kind, None) for name, kind in TOASTED.items()]
    frame = change_decoder(table("postgres", existing))(rows(spark, recorded("postgres")))

    update = frame.where("_op = 'u' and _key.id = 11").first()
    moved = frame.where("_op = 'c' and _key.id = 111").first()
    assert update is not None
    assert moved is not None
    assert update._unavailable == moved._unavailable == list(TOASTED)
    assert update._unreadable == moved._unreadable == []


def test_a_recorded_change_of_a_key_is_a_delete_and_an_insert_at_one_place(postgres_changes: DataFrame) -> None:
    reported = postgres_changes.where("_key.id in (11, 111)").orderBy("_position", "_offset")
    actual = reported.select("_op", "_key", "_position", "_transaction").collect()

    place = f"{30161912:020d}"
    assert [(item._op, item._key.id, *item[2:]) for item in actual[2:4]] == [
        ("d", 11, place, "854"),
        ("c", 111, place, "854"),
    ]


def test_recorded_changes_of_both_families_sort_as_their_logs(
    postgres_changes: DataFrame, mariadb_changes: DataFrame
) -> None:
    for frame in (postgres_changes, mariadb_changes):
        actual = frame.orderBy("_position", "_offset").select("_op", "_offset").collect()
        assert [item._offset for item in actual] == list(range(len(actual)))
        assert actual[-1]._op == "t"


def decoded(spark: SparkSession, values: list[tuple[str, object]]) -> Row:
    """One change of a table with a column per value, named v0, v1 and so on."""
    columns = [(f"v{n}", kind, None) for n, (kind, _) in enumerate(values)]
    after = {"id": 1} | {f"v{n}": value for n, (_, value) in enumerate(values)}
    sent = record({"op": "c", "before": None, "after": after, "source": {"lsn": 1, "ts_ms": 1}}, {"id": 1})
    (actual,) = change_decoder(table("postgres", columns))(rows(spark, [sent])).collect()
    return actual


UNFIT: list[tuple[str, object]] = [
    ("smallint", 32768),
    ("integer", 1.5),
    ("bigint", "9223372036854775808"),
    ("boolean", 1),
    ("real", "1e39"),
    ("double precision", "1e400"),
    ("double precision", "1d"),
    ("numeric(5,2)", "1000.00"),
    ("numeric(5,2)", "1.005"),
    ("numeric(5,2)", "POSITIVE_INFINITY"),
    ("numeric", "abc"),
    ("date", "2024-02-29"),
    ("date", -2440589),
    ("timestamp without time zone", "2024-02-29"),
    ("timestamp without time zone", 9223372036854775807),
    ("timestamp(3) without time zone", 9223372036854776),
    ("timestamp with time zone", "2024"),
    ("timestamp with time zone", "2024-02-30T00:00:00Z"),
    ("timestamp with time zone", "2024-02-29T00:00:00"),
    ("timestamp with time zone", "2024-02-29T00:00:00.1234567Z"),
    ("timestamp with time zone", LAST.replace(" ", "T") + "Z"),
    ("time without time zone", "12:00"),
    ("bytea", "xyz"),
    ("uuid", "a0eebc99"),
    ("bit(3)", "FQ=="),
    ("a type of somebody's own", "x"),
    ("integer[]", {"a": 1}),
    ("date[]", [1, "x"]),
]
LESS_COMMON: list[tuple[str, object, object]] = [
    ("numeric(5,-2)", "12300." + "0" * 2046, Decimal(12300)),
    ("numeric(3,5)", "0.00123", Decimal("0.00123")),
    ("numeric(60,20)", "1.00000000000000000000", "1.00000000000000000000"),
    ("numeric(5)", "12345", Decimal(12345)),
    ("bit(11)", "AwQ=", "10000000011"),
    ("bit(11)", "", "00000000000"),
    ("bit(11)", "AQ==", "00000000001"),
    ("text", PLACEHOLDER + " ", PLACEHOLDER + " "),
    ("text", "null", "null"),
    ("text[]", ["null", None], ["null", None]),
    ("point", {"x": 1.50, "y": 2}, json.dumps({"x": 1.5, "y": 2}, separators=(",", ":"))),
    ("int4multirange", "7b5b312c33297d", "{[1,3)}"),
    ("public.pair", b'(1,"x y")'.hex(), '(1,"x y")'),
]


def test_texts_that_do_not_fit_are_unreadable(spark: SparkSession) -> None:
    actual = decoded(spark, UNFIT)

    assert actual._unreadable == [f"v{n}" for n in range(len(UNFIT))]
    assert set(actual._after.asDict().values()) == {1, None}


def test_values_of_less_common_types_are_read(spark: SparkSession) -> None:
    actual = decoded(spark, [(kind, value) for kind, value, _ in LESS_COMMON])

    assert actual._unreadable == []
    assert [actual._after[f"v{n}"] for n in range(len(LESS_COMMON))] == [expected for _, _, expected in LESS_COMMON]


@pytest.mark.parametrize(
    ("kind", "identity", "refused"),
    [
        ("bit varying(12)", "full", True),
        ("numeric[]", "full", False),
        ("time without time zone[]", "full", True),
        ("interval[]", "full", True),
        ("bit(3)[]", "full", True),
        ("numeric(5,2)[]", "full", False),
        ("numeric(5,2)[]", "default", True),
        ("timestamp with time zone[]", "default", True),
        ("text[]", "default", False),
    ],
)
def test_columns_of_which_the_connector_loses_values_are_refused(
    spark: SparkSession, kind: str, identity: str, refused: bool
) -> None:
    columns = (SourceColumn("id", "bigint", nullable=False), SourceColumn("v", kind, nullable=True))
    existing = SourceTable("public", "t", columns, ("id",), "postgres", identity)

    if not refused:
        assert change_decoder(existing)(rows(spark, [])).columns
        return
    with pytest.raises(FlowError, match=r"v \(") as error:
        change_decoder(existing)(rows(spark, []))
    assert error.value.code == "HR-246"


def test_infinities_survive_a_delta_table(spark: SparkSession, tmp_path: object, postgres_changes: DataFrame) -> None:
    path = f"{tmp_path}/t"
    rows_of = postgres_changes.where("_op in ('c', 'r') and _key.id in (2, 3, 12, 13)").select("_after.*")
    rows_of.select("id", "dt", "ts", "tstz").write.format("delta").save(path)

    back = spark.read.format("delta").load(path)
    infinite = back.where(F.col("dt") == F.date_from_unix_date(F.lit(2**31 - 1))).orderBy("id")
    assert [item.id for item in infinite.select("id").collect()] == [2, 12]
    (row,) = back.where("id = 12").select(*(F.col(name).cast("string") for name in ("dt", "ts", "tstz"))).collect()
    assert tuple(row) == (LAST_DAY, LAST, FIRST)
    before = back.where(F.col("tstz") < F.lit("-0001-01-01").cast("timestamp")).select("id").orderBy("id").collect()
    assert [item.id for item in before] == [2, 3, 12, 13]
