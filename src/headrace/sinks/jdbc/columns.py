"""Map Spark columns to Postgres columns: their types, and how values are staged.

| Spark                            | type in a new table        | an existing column may be            |
|----------------------------------|----------------------------|--------------------------------------|
| string                           | text                       | text, varchar, uuid, jsonb           |
| byte, short                      | smallint                   | or wider, or numeric                 |
| int                              | integer                    | or bigint, or numeric                |
| long                             | bigint                     | or numeric                           |
| decimal(p, s)                    | numeric(p, s)              | or wider, or numeric                 |
| float                            | real                       | or double precision                  |
| double                           | double precision           |                                      |
| boolean                          | boolean                    |                                      |
| binary                           | bytea                      |                                      |
| date                             | date                       |                                      |
| timestamp                        | timestamp with time zone   |                                      |
| timestamp_ntz                    | timestamp without time zone |                                     |
| array, map, struct               | jsonb                      |                                      |

Timestamps and dates are staged as numbers since 1970: the JDBC driver would apply the time zone of its machine and its
own calendar. Every other type is rejected (HR-218).
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column as Expression, DataFrame, functions as F, types as T

from headrace.clients.sql import column_named
from headrace.errors import FlowError
from headrace.sinks.jdbc.table import LONGEST_NAME_BYTES, JdbcColumn

# Precedes the column name in the error with which Spark fails the batch.
NUL = "headrace found the character NUL in column "

_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'", "ignoreNullFields": "false"}
_MICROSECONDS = "to_timestamp({staged} / 1000000) + mod({staged}, 1000000) * interval '1 microsecond'"


@dataclass(frozen=True)
class _TypeMapping:
    """How values of one Spark type are written: see `JdbcColumn`. `write` converts a value to its staged form."""

    type: str
    or_else: str = ""
    staged: str = ""
    value: str = "{staged}"
    write: Callable[[Expression], Expression] = lambda value: value

    def column(self, name: str) -> JdbcColumn:
        fits = f"{self.type}|{self.or_else}" if self.or_else else self.type
        return JdbcColumn(name, self.type, fits, self.staged or self.type, self.value)


_JSONB = _TypeMapping("jsonb", staged="text", write=lambda value: F.to_json(value, _JSON))
_SMALL = _TypeMapping("smallint", "integer|bigint|numeric", write=lambda value: value.cast("short"))

_MAPPINGS: dict[type[T.DataType], _TypeMapping] = {
    T.StringType: _TypeMapping("text", r"character varying(\(\d+\))?|uuid|jsonb"),
    T.ByteType: _SMALL,
    T.ShortType: _SMALL,
    T.IntegerType: _TypeMapping("integer", "bigint|numeric"),
    T.LongType: _TypeMapping("bigint", "numeric"),
    T.FloatType: _TypeMapping("real", "double precision"),
    T.DoubleType: _TypeMapping("double precision"),
    T.BooleanType: _TypeMapping("boolean"),
    T.BinaryType: _TypeMapping("bytea"),
    T.DateType: _TypeMapping("date", "", "integer", "date '1970-01-01' + {staged}", F.unix_date),
    T.TimestampType: _TypeMapping(
        "timestamp with time zone", r"timestamp\(6\) with time zone", "bigint", _MICROSECONDS, F.unix_micros
    ),
    # Flows run with session time zone UTC, so the value does not shift.
    T.TimestampNTZType: _TypeMapping(
        "timestamp without time zone",
        r"timestamp\(6\) without time zone",
        "bigint",
        f"({_MICROSECONDS}) AT TIME ZONE 'UTC'",
        lambda value: F.unix_micros(value.cast("timestamp")),
    ),
    T.ArrayType: _JSONB,
    T.MapType: _JSONB,
    T.StructType: _JSONB,
}


def jdbc_columns(rows: DataFrame) -> list[JdbcColumn]:
    """Return the columns of rows, in order; raise FlowError for a type or a name that Postgres does not support."""
    return [_mapping(field).column(field.name) for field in rows.schema.fields]


def to_staged_rows(rows: DataFrame, task: str) -> DataFrame:
    """Return the rows in staged form: columns `c0`, `c1` and so on, and in `task` the task that computed a row."""
    staged = []
    for number, field in enumerate(rows.schema.fields):
        staged_value = _mapping(field).write(column_named(field.name))
        if isinstance(field.dataType, T.StringType):
            # Postgres would reject such a string too, without naming the column.
            nul_error = F.raise_error(F.lit(f"{NUL}<{field.name}>"))
            staged_value = F.when(staged_value.contains("\0"), nul_error).otherwise(staged_value)
        staged.append(staged_value.alias(f"c{number}"))
    return rows.select(*staged, F.spark_partition_id().alias(task))


def _mapping(field: T.StructField) -> _TypeMapping:
    data_type = field.dataType
    if not field.name or "\0" in field.name or len(field.name.encode()) > LONGEST_NAME_BYTES:
        raise _unsupported_column(field.name, f"Names of columns have 1 to {LONGEST_NAME_BYTES} bytes in Postgres.")
    if isinstance(data_type, T.DecimalType):
        return _TypeMapping(f"numeric({data_type.precision},{data_type.scale})", "numeric")
    for spark_type, mapping in _MAPPINGS.items():
        if isinstance(data_type, spark_type):
            return mapping
    raise _unsupported_column(field.name, f"Its type is {data_type.simpleString()}, for which Postgres has none.")


def _unsupported_column(name: str, why: str) -> FlowError:
    return FlowError(
        f"Column '{name}' cannot be written to Postgres.",
        why=why,
        state="Nothing was written.",
        remedy="Rename, cast or leave out the column in the transform.",
        code="HR-218",
    )
