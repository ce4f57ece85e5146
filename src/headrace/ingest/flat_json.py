"""Parses flat JSON objects with a Java class, at less than half the cost of `from_json`.

`FlatJson` (jvm/FlatJson.java) parses a record only if the result is certain, and returns null otherwise. Null does not
mean invalid: `from_json` then decides. So the result always equals that of `from_json`; property tests compare the two.

The class is in `jvm/flat-json.jar`, which every session of Headrace loads. `make jar` builds it from the source; a
test fails if they differ. A session without the class uses `from_json`.
"""

import re
from importlib import resources
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaClass
from pyspark.sql import Column, DataFrame, types as T

from headrace.clients.spark.jvm import java_type, jvm_of, to_column, to_expression, to_seq
from headrace.flow.inputs import Input

# The type numbers of FlatJson.
_TYPE_NUMBERS: dict[type[T.DataType], int] = {
    T.StringType: 0,
    T.BooleanType: 1,
    T.ByteType: 2,
    T.ShortType: 3,
    T.IntegerType: 4,
    T.LongType: 5,
    T.DoubleType: 6,
    T.DecimalType: 7,
    T.TimestampType: 8,
    T.DateType: 9,
}

# Every number of eighteen digits fits into a long.
_MAX_DIGITS = 18

# Jackson has limits of its own far above this.
_MAX_BYTES = 16 * 1024 * 1024

# JSON escapes these characters in a name.
_ESCAPED_IN_NAME = re.compile(r'["\\\x00-\x1f]')


def flat_json_jar() -> Path:
    """Return the jar that contains the class. Sessions load it when they start."""
    return Path(str(resources.files("headrace.ingest").joinpath("jvm", "flat-json.jar")))


def read_flat_json(raw: DataFrame, input_: Input) -> Column | None:
    """Return the payload fields as a struct, null if uncertain; None if the schema needs `from_json`."""
    schema = input_.schema
    if schema is None or not all(_is_plain(field) for field in schema):
        return None
    flat_json = jvm_of(raw.sparkSession).io.headrace.json.FlatJson
    # Py4J returns a package for a class that does not exist.
    if not isinstance(flat_json, JavaClass):
        return None
    return _parse_call(raw, flat_json(_describe(schema), min(input_.max_bytes, _MAX_BYTES)), schema)


def _is_plain(field: T.StructField) -> bool:
    data_type = field.dataType
    if isinstance(data_type, T.DecimalType) and data_type.precision > _MAX_DIGITS:
        return False
    # A string with a collation or a length is a different class or value.
    is_plain = data_type == T.StringType() if isinstance(data_type, T.StringType) else type(data_type) in _TYPE_NUMBERS
    return is_plain and not _ESCAPED_IN_NAME.search(field.name)


def _describe(schema: T.StructType) -> str:
    return "\n".join(
        "\t".join(
            (
                str(_TYPE_NUMBERS[type(field.dataType)]),
                *_digits(field.dataType),
                "0" if field.nullable else "1",
                field.name,
            )
        )
        for field in schema
    )


def _digits(data_type: T.DataType) -> tuple[str, str]:
    return (str(data_type.precision), str(data_type.scale)) if isinstance(data_type, T.DecimalType) else ("0", "0")


def _parse_call(raw: DataFrame, parser: Any, schema: T.StructType) -> Column:
    """Return the call of the parser as a column. Spark compiles it like a built-in function."""
    spark = raw.sparkSession
    sql = jvm_of(spark).org.apache.spark.sql
    expressions = sql.catalyst.expressions
    nullable = T.StructType([T.StructField(field.name, field.dataType) for field in schema])
    literal = expressions.Literal.fromObject(parser, sql.types.ObjectType(parser.getClass()))
    call = expressions.objects.Invoke(
        literal,
        "read",
        java_type(spark, nullable),
        to_seq(spark, [to_expression(spark, raw["value"])]),
        to_seq(spark, []),
        True,  # propagate null
        True,  # nullable result
        True,  # deterministic
    )
    return to_column(spark, call)
