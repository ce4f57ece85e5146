"""Which rows of a batch came too late, exactly.

Spark counts late rows after partial aggregation, so its number is too small, and drops them. Here the rows that reach a
windowed aggregation are computed once more, by the same transform, from the same offsets, and compared with the same
watermark as Spark did: a row is late when its window had ended at or before the watermark of the batch before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

# Spark marks the columns that its window functions make with this key.
_WINDOW_MARK = "spark.timeWindow"

# The name of the window column in what is handed on. Spark calls it `window`, twice where windows follow windows.
_WINDOW = "_headrace_window"


def rows_before_windows(result: DataFrame) -> list[tuple[DataFrame, str]]:
    """Return the rows that go into each windowed aggregation of a result, and the name of the window column."""
    session = result.sparkSession
    jvm = session._jvm
    assert jvm is not None  # noqa: S101 - a classic session always has its JVM
    found = []
    for aggregate in _aggregates(result._jdf.queryExecution().analyzed()):
        grouping = aggregate.groupingExpressions()
        for index in range(grouping.size()):
            key = grouping.apply(index)
            if key.toAttribute().metadata().contains(_WINDOW_MARK):
                frame = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, aggregate.child())
                found.append((_named(DataFrame(frame, session), aggregate.child(), key), _WINDOW))
    return found


def _named(rows: DataFrame, plan: JavaObject, key: JavaObject) -> DataFrame:
    """Give the column that a grouping key stands for a name of its own."""
    output = plan.output()
    same = [output.apply(index).exprId().equals(key.exprId()) for index in range(output.size())]
    return rows.toDF(*(_WINDOW if is_key else name for is_key, name in zip(same, rows.columns, strict=True)))


def late(rows: DataFrame, window: str, watermark_ms: int) -> DataFrame:
    """Return the rows whose window had closed, as the late ledger keeps them."""
    watermark = F.timestamp_millis(F.lit(watermark_ms))
    end = F.col(f"`{window}`.end")
    return rows.where(end <= watermark).select(
        F.to_json(F.struct(*_others(rows, window))).alias("row"),
        F.col(f"`{window}`.start").alias("window_start"),
        end.alias("window_end"),
        watermark.alias("watermark"),
    )


def _others(rows: DataFrame, window: str) -> list[Column]:
    return [F.col(f"`{name}`") for name in rows.columns if name != window]


def _aggregates(plan: JavaObject) -> Iterator[JavaObject]:
    if plan.getClass().getSimpleName() == "Aggregate":
        yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _aggregates(children.apply(index))
