"""Payloads and the verdict on each, written by hand; and Spark compared with the model where both define one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType, TimestampType

from headrace.flow.inputs import Input
from headrace.flow.levers import Watermark
from headrace.ingest.parse import invalid_rows, valid_rows, validate
from headrace.patterns.records import ConsumedRecord, InvalidRecord
from headrace.patterns.rides import model
from headrace.patterns.rides.flows import RIDE
from headrace.sources.kafka.source import KafkaSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SENT = datetime(2024, 5, 6, 12, tzinfo=UTC)
RIDES = Input(KafkaSource("rides"), schema=RIDE, watermark=Watermark("event_time", "10 minutes"), key_required=True)
RECORD = "n int, key binary, value binary, timestamp timestamp"
EVENT = {
    "ride_id": '"r1"',
    "driver_id": '"d1"',
    "rider_id": '"u1"',
    "city": '"Paris"',
    "pickup_lat": "48.85",
    "pickup_lon": "2.35",
    "status": '"completed"',
    "event_time": '"2024-05-06T12:00:00.000Z"',
}


def event(*, without: str = "", **changes: str) -> bytes:
    """A ride as JSON. Changes are JSON texts themselves, so that a test can say exactly what is on the wire."""
    fields = {name: value for name, value in (EVENT | changes).items() if name != without}
    return ("{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}").encode()


# Payload and verdict, where Spark and the model must agree.
SHARED: list[tuple[bytes | None, str]] = [
    (event(), "good"),
    (b" \n\t" + event() + b" \n", "good"),
    (event(note='{"more": [1]}'), "good"),
    (event(city='"\\u0000"'), "good"),
    (event(ride_id='""'), "good"),
    # no value
    (None, "null_value"),
    (b"x" * (1024 * 1024 + 1), "too_large"),
    # not JSON, or not an object
    (b"", "malformed_json"),
    (b"   ", "malformed_json"),
    (b"null", "malformed_json"),
    (b"42", "malformed_json"),
    (b"[]", "malformed_json"),
    (b'"text"', "malformed_json"),
    (b"[" + event() + b"]", "malformed_json"),
    (event()[:-1], "malformed_json"),
    (event()[:-1] + b",}", "malformed_json"),
    (event() + b"x", "malformed_json"),
    (event() + b"}", "malformed_json"),
    (event() + b"}x", "malformed_json"),
    (event() + b"]", "malformed_json"),
    (event() + event(), "malformed_json"),
    (event() + b"\n" + event(), "malformed_json"),
    (event() + b", " + event(), "malformed_json"),
    (event().replace(b'"', b"'"), "malformed_json"),
    (event().replace(b'"city"', b"city"), "malformed_json"),
    (event()[:-1] + b"/* note */}", "malformed_json"),
    (b"\xef\xbb\xbf" + event(), "malformed_json"),
    (event(city='"\x01"'), "malformed_json"),
    (event(city='"a\nb"'), "malformed_json"),
    (event(city='"?"').replace(b"?", b"\xff\xfe"), "malformed_json"),
    (event(note='"?"').replace(b"?", b"\xff"), "malformed_json"),
    (event(pickup_lat="NaN"), "malformed_json"),
    (event(pickup_lat="-Infinity"), "malformed_json"),
    (event(pickup_lat="007"), "malformed_json"),
    (event(pickup_lat=".5"), "malformed_json"),
    # required fields
    (b"{}", "missing:ride_id"),
    (event(without="city"), "missing:city"),
    (event(city="null"), "missing:city"),
    (event(without="city", CITY='"Paris"'), "missing:city"),
    (event(without="event_time"), "missing:event_time"),
    (event(without="status", fare_amount='"abc"'), "missing:status"),
    # types
    (event(pickup_lat='"north"'), "wrong_type:pickup_lat"),
    (event(pickup_lat='"48.85"'), "wrong_type:pickup_lat"),
    (event(pickup_lat='"NaN"'), "wrong_type:pickup_lat"),
    (event(pickup_lat="true"), "wrong_type:pickup_lat"),
    (event(pickup_lat='{"deg": 48}'), "wrong_type:pickup_lat"),
    (event(dropoff_lat='"1.5"'), "wrong_type:dropoff_lat"),
    (event(dropoff_lat='""'), "wrong_type:dropoff_lat"),
    (event(dropoff_lat="null", fare_amount="null"), "good"),
    (event(fare_amount='"abc"'), "wrong_type:fare_amount"),
    (event(fare_amount="[]"), "wrong_type:fare_amount"),
    (event(fare_amount="99999999.99"), "good"),
    (event(fare_amount="100000000"), "wrong_type:fare_amount"),
    (event(fare_amount="99999999.995"), "wrong_type:fare_amount"),
    (event(fare_amount="1e400"), "wrong_type:fare_amount"),
    (event(fare_amount="1e2"), "good"),
    # times
    (event(event_time="12345"), "wrong_type:event_time"),
    (event(event_time="20240506"), "wrong_type:event_time"),
    (event(event_time='"20240506"'), "wrong_type:event_time"),
    (event(event_time='"2024"'), "wrong_type:event_time"),
    (event(event_time='"yesterday"'), "wrong_type:event_time"),
    (event(event_time='"now"'), "wrong_type:event_time"),
    (event(event_time='""'), "wrong_type:event_time"),
    (event(event_time='"2024-02-30T12:00:00Z"'), "wrong_type:event_time"),
    (event(event_time='"2024-05-06T24:00:00Z"'), "wrong_type:event_time"),
    (event(event_time='"12024-05-06T11:00:00Z"'), "wrong_type:event_time"),
    (event(event_time='"2024-05-06T14:00:00+02:00"'), "good"),
    (event(event_time='"2024-05-06T11:00:00"'), "good"),
    (event(event_time='"0001-01-01T00:00:00Z"'), "good"),
    (event(event_time='"2024-05-06T13:00:00.000Z"'), "good"),
    (event(event_time='"2024-05-06T13:00:00.000001Z"'), "event_time_in_future"),
    (event(event_time='"2099-01-01T00:00:00Z"'), "event_time_in_future"),
    # precedence
    (event(fare_amount='"abc"', event_time='"2099-01-01T00:00:00Z"'), "wrong_type:fare_amount"),
]

# What Spark's reader lets into a field and the stricter model does not.
LENIENT: list[tuple[bytes, str, object]] = [
    (event(ride_id="7"), "ride_id", "7"),
    (event(ride_id="true"), "ride_id", "true"),
    (event(ride_id='{"a": 1}'), "ride_id", '{"a":1}'),
    (event(fare_amount='"12.50"'), "fare_amount", Decimal("12.50")),
    (event(event_time='"2024-05-06"'), "event_time", "2024-05-06 00:00:00"),
    (event(event_time='"2024-05-06 11:00"'), "event_time", "2024-05-06 11:00:00"),
    (event(event_time='"2024-05-06T11:00:00+0200"'), "event_time", "2024-05-06 09:00:00"),
]


def records(spark: SparkSession, payloads: Sequence[tuple[bytes | None, bytes | None]]) -> DataFrame:
    rows = [(n, key, value, SENT) for n, (key, value) in enumerate(payloads)]
    return spark.createDataFrame(rows, RECORD)


def verdicts(spark: SparkSession, payloads: Sequence[tuple[bytes | None, bytes | None]], input_: Input) -> list[str]:
    rows = validate(records(spark, payloads), input_)
    reasons = {row["n"]: row["reason"] for row in invalid_rows(rows, input_).collect()}
    return [reasons.get(n, "good") for n in range(len(payloads))]


def test_every_payload_gets_the_verdict_of_the_table(spark: SparkSession) -> None:
    actual = verdicts(spark, [(b"k", value) for value, _ in SHARED], RIDES)
    assert [(value, reason) for (value, _), reason in zip(SHARED, actual, strict=True)] == SHARED


def test_the_rows_that_are_not_invalid_are_the_valid_ones(spark: SparkSession) -> None:
    rows = validate(records(spark, [(b"k", value) for value, _ in SHARED]), RIDES)
    assert valid_rows(rows, RIDES).count() == sum(verdict == "good" for _, verdict in SHARED)


@pytest.mark.parametrize(("value", "expected"), SHARED)
def test_the_model_classifies_records_like_the_table(value: bytes | None, expected: str) -> None:
    verdict = model.RIDE.parse(ConsumedRecord(0, 0, round(SENT.timestamp() * 1000), b"k", value))
    assert (verdict.reason if isinstance(verdict, InvalidRecord) else "good") == expected


def test_size_is_validated_before_the_key_and_the_key_before_the_payload(spark: SparkSession) -> None:
    largest = 1024 * 1024
    payloads = [
        (None, None),
        (None, b"x" * (largest + 1)),
        (None, b"x" * largest),
        (b"k", b"x" * largest),
        (b"", event()),
    ]
    assert verdicts(spark, payloads, RIDES) == ["null_value", "too_large", "null_key", "malformed_json", "good"]


def test_key_and_size_are_validated_only_if_the_input_declares_it(spark: SparkSession) -> None:
    small = Input(RIDES.source, schema=RIDE, watermark=RIDES.watermark, max_bytes=len(event()))
    assert verdicts(spark, [(None, event()), (None, event() + b" ")], small) == ["good", "too_large"]


def test_without_a_watermark_no_time_is_in_the_future(spark: SparkSession) -> None:
    far = event(event_time='"2099-01-01T00:00:00Z"')
    assert verdicts(spark, [(b"k", far)], Input(RIDES.source, schema=RIDE)) == ["good"]


def test_valid_rows_have_typed_fields_and_nothing_else(spark: SparkSession) -> None:
    payload = event(fare_amount="12.345", event_time='"2024-05-06T14:00:00.0019+02:00"', note="1")
    rows = valid_rows(validate(records(spark, [(b"k", payload)]), RIDES), RIDES)
    assert [(field.name, field.dataType) for field in rows.schema] == [(f.name, f.dataType) for f in RIDE]
    (row,) = rows.withColumn("event_time", rows["event_time"].cast("string")).collect()
    assert row.asDict() == {
        "ride_id": "r1",
        "driver_id": "d1",
        "rider_id": "u1",
        "city": "Paris",
        "pickup_lat": 48.85,
        "pickup_lon": 2.35,
        "dropoff_lat": None,
        "dropoff_lon": None,
        "fare_amount": Decimal("12.35"),
        "status": "completed",
        "event_time": "2024-05-06 12:00:00.0019",
    }


def test_values_that_spark_reads_leniently_are_read_as_documented(spark: SparkSession) -> None:
    rows = valid_rows(validate(records(spark, [(b"k", value) for value, _, _ in LENIENT]), RIDES), RIDES)
    actual = rows.withColumn("event_time", rows["event_time"].cast("string")).coalesce(1).collect()
    assert [row[field] for row, (_, field, _) in zip(actual, LENIENT, strict=True)] == [
        value for _, _, value in LENIENT
    ]


def test_the_name_of_a_field_may_contain_dots_spaces_and_quotes(spark: SparkSession) -> None:
    odd = StructType([StructField(name, StringType(), nullable=False) for name in ("a.b", "c d", "e`f")])
    input_ = Input(KafkaSource("odd"), schema=odd)
    complete, lacking = b'{"a.b": "1", "c d": "2", "e`f": "3"}', b'{"a.b": "1", "c d": "2"}'
    rows = validate(records(spark, [(b"k", complete), (b"k", lacking)]), input_)
    assert [tuple(row) for row in valid_rows(rows, input_).collect()] == [("1", "2", "3")]
    assert [row.reason for row in invalid_rows(rows, input_).collect()] == ["missing:e`f"]


def test_invalid_rows_contain_their_original_record(spark: SparkSession) -> None:
    rows = validate(records(spark, [(b"Paris", b"\xff not json"), (b"k", event())]), RIDES)
    (row,) = invalid_rows(rows, RIDES).select("n", "key", "value", "reason").collect()
    assert (row["n"], bytes(row["key"]), bytes(row["value"])) == (0, b"Paris", b"\xff not json")


def test_a_schema_of_numbers_and_lists_is_validated_by_the_same_rules(spark: SparkSession) -> None:
    schema = StructType(
        [
            StructField("it's", IntegerType(), nullable=False),
            StructField("tags", ArrayType(StringType())),
            StructField("payload", TimestampType()),
        ]
    )
    table = [
        (b'{"it\'s": 1, "tags": ["a"], "payload": "2024-01-01"}', "good"),
        (b'{"it\'s": 1}', "good"),
        (b'{"tags": []}', "missing:it's"),
        (b'{"it\'s": 1.5}', "wrong_type:it's"),
        (b'{"it\'s": 2147483648}', "wrong_type:it's"),
        (b'{"it\'s": 1, "tags": "a"}', "wrong_type:tags"),
        (b'{"it\'s": 1, "payload": "soon"}', "wrong_type:payload"),
    ]
    actual = verdicts(spark, [(None, value) for value, _ in table], Input(KafkaSource("t"), schema=schema))
    assert actual == [reason for _, reason in table]


# Any field missing, null, of another type or cut: the two readers, written apart, must agree on what is a ride.
changed = st.dictionaries(
    st.sampled_from([*EVENT, "dropoff_lat", "fare_amount"]),
    st.one_of(st.just("null"), st.text(max_size=5).map(json.dumps), st.floats(-1e9, 1e9).map(json.dumps)),
    max_size=3,
).filter(lambda fields: all(value[0] == '"' or value == "null" for name, value in fields.items() if name in TEXTS))
TEXTS = ("ride_id", "driver_id", "rider_id", "city", "status")
payloads_of_any_kind = st.one_of(
    st.binary(max_size=20),
    changed.filter(lambda fields: not fields.get("fare_amount", "0").startswith('"')).map(lambda f: event(**f)),
    st.integers(0, len(event())).map(lambda cut: event()[:cut]),
)


@given(st.lists(payloads_of_any_kind, min_size=40, max_size=60))
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_spark_and_the_model_agree_on_any_payload(spark: SparkSession, values: list[bytes]) -> None:
    def by_model(value: bytes) -> str:
        verdict = model.RIDE.parse(ConsumedRecord(0, 0, round(SENT.timestamp() * 1000), b"k", value))
        return verdict.reason if isinstance(verdict, InvalidRecord) else "good"

    actual = verdicts(spark, [(b"k", value) for value in values], RIDES)
    assert list(zip(values, actual, strict=True)) == [(value, by_model(value)) for value in values]


def test_metadata_columns_are_added_to_the_fields_if_the_input_declares_them(spark: SparkSession) -> None:
    schema = StructType([StructField("a", IntegerType(), nullable=False)])
    stored = Input(KafkaSource("t"), schema=schema, metadata_columns=("key", "timestamp"))
    rows = valid_rows(validate(records(spark, [(b"k", b'{"a": 1}'), (None, b"x")]), stored), stored)
    assert stored.columns is not None
    assert [(f.name, f.dataType) for f in rows.schema] == [(f.name, f.dataType) for f in stored.columns]
    assert [(row["a"], bytes(row["key"])) for row in rows.collect()] == [(1, b"k")]


def test_a_record_without_a_value_is_skipped_if_the_input_declares_it(spark: SparkSession) -> None:
    skipping = Input(RIDES.source, schema=RIDE, null_values="skip")
    rows = validate(records(spark, [(b"k", None), (b"k", event()), (b"k", b"null")]), skipping)
    assert [(row["n"], row["reason"]) for row in invalid_rows(rows, skipping).collect()] == [(2, "malformed_json")]
    assert valid_rows(rows, skipping).count() == 1
