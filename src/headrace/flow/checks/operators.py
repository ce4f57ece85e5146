"""The kinds of operators that a flow can be made of, as far as they decide what may run.

A transform says nothing about them by itself: they are read from its plan (`headrace.spark_plan.operators`).
`matrix` says which of them go with which output mode and which trigger.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """One kind of operator; the value is how messages and the documentation name it.

    `bounded` means that its state ends: it holds the column of a watermark where Spark looks for it.
    """

    # Without state.
    PROJECTION = "columns and filters"
    EXPLODE = "explode"
    UNION = "union of streams"
    READ_TWICE = "an input that is read twice"
    PYTHON = "Python, pandas or Arrow function of columns"
    PYTHON_MAP = "mapInPandas, mapInArrow"
    GROUPED_PYTHON = "applyInPandas per group"
    REPARTITION = "repartition, coalesce"
    CURRENT_TIME = "current time"
    STATIC_JOIN = "join with a static table"
    BROADCAST_JOIN = "join with a broadcast static table"
    OTHER = "another operator"

    # Aggregations.
    AGGREGATE = "aggregation by window or event time, with watermark"
    AGGREGATE_UNBOUNDED = "aggregation without a watermark in its keys"
    SESSION = "session window, with watermark"
    SESSION_UNBOUNDED = "session window without watermark"
    DISTINCT_AGGREGATE = "countDistinct"
    PANDAS_AGGREGATE = "aggregation by a pandas function"

    # Rows that came before.
    DEDUP = "dropDuplicates with the event time"
    DEDUP_UNBOUNDED = "dropDuplicates without event time, distinct"
    DEDUP_WITHIN = "dropDuplicatesWithinWatermark"
    DEDUP_WITHIN_UNBOUNDED = "dropDuplicatesWithinWatermark without watermark"

    # Streams with streams.
    INNER_JOIN = "inner join of streams, with watermark and time bound"
    INNER_JOIN_HALF = "inner join of streams, one side without end"
    INNER_JOIN_UNBOUNDED = "inner join of streams, state without end"
    SEMI_JOIN = "semi join of streams, with watermark and time bound"
    SEMI_JOIN_HALF = "semi join of streams, its right side without end"
    SEMI_JOIN_UNBOUNDED = "semi join of streams, state without end"
    OUTER_JOIN = "outer join of streams, with watermark and time bound"
    OUTER_JOIN_HALF = "left or right outer join of streams, the other side without end"
    FULL_JOIN_HALF = "full outer join of streams, one side without end"
    OUTER_JOIN_UNBOUNDED = "outer join of streams, state without end"
    ANTI_JOIN = "anti join of streams"
    KEYLESS_JOIN = "join of streams without an equal key"
    OUTER_STATIC_JOIN = "outer join that keeps the rows of a static table"

    # State of one's own.
    CUSTOM_STATE = "transformWithState"
    CUSTOM_TIMERS_UNMARKED = "transformWithState with event time, without watermark"
    PANDAS_STATE_APPEND = "applyInPandasWithState in append mode"
    PANDAS_STATE_UPDATE = "applyInPandasWithState in update mode"
    PANDAS_STATE_UNMARKED = "applyInPandasWithState with event-time timeout, without watermark"
    PANDAS_STATE_TWICE = "applyInPandasWithState twice"
    PANDAS_STATE_AFTER_AGGREGATE = "applyInPandasWithState after an aggregation"
    PANDAS_UPDATES_AGGREGATED = "aggregation after applyInPandasWithState in update mode"

    # One after the other.
    STATE_AFTER_AGGREGATE = "state after an aggregation"
    DEDUP_AFTER_AGGREGATE = "dropDuplicates without event time after an aggregation"
    STATE_AFTER_TIMEOUTS = "state after event-time timeouts of applyInPandasWithState"

    # Order and number of rows.
    SORT = "sort of an aggregation"
    SORT_ROWS = "sort of rows"
    LIMIT = "limit"
    OFFSET = "offset"
    SAMPLE = "sample"
    ROW_WINDOW = "window function over rows"
    ROW_NUMBERS = "monotonically_increasing_id"

    # Sets.
    STATIC_UNION = "union with a static table"
    INTERSECT = "intersect"
    EXCEPT = "except, exceptAll"


@dataclass(frozen=True)
class Operator:
    """One operator of a plan. `detail` is what Spark calls it, or what it is about, for a message.

    `endless` names the inputs whose rows a join never lets go of, where they are known.
    """

    kind: Kind
    detail: str = ""
    endless: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What was read from the plan of a flow. `spark_refuses` holds Spark's own words where it would not take it."""

    operators: tuple[Operator, ...]
    spark_refuses: str | None = None


@dataclass(frozen=True)
class Unplanned:
    """Why the plan of a flow is not known. `wrong` when the transform itself is at fault: no start could help."""

    why: str
    wrong: bool = False


# Complete mode hands the whole result on, so one of these has to hold it.
AGGREGATIONS = frozenset(
    {
        Kind.AGGREGATE,
        Kind.AGGREGATE_UNBOUNDED,
        Kind.SESSION,
        Kind.SESSION_UNBOUNDED,
        Kind.DISTINCT_AGGREGATE,
        Kind.PANDAS_AGGREGATE,
    }
)
