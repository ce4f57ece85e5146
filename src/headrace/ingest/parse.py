"""Bytes into typed rows, with a verdict on each: good, or bad for a reason.

The verdict costs one pass over the payload and rides in the query. The reason is worked out only for the rows
of a batch that reported bad ones, when they are filed in the quarantine.

A record of a flat schema that is good beyond doubt is read by `flat_json`. Every other one goes the long way through
`from_json`, which is what decides:

Reasons, in their order of precedence:

| reason                 | the record                                                                     |
|------------------------|--------------------------------------------------------------------------------|
| `null_value`           | has no value (a tombstone)                                                     |
| `too_large`            | is larger than the input's `max_bytes`                                         |
| `null_key`             | has no key, and the input requires one                                         |
| `malformed_json`       | is not valid UTF-8, not JSON, or not a JSON object                             |
| `missing:FIELD`        | lacks a required field, or holds null in it                                    |
| `wrong_type:FIELD`     | holds a value there that the field's type cannot hold                          |
| `event_time_in_future` | has an event time past the broker's clock by more than the watermark's `ahead` |
| `rule:NAME`            | does not meet a rule of the input                                              |

Spark's own reading is stricter in some places and looser in others than the schema says; what is done about it:
- A JSON array is read as its first element. Only objects are let through.
- Reading ends with the first object: what follows it, be it another event, is lost unseen. The payload is read as a
  field of an object that is put around it, followed by an end mark that has to be read too.
- A number is read into a timestamp as seconds, a word of digits as a year. Timestamps are read as text and have to
  begin like `2026-01-`.
- Single quotes and NaN are read as JSON. Both options are off.
- Any value is read into a text field, and a number in quotes into a decimal one. Both are kept: `"id": 7` gives the
  text `7`, and many producers quote money to keep it exact.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.flow.inputs import Input
from headrace.ingest import rules
from headrace.ingest.flat_json import read_flat

# Columns that stand beside those of the source while a row is judged. Fields of the payload are among them with a
# prefix, so that they cannot collide with any of the source.
BAD = "_headrace_bad"
_FIELD = "_headrace_field_"
_TEXT, _PARSED, _CORRUPT = "_headrace_text", "_headrace_parsed", "_headrace_corrupt"
_FLAT, _UNFIT, _RAW = "_headrace_flat", "_headrace_unfit", "_headrace_raw"
_PAYLOAD, _END = "payload", "end"
_BEFORE, _AFTER = f'{{"{_PAYLOAD}":', f',"{_END}":true}}'
_JSON = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    # What is too large is for `max_bytes` to say; Spark takes a text of 20 million characters for malformed.
    "maxStringLen": str(2**31 - 1),
}


def judged(raw: DataFrame, given: Input) -> DataFrame:
    """Add the fields of the payload, whether the row is bad, and which rules it breaks. `raw` is as Kafka gives it.

    Each step is used at least twice by the next one, so that Spark keeps them apart. Put together, it would read every
    time of day five times, and make the text for `from_json` in slow, interpreted code.
    """
    schema = _schema(given)
    rows = raw.where(F.col("value").isNotNull()) if given.null_values == "skip" else raw
    flat = read_flat(rows, given)
    if flat is None:
        parsed = _judged_at_length(rows, given, schema).drop(_TEXT, _UNFIT, _PARSED)
    else:
        at_once = rows.withColumn(_FLAT, F.when(F.col("key").isNotNull(), flat) if given.key_required else flat)
        parsed = _judged_at_length(at_once, given, schema, is_flat=True).drop(_FLAT, _TEXT, _UNFIT, _PARSED)
    return _judged_by_rules(parsed, given, schema, raw.columns) if given.rules else parsed


def _judged_by_rules(rows: DataFrame, given: Input, schema: StructType, raw: list[str]) -> DataFrame:
    """Add which rules each row breaks. They speak of fields by their names, so what else has one is put aside."""
    fields = [_field(field).alias(field.name) for field in schema]
    named = rows.select(F.struct(*raw).alias(_RAW), BAD, *fields, *given.keep)
    ruled = named.withColumns(rules.verdicts(given.rules, F.col(BAD)))
    return ruled.select(
        *(F.col(_RAW).getField(name).alias(name) for name in raw),
        *(F.col(f"`{_quoted(field.name)}`").alias(_FIELD + field.name) for field in schema),
        (F.col(BAD) | rules.broken(given.rules, "quarantine")).alias(BAD),
        *rules.columns(given.rules),
    )


def _judged_at_length(rows: DataFrame, given: Input, schema: StructType, *, is_flat: bool = False) -> DataFrame:
    """Judge by `from_json`; with `is_flat` those rows that are not read yet."""
    open_still = F.col(_FLAT).isNull() if is_flat else F.lit(True)
    fit = rows.withColumn(_TEXT, F.when(open_still & _is_fit(given), _wrapped()))
    parsed = fit.withColumns(
        {_PARSED: F.from_json(F.col(_TEXT), _as_read(schema), _JSON), _UNFIT: open_still & F.col(_TEXT).isNull()}
    )
    fields = {_FIELD + field.name: _typed(field) for field in schema}
    if is_flat:
        flat = {_FIELD + field.name: F.col(_FLAT).getField(field.name) for field in schema}
        fields = {name: F.when(open_still, slow).otherwise(flat[name]) for name, slow in fields.items()}
    typed = parsed.withColumns(fields)
    bad = F.col(_UNFIT) | (open_still & _is_bad(schema)) if is_flat else F.col(_UNFIT) | _is_bad(schema)
    return typed.withColumn(BAD, bad | _in_future(given, schema))


def good(rows: DataFrame, given: Input, *beside: Column) -> DataFrame:
    """Return the fields of the schema for the rows that were judged good, and the columns that the input keeps.

    Audits ask for columns beside them.
    """
    fields = (_field(field).alias(field.name) for field in _schema(given))
    return rows.where(~F.col(BAD) & ~rules.broken(given.rules, "drop")).select(*fields, *given.keep, *beside)


def with_reason(rows: DataFrame, given: Input) -> DataFrame:
    """Return the rows that were judged bad, with the `reason` for each."""
    return rows.where(F.col(BAD)).withColumn("reason", rules.with_rule(given.rules, _reason(given, _schema(given))))


def _schema(given: Input) -> StructType:
    assert given.schema is not None  # noqa: S101 - `check` refuses a payload without a schema (HRC-105)
    return given.schema


def _as_read(schema: StructType) -> StructType:
    """Return the schema as JSON is read: times as text, everything nullable, the corrupt record beside it."""
    fields = [
        StructField(field.name, StringType() if _is_time(field) else field.dataType, nullable=True) for field in schema
    ]
    return _around(StructType(fields)).add(_CORRUPT, StringType())


def _around(payload: DataType) -> StructType:
    """Return the schema of the object that `_wrapped` puts around a payload."""
    return StructType([StructField(_PAYLOAD, payload), StructField(_END, BooleanType())])


def _wrapped() -> Column:
    return F.concat(F.lit(_BEFORE), F.col("value").cast("string"), F.lit(_AFTER))


def _is_time(field: StructField) -> bool:
    return isinstance(field.dataType, TimestampType | DateType)


def _field(field: StructField) -> Column:
    return F.col(f"`{_quoted(_FIELD + field.name)}`")


def _quoted(name: str) -> str:
    # The name of a field may hold a dot, or worse.
    return name.replace("`", "``")


def _read(field: StructField) -> Column:
    return F.col(_PARSED).getField(_PAYLOAD).getField(field.name)


def _typed(field: StructField) -> Column:
    read = _read(field)
    if not _is_time(field):
        return read
    begins_with_a_year = F.substring(read, 5, 1) == "-"
    return F.when(begins_with_a_year, read.try_cast(field.dataType))


def _is_object(text: Column) -> Column:
    return text.startswith("{") | text.rlike(r"^\s*\{")


def _is_fit(given: Input) -> Column:
    """Return whether a record is worth reading. Null, for one without a value, is not."""
    text = F.col("value").cast("string")
    fit = (F.octet_length("value") <= given.max_bytes) & _is_object(text) & F.is_valid_utf8(text)
    return F.col("key").isNotNull() & fit if given.key_required else fit


def _is_bad(schema: StructType) -> Column:
    parsed = F.col(_PARSED)
    return _any(
        parsed.getField(_CORRUPT).isNotNull(),
        parsed.getField(_END).isNull(),
        *(_field(field).isNull() for field in schema if not field.nullable),
        *(_read(field).isNotNull() & _field(field).isNull() for field in schema if field.nullable and _is_time(field)),
    )


def _in_future(given: Input, schema: StructType) -> Column:
    # The broker's own clock is never ahead of itself.
    if given.watermark is None or given.watermark.column not in schema.names:
        return F.lit(False)
    event_time = _field(schema[given.watermark.column])
    guard = F.make_dt_interval(secs=F.lit(given.watermark.ahead_duration.seconds))
    return F.coalesce(event_time > F.col("timestamp") + guard, F.lit(False))


def _any(*conditions: Column) -> Column:
    whole = conditions[0]
    for condition in conditions[1:]:
        whole = whole | condition
    return whole


def _reason(given: Input, schema: StructType) -> Column:
    text = F.col("value").cast("string")
    chosen = F.when(F.col("value").isNull(), "null_value")
    for condition, reason in _causes(given, schema, text):
        chosen = chosen.when(F.coalesce(condition, F.lit(False)), reason)
    return chosen.otherwise("malformed_json")


def _causes(given: Input, schema: StructType, text: Column) -> Iterator[tuple[Column, str]]:
    yield F.octet_length("value") > given.max_bytes, "too_large"
    if given.key_required:
        yield F.col("key").isNull(), "null_key"
    read = F.from_json(_wrapped(), _around(MapType(StringType(), StringType())), _JSON)
    fields, whole = read.getField(_PAYLOAD), read.getField(_END).isNotNull()
    yield ~F.is_valid_utf8(text) | ~_is_object(text) | fields.isNull() | ~whole, "malformed_json"
    present = {field.name: F.try_element_at(fields, F.lit(field.name)).isNotNull() for field in schema}
    for field in schema:
        if not field.nullable:
            yield ~present[field.name], f"missing:{field.name}"
    for field in schema:
        yield present[field.name] & _field(field).isNull(), f"wrong_type:{field.name}"
    yield _in_future(given, schema), "event_time_in_future"
