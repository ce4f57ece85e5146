"""Names and values in the text of SQL: the only module that quotes them. Spark, MySQL and MariaDB quote names alike."""

from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Column, functions as F, types as T

_SUFFIXES: dict[type[T.DataType], str] = {T.ByteType: "Y", T.ShortType: "S", T.IntegerType: "", T.LongType: "L"}


def quote_name(name: str) -> str:
    """Return a name quoted with backticks."""
    return "`" + name.replace("`", "``") + "`"


def column_named(name: str) -> Column:
    """Return the column with this name, even if it contains dots or backticks."""
    return F.col(quote_name(name))


def string_literal(value: str) -> str:
    """Return a string as a literal of Spark's SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def timestamp_literal(time: datetime) -> str:
    """Return a time as a literal of Spark's SQL. A time without a zone is local, as Spark returns times."""
    return f"TIMESTAMP '{time.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00:00'"


def typed_literal(value: Any, data_type: T.DataType) -> str:
    """Return a string, an integer, a date or a timestamp as a literal of this type.

    Delta skips files by their statistics for literals of the column's own type only, not for casts.
    """
    match data_type:
        case T.StringType():
            return string_literal(value)
        case T.TimestampType():
            return timestamp_literal(value)
        case T.TimestampNTZType():
            return f"TIMESTAMP_NTZ '{value:%Y-%m-%d %H:%M:%S.%f}'"
        case T.DateType():
            return f"DATE '{value.isoformat()}'"
        case _:
            return f"{value}{_SUFFIXES[type(data_type)]}"
