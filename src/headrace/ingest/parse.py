"""Parses records into typed rows and marks each row as valid or invalid.

Validation is one pass over the payload, in the query. The reason is computed only for the rows of a batch that
reported invalid rows, when they are written to the quarantine table.

A record of a flat schema that is certainly valid is parsed by `flat_json`. Every other record is parsed by `from_json`,
which decides.


Reasons, in their order of precedence:

| reason                 | the record                                                                     |
|------------------------|--------------------------------------------------------------------------------|
| `null_value`           | has no value (a tombstone)                                                     |
| `too_large`            | is larger than the input's `max_bytes`                                         |
| `null_key`             | has no key, and the input requires one                                         |
| `malformed_json`       | is not valid UTF-8, not JSON, or not a JSON object                             |
| `missing:FIELD`        | lacks a required field, or holds null in it                                    |
| `wrong_type:FIELD`     | holds a value there that the field's type cannot hold                          |
| `event_time_in_future` | has an event time later than the broker's timestamp by more than `max_future`  |
| `rule:NAME`            | violates a data quality rule of the input                                      |

Spark's parser is stricter than the schema in some cases and looser in others. The differences, and what this does:
- It reads a JSON array as its first element. Only objects are accepted.
- It stops after the first object and silently ignores the rest. So the payload is wrapped into an object as its first
  field, followed by an end marker that must be parsed too.
- It reads a number as a timestamp in seconds, and a string of digits as a year. So timestamps are read as strings and
  must start like `2026-01-`.
- It accepts single quotes and NaN. Both options are off.
- It reads any value into a string field, and a quoted number into a decimal field. Both are accepted: `"id": 7` gives
  the string `7`, and many producers quote amounts of money to keep them exact.
"""

from collections.abc import Iterator
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, functions as F, types as T

from headrace.clients.sql import column_named
from headrace.flow.inputs import Input
from headrace.ingest import rules
from headrace.ingest.flat_json import read_flat_json

# Internal columns during validation. Payload fields have a prefix, so that they cannot collide with columns of the
# source.
INVALID = "_headrace_invalid"
_FIELD = "_headrace_field_"
_TEXT, _PARSED, _CORRUPT = "_headrace_text", "_headrace_parsed", "_headrace_corrupt"
_FLAT, _UNPARSABLE, _RAW = "_headrace_flat", "_headrace_unparsable", "_headrace_raw"
_PAYLOAD, _END = "payload", "end"
_BEFORE, _AFTER = f'{{"{_PAYLOAD}":', f',"{_END}":true}}'
_JSON = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    # `max_bytes` limits the size; Spark treats a string of 20 million characters as malformed.
    "maxStringLen": str(2**31 - 1),
}


def validate(raw: DataFrame, input_: Input) -> DataFrame:
    """Add the payload fields, whether the row is invalid, and which rules it violates. `raw` has Kafka's columns.

    Each step is used at least twice by the next one, so Spark does not merge them. Merged, it would parse every
    timestamp five times, and build the string for `from_json` in slow, interpreted code.
    """
    schema = _schema(input_)
    rows = raw.where(F.col("value").isNotNull()) if input_.null_values == "skip" else raw
    flat = read_flat_json(rows, input_)
    if flat is not None:
        rows = rows.withColumn(_FLAT, F.when(F.col("key").isNotNull(), flat) if input_.key_required else flat)
    validated = _validate_with_from_json(rows, input_, schema, is_flat=flat is not None)
    parsed = validated.drop(_FLAT, _TEXT, _UNPARSABLE, _PARSED)
    return _apply_rules(parsed, input_, schema, raw.columns) if input_.rules else parsed


def _apply_rules(rows: DataFrame, input_: Input, schema: T.StructType, raw: list[str]) -> DataFrame:
    """Add which rules each row violates. Rules use field names, so the raw columns move into a struct while it runs."""
    fields = [_field(field).alias(field.name) for field in schema]
    named_fields = rows.select(F.struct(*raw).alias(_RAW), INVALID, *fields, *input_.metadata_columns)
    validated = named_fields.withColumns(rules.violation_columns(input_.rules, F.col(INVALID)))
    return validated.select(
        *(F.col(_RAW).getField(name).alias(name) for name in raw),
        *(column_named(field.name).alias(_FIELD + field.name) for field in schema),
        (F.col(INVALID) | rules.violates(input_.rules, "quarantine")).alias(INVALID),
        *rules.violation_names(input_.rules),
    )


def _validate_with_from_json(rows: DataFrame, input_: Input, schema: T.StructType, *, is_flat: bool) -> DataFrame:
    """Parse and validate with `from_json`; with `is_flat` only the rows that `flat_json` did not parse."""
    is_unparsed = F.col(_FLAT).isNull() if is_flat else F.lit(True)
    with_text = rows.withColumn(_TEXT, F.when(is_unparsed & _is_parsable(input_), _wrapped_payload()))
    parsed = with_text.withColumns(
        {
            _PARSED: F.from_json(F.col(_TEXT), _parse_schema(schema), _JSON),
            _UNPARSABLE: is_unparsed & F.col(_TEXT).isNull(),
        }
    )
    fields = {_FIELD + field.name: _cast_field(field) for field in schema}
    if is_flat:
        for field in schema:
            parsed_field = F.when(is_unparsed, fields[_FIELD + field.name])
            fields[_FIELD + field.name] = parsed_field.otherwise(F.col(_FLAT).getField(field.name))
    invalid = F.col(_UNPARSABLE) | (is_unparsed & _is_invalid(schema))
    return parsed.withColumns(fields).withColumn(INVALID, invalid | _in_future(input_, schema))


def valid_rows(rows: DataFrame, input_: Input, *extra: Column) -> DataFrame:
    """Return the schema fields and metadata columns of the valid rows.

    Audits add `extra` columns.
    """
    fields = (_field(field).alias(field.name) for field in _schema(input_))
    return rows.where(~F.col(INVALID) & ~rules.violates(input_.rules, "drop")).select(
        *fields, *input_.metadata_columns, *extra
    )


def invalid_rows(rows: DataFrame, input_: Input) -> DataFrame:
    """Return the invalid rows, each with its `reason`."""
    return rows.where(F.col(INVALID)).withColumn(
        "reason", rules.violated_rule(input_.rules, _reason(input_, _schema(input_)))
    )


def _schema(input_: Input) -> T.StructType:
    assert input_.schema is not None  # noqa: S101 - `check` refuses a payload without a schema (HRC-105)
    return input_.schema


def _parse_schema(schema: T.StructType) -> T.StructType:
    """Return the schema for `from_json`: times as strings, everything nullable, plus the corrupt record."""
    fields = [
        T.StructField(field.name, T.StringType() if _is_time(field) else field.dataType, nullable=True)
        for field in schema
    ]
    return _wrapper_schema(T.StructType(fields)).add(_CORRUPT, T.StringType())


def _wrapper_schema(payload: T.DataType) -> T.StructType:
    """Return the schema of the object that `_wrapped_payload` builds."""
    return T.StructType([T.StructField(_PAYLOAD, payload), T.StructField(_END, T.BooleanType())])


def _wrapped_payload() -> Column:
    return F.concat(F.lit(_BEFORE), F.col("value").cast("string"), F.lit(_AFTER))


def _is_time(field: T.StructField) -> bool:
    return isinstance(field.dataType, T.TimestampType | T.DateType)


def _field(field: T.StructField) -> Column:
    return column_named(_FIELD + field.name)


def _parsed_field(field: T.StructField) -> Column:
    return F.col(_PARSED).getField(_PAYLOAD).getField(field.name)


def _cast_field(field: T.StructField) -> Column:
    value = _parsed_field(field)
    if not _is_time(field):
        return value
    starts_with_year = F.substring(value, 5, 1) == "-"
    return F.when(starts_with_year, value.try_cast(field.dataType))


def _is_object(text: Column) -> Column:
    return text.startswith("{") | text.rlike(r"^\s*\{")


def _is_parsable(input_: Input) -> Column:
    """Return whether a record can be parsed. Null, for a record without a value, counts as no."""
    text = F.col("value").cast("string")
    is_parsable = (F.octet_length("value") <= input_.max_bytes) & _is_object(text) & F.is_valid_utf8(text)
    return F.col("key").isNotNull() & is_parsable if input_.key_required else is_parsable


def _is_invalid(schema: T.StructType) -> Column:
    parsed = F.col(_PARSED)
    conditions = (
        parsed.getField(_CORRUPT).isNotNull(),
        parsed.getField(_END).isNull(),
        *(_field(field).isNull() for field in schema if not field.nullable),
        *(
            _parsed_field(field).isNotNull() & _field(field).isNull()
            for field in schema
            if field.nullable and _is_time(field)
        ),
    )
    return reduce(or_, conditions)


def _in_future(input_: Input, schema: T.StructType) -> Column:
    # The broker's own timestamp is never in the future.
    if input_.watermark is None or input_.watermark.column not in schema.names:
        return F.lit(False)
    event_time = _field(schema[input_.watermark.column])
    max_future = F.make_dt_interval(secs=F.lit(input_.watermark.max_future_duration.seconds))
    return F.coalesce(event_time > F.col("timestamp") + max_future, F.lit(False))


def _reason(input_: Input, schema: T.StructType) -> Column:
    text = F.col("value").cast("string")
    reasons = F.when(F.col("value").isNull(), "null_value")
    for condition, reason in _reasons(input_, schema, text):
        reasons = reasons.when(F.coalesce(condition, F.lit(False)), reason)
    return reasons.otherwise("malformed_json")


def _reasons(input_: Input, schema: T.StructType, text: Column) -> Iterator[tuple[Column, str]]:
    yield F.octet_length("value") > input_.max_bytes, "too_large"
    if input_.key_required:
        yield F.col("key").isNull(), "null_key"
    parsed = F.from_json(_wrapped_payload(), _wrapper_schema(T.MapType(T.StringType(), T.StringType())), _JSON)
    fields, is_complete = parsed.getField(_PAYLOAD), parsed.getField(_END).isNotNull()
    yield ~F.is_valid_utf8(text) | ~_is_object(text) | fields.isNull() | ~is_complete, "malformed_json"
    present = {field.name: F.try_element_at(fields, F.lit(field.name)).isNotNull() for field in schema}
    for field in schema:
        if not field.nullable:
            yield ~present[field.name], f"missing:{field.name}"
    for field in schema:
        yield present[field.name] & _field(field).isNull(), f"wrong_type:{field.name}"
    yield _in_future(input_, schema), "event_time_in_future"
