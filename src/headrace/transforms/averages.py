"""Averages that come out the same however rows are spread over batches and tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column


def exact_average(column: Column) -> Column:
    """Return the average of a decimal as decimal(14,6): exact but for the rounding, half up, of the sixth digit.

    Spark computes the average of a decimal of up to eleven digits with doubles, and is then off by a millionth for some
    groups. With twelve digits it stays with decimals.
    """
    return F.avg(column.cast("decimal(12,2)")).cast("decimal(14,6)")
