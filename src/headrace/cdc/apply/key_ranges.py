"""Compute the key ranges of a batch, so that Delta skips the files that contain none of its keys.

The ranges contain every key of the batch. The driver computes them from the minimum and maximum key of up to 64
buckets, and excludes the widest gaps between the buckets.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import reduce
from itertools import pairwise
from operator import and_, or_

from pyspark.sql import Column, DataFrame, functions as F, types as T

from headrace.cdc.apply.table import struct_fields
from headrace.clients.sql import quote_name, typed_literal

Value = int | Decimal | str | dt.date
Range = tuple[Value, Value]

_NUMBERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DecimalType)
_ORDERED = (*_NUMBERS, T.StringType, T.DateType)
# 64 buckets detect gaps of a sixty-fourth of the key span. A condition with 12 ranges is planned quickly.
_BUCKETS, _RANGES = 64, 12
# If a batch has at least a quarter of the keys in its span, they count as one range.
_SPREAD = 4


def ordered_key_columns(rows: DataFrame) -> list[str]:
    """Return the columns of `_key` whose values can be used to skip files."""
    return [field.name for field in struct_fields(rows, "_key") if isinstance(field.dataType, _ORDERED)]


def key_column_ranges(rows: DataFrame, spans: Mapping[str, Range], keys: int) -> dict[str, list[Range]]:
    """Return the ranges of each column of `_key` that has an order. The first column can have several ranges.

    Runs one job over checkpointed rows if the first column is a number and its values are far apart.
    """
    ranges = {name: [span] for name, span in spans.items()}
    key = struct_fields(rows, "_key")
    first = key.names[0]
    if first not in spans or not isinstance(key[first].dataType, _NUMBERS):
        return ranges
    least, greatest = spans[first]
    # Keys that are close together have no gap worth a job.
    if Decimal(str(greatest)) - Decimal(str(least)) > _SPREAD * keys:
        ranges[first] = merge_ranges(_buckets(rows, F.col("_key")[first], least, greatest))
    return ranges


def key_range_condition(ranges: dict[str, list[Range]], table: str) -> Column:
    """Return the condition that a row may have a key of the batch. `table` is the alias of the table."""
    conditions = [
        reduce(
            or_,
            (
                F.col(f"{table}.{quote_name(name)}").between(_literal(low), _literal(high))
                for low, high in column_ranges
            ),
        )
        for name, column_ranges in ranges.items()
    ]
    return reduce(and_, conditions, F.lit(True))


def _literal(value: Value) -> Column:
    # PySpark passes a date to Java as text, without the leading zeros of a year before 1000.
    return F.expr(typed_literal(value, T.DateType())) if isinstance(value, dt.date) else F.lit(value)


def merge_ranges(buckets: Sequence[Range], most: int = _RANGES) -> list[Range]:
    """Merge neighbouring ranges until `most` are left. The widest gaps remain."""
    ordered_buckets = sorted(buckets)
    starts = range(1, len(ordered_buckets))
    gaps = sorted(starts, key=lambda at: ordered_buckets[at][0] - ordered_buckets[at - 1][1], reverse=True)  # type: ignore[operator]
    edges = [0, *sorted(gaps[: most - 1]), len(ordered_buckets)]
    return [(ordered_buckets[start][0], ordered_buckets[end - 1][1]) for start, end in pairwise(edges)]


def _buckets(rows: DataFrame, column: Column, least: Value, greatest: Value) -> list[Range]:
    low, high = Decimal(str(least)), Decimal(str(greatest))
    bucket = F.floor((column.cast("double") - float(low)) / float(high - low) * _BUCKETS)
    bounds = rows.where(column.isNotNull()).groupBy(bucket).agg(F.min(column).alias("low"), F.max(column).alias("high"))
    return [(row.low, row.high) for row in bounds.collect()]
