"""Names and values in the text of SQL: the only module that quotes them. Spark, MySQL and MariaDB quote names alike."""

from datetime import UTC, datetime

from pyspark.sql import Column, functions as F


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
