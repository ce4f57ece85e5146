"""Exact averages, independent of how rows are split into batches and tasks."""

from pyspark.sql import Column, functions as F


def exact_average(column: Column) -> Column:
    """Return the average of a decimal as decimal(14,6), exact up to the rounding (half up) of the sixth digit.

    Spark computes the average of a decimal with up to eleven digits in doubles, with an error of a millionth for some
    groups. With twelve digits it uses decimals.
    """
    return F.avg(column.cast("decimal(12,2)")).cast("decimal(14,6)")
