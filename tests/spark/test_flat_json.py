"""The reader of flat JSON against the long way: whatever it reads, `from_json` reads alike and judges good."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.flow.inputs import Input
from headrace.ingest import parse
from headrace.ingest.flat_json import read_flat_json
from headrace.sources.kafka.source import KafkaSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

ALL_KINDS = StructType(
    [
        StructField("text", StringType(), nullable=False),
        StructField("flag", BooleanType()),
        StructField("tiny", ByteType()),
        StructField("short", ShortType()),
        StructField("int", IntegerType()),
        StructField("long", LongType()),
        StructField("real", DoubleType()),
        StructField("money", DecimalType(10, 2)),
        StructField("share", DecimalType(4, 4)),
        StructField("at", TimestampType()),
        StructField("on", DateType()),
        StructField("né", StringType()),
    ]
)
KINDS = Input(KafkaSource("kinds"), schema=ALL_KINDS)
SENT = datetime(2026, 1, 1, tzinfo=UTC)

# A value as JSON for one field, and what it is in Python; only values that need no second look.
PLAIN: list[tuple[str, str, object]] = [
    ("text", '""', ""),
    ("text", '"São Paulo 東京 😀"', "São Paulo 東京 😀"),
    ("text", r'"a\"b\\c\/d\b\f\n\r\t"', 'a"b\\c/d\b\f\n\r\t'),
    ("text", r'"\u0000\u00e3\u20ac\ud83d\ude00"', "\x00ã€😀"),
    ("flag", "true", True),
    ("flag", "false", False),
    ("tiny", "-128", -128),
    ("short", "32767", 32767),
    ("int", "-2147483648", -2147483648),
    ("long", "999999999999999999", 999999999999999999),
    ("real", "48.8566", 48.8566),
    ("real", "0.1", 0.1),
    ("real", "9007199254740993", 9007199254740992.0),
    ("real", "-1.7976931348623157e308", -1.7976931348623157e308),
    ("real", "4.9E-324", 5e-324),
    ("real", "0.30000000000000004", 0.30000000000000004),
    ("money", "99999999.99", Decimal("99999999.99")),
    ("money", "-0.1", Decimal("-0.10")),
    ("money", "7", Decimal("7.00")),
    ("share", "0.1234", Decimal("0.1234")),
    ("at", '"2026-02-28T23:59:59Z"', "2026-02-28 23:59:59"),
    ("at", '"2024-02-29 00:00:00.1Z"', "2024-02-29 00:00:00.1"),
    ("at", '"0001-01-01T00:00:00.000001Z"', "0001-01-01 00:00:00.000001"),
    ("at", '"9999-12-31T23:59:59.999999Z"', "9999-12-31 23:59:59.999999"),
    ("on", '"1600-02-29"', "1600-02-29"),
    ("né", '"x"', "x"),
    ("né", "null", None),
]

# Payloads that it has to leave to the long way.
IN_DOUBT: list[bytes] = [
    b"",
    b"{",
    b"[]",
    b"{}",
    b'{"text": null}',
    b'{"text": 7}',
    b'{"text": "a", "text": "b"}',
    b'{"te\\u0078t": "a"}',
    b'{"text": "a"} {}',
    b'{"text": "a",}',
    b'{"text": "a" "flag": true}',
    b'\xef\xbb\xbf{"text": "a"}',
    b'{"text": "\xff"}',
    b'{"text": "\xc0\xaf"}',
    b'{"text": "\xed\xa0\x80"}',
    b'{"text": "\xf4\x90\x80\x80"}',
    b'{"text": "a", "other": "\xe2\x82"}',
    b'{"text": "a", "\xff": 1}',
    b'{"text": "a\x01"}',
    b'{"text": "\\x"}',
    b'{"text": "\\ud83d"}',
    b'{"text": "\\ude00"}',
    b'{"text": "a", "flag": 1}',
    b'{"text": "a", "flag": truex}',
    b'{"text": "a", "tiny": 128}',
    b'{"text": "a", "int": 1.0}',
    b'{"text": "a", "int": 1e2}',
    b'{"text": "a", "long": 9223372036854775808}',
    b'{"text": "a", "real": -0}',
    b'{"text": "a", "real": 1e400}',
    b'{"text": "a", "real": .5}',
    b'{"text": "a", "real": 07}',
    b'{"text": "a", "real": NaN}',
    b'{"text": "a", "money": 100000000}',
    b'{"text": "a", "money": 1.005}',
    b'{"text": "a", "money": "1.00"}',
    b'{"text": "a", "share": 1.0}',
    b'{"text": "a", "at": "2026-02-29T00:00:00Z"}',
    b'{"text": "a", "at": "2026-01-01T24:00:00Z"}',
    b'{"text": "a", "at": "2026-01-01T00:00:00.1234567Z"}',
    b'{"text": "a", "at": "2026-01-01T00:00:00+01:00"}',
    b'{"text": "a", "at": "2026-01-01"}',
    b'{"text": "a", "at": 1767225600}',
    b'{"text": "a", "on": "2026-13-01"}',
    b'{"text": "a", "on": "0000-01-01"}',
    b'{"text": "a", "other": {"b": [1, 2}}',
    b'{"text": "a", "other": 1.}',
    b'{"text": "a", "other": ' + b"[" * 40 + b"]" * 40 + b"}",
]


def records(spark: SparkSession, values: Sequence[bytes]) -> DataFrame:
    rows = [(n, b"k", value, SENT) for n, value in enumerate(values)]
    return spark.createDataFrame(rows, "n int, key binary, value binary, timestamp timestamp").coalesce(1)


def fast_parsed(spark: SparkSession, values: Sequence[bytes]) -> list[Row | None]:
    rows = records(spark, values)
    flat = read_flat_json(rows, KINDS)
    assert flat is not None
    return [row["flat"] for row in rows.select(_readable(flat).alias("flat")).collect()]


def _readable(struct: F.Column) -> F.Column:
    # Times as text: Python's own know no year beyond its calendar and move with the machine's zone.
    names = [field.name for field in ALL_KINDS]
    texts = ("at", "on")
    fields = [struct[name].cast("string").alias(name) if name in texts else struct[name].alias(name) for name in names]
    return F.when(struct.isNotNull(), F.struct(*fields))


def the_long_way(spark: SparkSession, values: Sequence[bytes], monkeypatch: pytest.MonkeyPatch) -> dict[int, Row]:
    with monkeypatch.context() as patched:
        patched.setattr(parse, "read_flat_json", lambda _rows, _declared: None)
        rows = parse.valid_rows(parse.validate(records(spark, values), KINDS), KINDS, F.col("n"))
    full = F.struct(*(F.col(f"`{field.name}`") for field in ALL_KINDS))
    return {row["n"]: row["row"] for row in rows.select("n", _readable(full).alias("row")).collect()}


def test_plain_values_of_every_type_are_parsed_by_the_fast_parser(spark: SparkSession) -> None:
    payloads = [
        (f'{{"{name}": {value}}}' if name == "text" else f'{{"text": "t", "{name}": {value}}}').encode()
        for name, value, _ in PLAIN
    ]
    actual = fast_parsed(spark, payloads)
    assert [(row and row[name]) for row, (name, _, _) in zip(actual, PLAIN, strict=True)] == [e for _, _, e in PLAIN]
    assert None not in actual


def test_fields_nobody_asked_for_and_blanks_are_passed_over(spark: SparkSession) -> None:
    payload = ' {\n"x" : {"aã": [1, -2.5e+3, "\\"", null, {}], "b": []} ,\t"né": "n", "text":"t"}\r\n'.encode()
    (row,) = fast_parsed(spark, [payload])
    assert row is not None
    assert (row["text"], row["né"], row["int"]) == ("t", "n", None)


def test_whatever_is_in_doubt_is_left_to_the_long_way(spark: SparkSession) -> None:
    actual = fast_parsed(spark, IN_DOUBT)
    assert [value for value, row in zip(IN_DOUBT, actual, strict=True) if row is not None] == []


def test_a_schema_with_depth_or_odd_names_goes_the_long_way(spark: SparkSession) -> None:
    rows = records(spark, [b"{}"])
    odd = [StructField("a", ArrayType(StringType())), StructField('a"b', StringType()), StructField("a\tb", LongType())]
    wide = [StructField("a", DecimalType(38, 2)), StructField("a", StructType())]
    for field in (*odd, *wide):
        assert read_flat_json(rows, Input(KafkaSource("odd"), schema=StructType([field]))) is None


# Near misses: a valid record, with values of any kind in any field, and bytes cut out, doubled or exchanged.
numbers = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=False).map(json.dumps),
    st.decimals(-(10**9), 10**9, places=3).map(str),
)
texts = st.text(max_size=6).map(json.dumps) | st.text(max_size=6).map(lambda t: json.dumps(t, ensure_ascii=False))
times = st.datetimes().map(lambda t: f'"{t.isoformat()}Z"') | st.dates().map(lambda d: f'"{d.isoformat()}"')
values_of_any_kind = st.one_of(numbers, texts, times, st.sampled_from(["null", "true", "false", "{}", "[1]"]))
objects = st.dictionaries(st.sampled_from([*ALL_KINDS.names, "other"]), values_of_any_kind, min_size=1, max_size=6).map(
    lambda fields: "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"
)
complete = st.tuples(objects, st.booleans()).map(
    lambda pair: '{"text": "t", ' + pair[0][1:] if pair[1] and '"text"' not in pair[0] else pair[0]
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    payload = bytearray(draw(complete).encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(payload) - 1)) if payload else 0
        match draw(st.sampled_from(["cut", "change", "double", "end"])):
            case "cut":
                del payload[at : at + 1]
            case "change":
                payload[at : at + 1] = draw(st.binary(min_size=1, max_size=2))
            case "double":
                payload[at:at] = payload[at : at + draw(st.integers(1, 8))]
            case _:
                payload += draw(st.sampled_from([b" ", b"\n", b"{}", b"}", b",", b"\x00"]))
    return bytes(payload)


@given(values=st.lists(damaged(), min_size=150, max_size=200))
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_rows_of_the_fast_parser_are_valid_and_equal_those_of_sparks_parser(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, values: list[bytes]
) -> None:
    actual = {n: row for n, row in enumerate(fast_parsed(spark, values)) if row is not None}
    slow = the_long_way(spark, values, monkeypatch)
    assert {n: (values[n], row) for n, row in actual.items()} == {n: (values[n], slow.get(n)) for n in actual}


def test_the_tables_above_are_read_alike_the_long_way(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [f'{{"text": "t", "{name}": {value}}}'.encode() for name, value, _ in PLAIN if name != "text"]
    actual = dict(enumerate(fast_parsed(spark, payloads)))
    assert actual == the_long_way(spark, payloads, monkeypatch)
