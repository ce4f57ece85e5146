"""Declare the schema of a topic."""

from pyspark.sql.types import DataType, StructField, StructType


def required(**columns: DataType) -> StructType:
    """Return a schema of required columns. A record without one of them goes to quarantine."""
    return StructType([StructField(name, kind, nullable=False) for name, kind in columns.items()])
