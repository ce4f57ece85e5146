"""Rows of Spark as columns of Postgres: the type of each, and the form in which it travels.

| Spark                            | a table that is made       | an existing column may be            |
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

Times and dates travel as numbers since 1970: the Java driver would bring the zone of its machine and a calendar of its
own into them. Everything else is refused (HR-218).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.errors import FlowError
from headrace.sinks.jdbc.table import LONGEST_NAME_BYTES, Column

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

# In front of the name of the column, in the error with which Spark ends the batch.
NUL = "headrace found the character NUL in column "

_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'", "ignoreNullFields": "false"}
_MICROSECONDS = "to_timestamp({staged} / 1000000) + mod({staged}, 1000000) * interval '1 microsecond'"


@dataclass(frozen=True)
class _Form:
    """How values of one Spark type are written: see `Column`. `write` makes the staged value of the one in the rows."""

    type: str
    or_else: str = ""
    staged: str = ""
    value: str = "{staged}"
    write: Callable[[Expression], Expression] = lambda given: given

    def column(self, name: str) -> Column:
        fits = f"{self.type}|{self.or_else}" if self.or_else else self.type
        return Column(name, self.type, fits, self.staged or self.type, self.value)


_JSONB = _Form("jsonb", staged="text", write=lambda given: F.to_json(given, _JSON))
_SMALL = _Form("smallint", "integer|bigint|numeric", write=lambda given: given.cast("short"))

_FORMS: dict[type[T.DataType], _Form] = {
    T.StringType: _Form("text", r"character varying(\(\d+\))?|uuid|jsonb"),
    T.ByteType: _SMALL,
    T.ShortType: _SMALL,
    T.IntegerType: _Form("integer", "bigint|numeric"),
    T.LongType: _Form("bigint", "numeric"),
    T.FloatType: _Form("real", "double precision"),
    T.DoubleType: _Form("double precision"),
    T.BooleanType: _Form("boolean"),
    T.BinaryType: _Form("bytea"),
    T.DateType: _Form("date", "", "integer", "date '1970-01-01' + {staged}", F.unix_date),
    T.TimestampType: _Form(
        "timestamp with time zone", r"timestamp\(6\) with time zone", "bigint", _MICROSECONDS, F.unix_micros
    ),
    # Sessions of flows are in UTC: written as in UTC and read as in UTC, no zone comes between.
    T.TimestampNTZType: _Form(
        "timestamp without time zone",
        r"timestamp\(6\) without time zone",
        "bigint",
        f"({_MICROSECONDS}) AT TIME ZONE 'UTC'",
        lambda given: F.unix_micros(given.cast("timestamp")),
    ),
    T.ArrayType: _JSONB,
    T.MapType: _JSONB,
    T.StructType: _JSONB,
}


def as_columns(rows: DataFrame) -> list[Column]:
    """Return the columns of rows, in order; raise FlowError for a type or a name that has no place in Postgres."""
    return [_form(field).column(field.name) for field in rows.schema.fields]


def as_staged(rows: DataFrame, task: str) -> DataFrame:
    """Return the rows as they travel: columns `c0`, `c1` and so on, and in `task` the task that computed a row."""
    staged = []
    for number, field in enumerate(rows.schema.fields):
        written = _form(field).write(F.col("`" + field.name.replace("`", "``") + "`"))
        if isinstance(field.dataType, T.StringType):
            # Postgres would refuse such a text too, and not say in which column.
            found = F.raise_error(F.lit(f"{NUL}<{field.name}>"))
            written = F.when(written.contains("\0"), found).otherwise(written)
        staged.append(written.alias(f"c{number}"))
    return rows.select(*staged, F.spark_partition_id().alias(task))


def _form(field: T.StructField) -> _Form:
    given = field.dataType
    if not field.name or "\0" in field.name or len(field.name.encode()) > LONGEST_NAME_BYTES:
        raise _no_place(field.name, f"Names of columns have 1 to {LONGEST_NAME_BYTES} bytes in Postgres.")
    if isinstance(given, T.DecimalType):
        return _Form(f"numeric({given.precision},{given.scale})", "numeric")
    for kind, form in _FORMS.items():
        if isinstance(given, kind):
            return form
    raise _no_place(field.name, f"Its type is {given.simpleString()}, for which Postgres has none.")


def _no_place(name: str, why: str) -> FlowError:
    return FlowError(
        f"Column '{name}' cannot be written to Postgres.",
        why=why,
        state="Nothing was written.",
        remedy="Rename, cast or leave out the column in the transform.",
        code="HR-218",
    )
