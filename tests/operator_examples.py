"""One streaming frame, and where it helps more, for every kind of operator that the matrix knows.

An example is a function of two streams of the same columns, `id`, `n` and `at`, both with a watermark of one minute on
`at`; `bare` takes it off where the example is about its absence.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType
from pyspark.sql.window import Window

from headrace.flow.checks.operators import OperatorKind

# The workers of Python have no tests on their path: functions go to them by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROW = StructType(
    [
        StructField("id", StringType()),
        StructField("n", IntegerType()),
        StructField("at", TimestampType(), nullable=False),
    ]
)
HOUR = "l.id = r.id and r.at between l.at and l.at + interval 1 hour"
BOTH = "l.id = r.id and r.at between l.at - interval 1 hour and l.at + interval 1 hour"
# One end of a bound: with the first, rows on the left expire; with the second, rows on the right.
UP_TO = "l.id = r.id and r.at <= l.at + interval 1 hour"
FROM = "l.id = r.id and r.at >= l.at"

Example = Callable[["DataFrame", "DataFrame"], "DataFrame"]


def bare(rows: DataFrame) -> DataFrame:
    """Return the rows without their watermark: the plan below it."""
    session, watermark = rows.sparkSession, rows._jdf.queryExecution().analyzed()
    assert watermark.getClass().getSimpleName() == "EventTimeWatermark"
    frame = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, watermark.child())  # type: ignore[union-attr]
    return DataFrame(frame, session)


def static(rows: DataFrame) -> DataFrame:
    return rows.sparkSession.range(3).select(F.col("id").cast("string").alias("id"), F.lit(7).alias("s"))


def joined(how: str, on: str, marked: bool = True) -> Example:
    def join(left: DataFrame, right: DataFrame) -> DataFrame:
        first, other = (left, right) if marked else (bare(left), bare(right))
        return first.alias("l").join(other.alias("r"), F.expr(on), how).select("l.id" if how != "right" else "r.id")

    return join


class Counting(StatefulProcessor):
    """Counts the rows of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        before = self._count.get()[0] if self._count.exists() else 0
        now = before + sum(len(row) for row in rows)
        self._count.update((now,))
        yield pd.DataFrame({"id": [key[0]], "n": [now]})

    def close(self) -> None: ...


class Alarm(StatefulProcessor):
    """Sets a timer at half past noon for every key, and hands the key on when it rings."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        if any((chunk["n"] == 1).any() for chunk in rows):
            self._handle.registerTimer(1_767_270_600_000)  # 2026-01-01T12:30:00Z
        yield pd.DataFrame({"id": pd.Series([], dtype="str")})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"id": [key[0]]})

    def close(self) -> None: ...


def alarms(rows: DataFrame) -> DataFrame:
    return rows.groupBy("id").transformWithStateInPandas(Alarm(), "id string", "Append", "EventTime")


def custom(mode: str = "None") -> Callable[[DataFrame], DataFrame]:
    return lambda rows: rows.groupBy("id").transformWithStateInPandas(Counting(), "id string, n long", "Append", mode)


def counted(key: Any, rows: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    yield pd.DataFrame({"id": [key[0]], "n": [sum(len(row) for row in rows)]})


def pandas_state(mode: str, timeout: str = "NoTimeout") -> Callable[[DataFrame], DataFrame]:
    return lambda rows: rows.groupBy("id").applyInPandasWithState(counted, "id string, n long", "n long", mode, timeout)


def largest(values: pd.Series) -> float:
    return float(values.max())


def by_window(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("at", "1 minute"), "id").count()


def by_session(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.session_window("at", "1 minute"), "id").count()


def by_id(rows: DataFrame) -> DataFrame:
    return rows.groupBy("id").count()


EXAMPLES: dict[OperatorKind, Example] = {
    OperatorKind.PROJECTION: lambda rows, _: rows.where("n > 0").select("id"),
    OperatorKind.EXPLODE: lambda rows, _: rows.select(F.explode(F.split("id", ""))),
    OperatorKind.UNION: lambda rows, other: rows.union(other),
    OperatorKind.READ_TWICE: lambda rows, _: rows.union(rows).union(rows),
    OperatorKind.PYTHON: lambda rows, _: rows.select(F.udf(str.upper, "string")("id")),
    OperatorKind.PYTHON_MAP: lambda rows, _: rows.mapInPandas(lambda chunks: chunks, ROW),
    OperatorKind.GROUPED_PYTHON: lambda rows, _: rows.groupBy("id").applyInPandas(lambda group: group, ROW),
    OperatorKind.REPARTITION: lambda rows, _: rows.repartition(1),
    OperatorKind.CURRENT_TIME: lambda rows, _: rows.select(F.current_timestamp()),
    OperatorKind.STATIC_JOIN: lambda rows, _: rows.join(static(rows), "id", "left"),
    OperatorKind.BROADCAST_JOIN: lambda rows, _: rows.join(F.broadcast(static(rows)), "id"),
    OperatorKind.AGGREGATE: lambda rows, _: by_window(rows),
    OperatorKind.AGGREGATE_UNBOUNDED: lambda rows, _: by_id(rows),
    OperatorKind.SESSION: lambda rows, _: by_session(rows),
    OperatorKind.SESSION_UNBOUNDED: lambda rows, _: by_session(bare(rows)),
    OperatorKind.DISTINCT_AGGREGATE: lambda rows, _: rows.groupBy(F.window("at", "1 minute")).agg(
        F.countDistinct("id")
    ),
    OperatorKind.PANDAS_AGGREGATE: lambda rows, _: rows.groupBy(F.window("at", "1 minute")).agg(
        F.pandas_udf(largest, "double")("n")
    ),
    OperatorKind.DEDUP: lambda rows, _: rows.dropDuplicates(["id", "at"]),
    OperatorKind.DEDUP_UNBOUNDED: lambda rows, _: rows.select("id").distinct(),
    OperatorKind.DEDUP_WITHIN: lambda rows, _: rows.dropDuplicatesWithinWatermark(["id"]),
    OperatorKind.DEDUP_WITHIN_UNBOUNDED: lambda rows, _: bare(rows).dropDuplicatesWithinWatermark(["id"]),
    OperatorKind.INNER_JOIN: joined("inner", BOTH),
    OperatorKind.INNER_JOIN_HALF_BOUNDED: joined("inner", UP_TO),
    OperatorKind.INNER_JOIN_UNBOUNDED: joined("inner", "l.id = r.id"),
    OperatorKind.SEMI_JOIN: joined("left_semi", BOTH),
    OperatorKind.SEMI_JOIN_HALF_BOUNDED: joined("left_semi", UP_TO),
    OperatorKind.SEMI_JOIN_UNBOUNDED: joined("left_semi", BOTH, marked=False),
    OperatorKind.OUTER_JOIN: joined("left", HOUR),
    OperatorKind.OUTER_JOIN_HALF_BOUNDED: joined("left", UP_TO),
    OperatorKind.FULL_JOIN_HALF_BOUNDED: joined("full", UP_TO),
    OperatorKind.OUTER_JOIN_UNBOUNDED: joined("full", "l.id = r.id"),
    OperatorKind.ANTI_JOIN: joined("left_anti", BOTH),
    OperatorKind.KEYLESS_JOIN: joined("inner", "r.at between l.at and l.at + interval 1 hour"),
    OperatorKind.OUTER_STATIC_JOIN: lambda rows, _: rows.join(static(rows), "id", "right"),
    OperatorKind.CUSTOM_STATE: lambda rows, _: custom()(rows),
    OperatorKind.CUSTOM_TIMERS_WITHOUT_WATERMARK: lambda rows, _: custom("EventTime")(bare(rows)),
    OperatorKind.PANDAS_STATE_APPEND: lambda rows, _: pandas_state("append")(rows),
    OperatorKind.PANDAS_STATE_UPDATE: lambda rows, _: pandas_state("update")(rows),
    OperatorKind.PANDAS_STATE_WITHOUT_WATERMARK: lambda rows, _: pandas_state("append", "EventTimeTimeout")(bare(rows)),
    OperatorKind.PANDAS_STATE_TWICE: lambda rows, _: pandas_state("append")(pandas_state("append")(rows)),
    OperatorKind.PANDAS_STATE_AFTER_AGGREGATE: lambda rows, _: pandas_state("append")(
        by_window(rows).select("id", "count")
    ),
    OperatorKind.PANDAS_UPDATES_AGGREGATED: lambda rows, _: by_id(pandas_state("update")(rows)),
    OperatorKind.STATE_AFTER_AGGREGATE: lambda rows, _: (
        by_window(rows).groupBy(F.window(F.window_time("window"), "5 minutes")).count()
    ),
    OperatorKind.DEDUP_AFTER_AGGREGATE: lambda rows, _: by_window(rows).dropDuplicates(["id"]),
    OperatorKind.STATE_AFTER_TIMEOUTS: lambda rows, _: by_id(pandas_state("append", "EventTimeTimeout")(rows)),
    OperatorKind.SORT: lambda rows, _: by_id(rows).orderBy("count"),
    OperatorKind.SORT_ROWS: lambda rows, _: rows.orderBy("n"),
    OperatorKind.LIMIT: lambda rows, _: rows.limit(2),
    OperatorKind.OFFSET: lambda rows, _: rows.offset(1),
    OperatorKind.SAMPLE: lambda rows, _: rows.sample(0.5),
    OperatorKind.ROW_WINDOW: lambda rows, _: rows.withColumn(
        "r", F.row_number().over(Window.partitionBy("id").orderBy("at"))
    ),
    OperatorKind.ROW_NUMBERS: lambda rows, _: rows.withColumn("r", F.monotonically_increasing_id()),
    OperatorKind.STATIC_UNION: lambda rows, _: rows.select("id").union(static(rows).select("id")),
    OperatorKind.INTERSECT: lambda rows, _: rows.select("id").intersect(static(rows).select("id")),
    OperatorKind.EXCEPT: lambda rows, _: rows.select("id").exceptAll(static(rows).select("id")),
}

# Every join by every bound: what it is, and the sides whose rows never expire.
BOUNDS = {"both": HOUR, "up to": UP_TO, "from": FROM, "none": "l.id = r.id"}
JOINS: dict[tuple[str, str], tuple[OperatorKind, set[str]]] = {
    ("inner", "both"): (OperatorKind.INNER_JOIN, set()),
    ("inner", "up to"): (OperatorKind.INNER_JOIN_HALF_BOUNDED, {"right"}),
    ("inner", "from"): (OperatorKind.INNER_JOIN_HALF_BOUNDED, {"left"}),
    ("inner", "none"): (OperatorKind.INNER_JOIN_UNBOUNDED, {"left", "right"}),
    ("left_semi", "both"): (OperatorKind.SEMI_JOIN, set()),
    ("left_semi", "up to"): (OperatorKind.SEMI_JOIN_HALF_BOUNDED, {"right"}),
    ("left_semi", "from"): (OperatorKind.SEMI_JOIN_UNBOUNDED, {"left"}),
    ("left_semi", "none"): (OperatorKind.SEMI_JOIN_UNBOUNDED, {"left", "right"}),
    ("left", "both"): (OperatorKind.OUTER_JOIN, set()),
    ("left", "up to"): (OperatorKind.OUTER_JOIN_HALF_BOUNDED, {"right"}),
    ("left", "from"): (OperatorKind.OUTER_JOIN_UNBOUNDED, {"left"}),
    ("left", "none"): (OperatorKind.OUTER_JOIN_UNBOUNDED, {"left", "right"}),
    ("right", "both"): (OperatorKind.OUTER_JOIN, set()),
    ("right", "up to"): (OperatorKind.OUTER_JOIN_UNBOUNDED, {"right"}),
    ("right", "from"): (OperatorKind.OUTER_JOIN_HALF_BOUNDED, {"left"}),
    ("right", "none"): (OperatorKind.OUTER_JOIN_UNBOUNDED, {"left", "right"}),
    ("full", "both"): (OperatorKind.OUTER_JOIN, set()),
    ("full", "up to"): (OperatorKind.FULL_JOIN_HALF_BOUNDED, {"right"}),
    ("full", "from"): (OperatorKind.FULL_JOIN_HALF_BOUNDED, {"left"}),
    ("full", "none"): (OperatorKind.OUTER_JOIN_UNBOUNDED, {"left", "right"}),
}

# Operators before an aggregation, as complete mode wants one: the matrix says of them that they need it.
AGGREGATED: dict[OperatorKind, Example] = {
    OperatorKind.PROJECTION: lambda rows, _: by_id(rows.where("n > 0")),
    OperatorKind.EXPLODE: lambda rows, _: by_id(rows.select(F.explode(F.split("id", "")).alias("id"))),
    OperatorKind.UNION: lambda rows, other: by_id(rows.union(other)),
    OperatorKind.READ_TWICE: lambda rows, _: by_id(rows.union(rows).union(rows)),
    OperatorKind.PYTHON: lambda rows, _: by_id(rows.select(F.udf(str.upper, "string")("id").alias("id"))),
    OperatorKind.PYTHON_MAP: lambda rows, _: by_id(rows.mapInPandas(lambda chunks: chunks, ROW)),
    OperatorKind.GROUPED_PYTHON: lambda rows, _: by_id(rows.groupBy("id").applyInPandas(lambda group: group, ROW)),
    OperatorKind.REPARTITION: lambda rows, _: by_id(rows.repartition(1)),
    OperatorKind.CURRENT_TIME: lambda rows, _: by_id(rows.withColumn("now", F.current_timestamp()).where("now > at")),
    OperatorKind.STATIC_JOIN: lambda rows, _: by_id(rows.join(static(rows), "id", "left")),
    OperatorKind.BROADCAST_JOIN: lambda rows, _: by_id(rows.join(F.broadcast(static(rows)), "id")),
    OperatorKind.DEDUP: lambda rows, _: by_id(rows.dropDuplicates(["id", "at"])),
    OperatorKind.DEDUP_UNBOUNDED: lambda rows, _: by_id(rows.dropDuplicates(["id"])),
    OperatorKind.DEDUP_WITHIN: lambda rows, _: by_id(rows.dropDuplicatesWithinWatermark(["id"])),
    OperatorKind.CUSTOM_STATE: lambda rows, _: by_id(custom()(rows)),
    OperatorKind.PANDAS_STATE_APPEND: lambda rows, _: by_id(pandas_state("append")(rows)),
    OperatorKind.LIMIT: lambda rows, _: by_id(rows.limit(2)),
}
