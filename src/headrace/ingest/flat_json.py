"""Flat JSON objects read by a class of our own in the JVM, at less than half the cost of `from_json`.

`FlatJson` (jvm/FlatJson.java) reads a record only where nothing about it is in doubt, and gives null for every other
one. Null is no verdict: such a record goes the long way through `from_json`, which decides. So verdicts and rows are
those of the long way, and the tests compare the two on whatever they can think of.

The class comes in `jvm/flat-json.jar`, which every session of Headrace loads. `make jar` builds it from the source; a
test fails when the two do not belong together. A session that does not have the class reads the long way.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
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

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# What a field holds, as FlatJson numbers it.
_KINDS: dict[type[DataType], int] = {
    StringType: 0,
    BooleanType: 1,
    ByteType: 2,
    ShortType: 3,
    IntegerType: 4,
    LongType: 5,
    DoubleType: 6,
    DecimalType: 7,
    TimestampType: 8,
    DateType: 9,
}

# A long holds eighteen digits for sure.
_MOST_DIGITS = 18

# Jackson has limits of its own far above this.
_MOST_BYTES = 16 * 1024 * 1024

# In a name these would be written with escapes.
_NOT_PLAIN = re.compile(r'["\\\x00-\x1f]')


def flat_json_jar() -> Path:
    """Return the jar that holds the class. Sessions load it at their start."""
    return Path(str(resources.files("headrace.ingest").joinpath("jvm", "flat-json.jar")))


def read_flat(raw: DataFrame, given: Input) -> Column | None:
    """Return the fields of a payload as a struct, null where in doubt; None when all of it has to go the long way."""
    schema = given.schema
    if schema is None or not all(_is_plain(field) for field in schema):
        return None
    jvm: Any = raw.sparkSession._jvm
    found = jvm.io.headrace.json.FlatJson
    # The bridge takes a class that is not there for a package.
    if not isinstance(found, JavaClass):
        return None
    return _invoked(raw, found(_described(schema), min(given.max_bytes, _MOST_BYTES)), schema)


def _is_plain(field: StructField) -> bool:
    kind = field.dataType
    if isinstance(kind, DecimalType) and kind.precision > _MOST_DIGITS:
        return False
    # A text with a collation or a length is a class or a value of its own.
    plain = kind == StringType() if isinstance(kind, StringType) else type(kind) in _KINDS
    return plain and not _NOT_PLAIN.search(field.name)


def _described(schema: StructType) -> str:
    return "\n".join(
        "\t".join(
            (
                str(_KINDS[type(field.dataType)]),
                *_digits(field.dataType),
                "0" if field.nullable else "1",
                field.name,
            )
        )
        for field in schema
    )


def _digits(kind: DataType) -> tuple[str, str]:
    return (str(kind.precision), str(kind.scale)) if isinstance(kind, DecimalType) else ("0", "0")


def _invoked(raw: DataFrame, reader: Any, schema: StructType) -> Column:
    """Return the call of the reader as a column. Spark compiles it into its own code, like a function it knows."""
    from pyspark.sql.classic.column import Column as ClassicColumn  # noqa: PLC0415 - needs a JVM
    from pyspark.sql.classic.column import _to_seq  # noqa: PLC0415

    spark = raw.sparkSession
    jvm: Any = spark._jvm
    expressions, utils = jvm.org.apache.spark.sql.catalyst.expressions, jvm.org.apache.spark.sql.classic.ExpressionUtils
    nullable = StructType([StructField(field.name, field.dataType) for field in schema])
    literal = expressions.Literal.fromObject(reader, jvm.org.apache.spark.sql.types.ObjectType(reader.getClass()))
    call = expressions.objects.Invoke(
        literal,
        "read",
        spark._jsparkSession.parseDataType(nullable.json()),
        _to_seq(spark.sparkContext, [utils.expression(raw["value"]._jc)]),
        _to_seq(spark.sparkContext, []),
        True,  # null without a value
        True,  # may return null
        True,  # the same for the same bytes
    )
    return ClassicColumn(utils.column(call))
