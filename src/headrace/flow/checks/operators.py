"""The kinds of operators in a query plan that decide which output modes and triggers a flow supports.

They are read from the query plan of the transform (`headrace.spark_plan.operators`).
`matrix` says which operator supports which output mode and trigger.
"""

from dataclasses import dataclass
from enum import StrEnum


class OperatorKind(StrEnum):
    """The kind of an operator. The value is its name in messages and documentation.

    State is bounded if the operator has a watermark column where Spark looks for it.
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

    # Deduplication.
    DEDUP = "dropDuplicates with the event time"
    DEDUP_UNBOUNDED = "dropDuplicates without event time, distinct"
    DEDUP_WITHIN = "dropDuplicatesWithinWatermark"
    DEDUP_WITHIN_UNBOUNDED = "dropDuplicatesWithinWatermark without watermark"

    # Joins.
    INNER_JOIN = "inner join of streams, with watermark and time bound"
    INNER_JOIN_HALF_BOUNDED = "inner join of streams, one side without end"
    INNER_JOIN_UNBOUNDED = "inner join of streams, state without end"
    SEMI_JOIN = "semi join of streams, with watermark and time bound"
    SEMI_JOIN_HALF_BOUNDED = "semi join of streams, its right side without end"
    SEMI_JOIN_UNBOUNDED = "semi join of streams, state without end"
    OUTER_JOIN = "outer join of streams, with watermark and time bound"
    OUTER_JOIN_HALF_BOUNDED = "left or right outer join of streams, the other side without end"
    FULL_JOIN_HALF_BOUNDED = "full outer join of streams, one side without end"
    OUTER_JOIN_UNBOUNDED = "outer join of streams, state without end"
    ANTI_JOIN = "anti join of streams"
    KEYLESS_JOIN = "join of streams without an equal key"
    OUTER_STATIC_JOIN = "outer join that keeps the rows of a static table"

    # Custom state.
    CUSTOM_STATE = "transformWithState"
    CUSTOM_TIMERS_WITHOUT_WATERMARK = "transformWithState with event time, without watermark"
    PANDAS_STATE_APPEND = "applyInPandasWithState in append mode"
    PANDAS_STATE_UPDATE = "applyInPandasWithState in update mode"
    PANDAS_STATE_WITHOUT_WATERMARK = "applyInPandasWithState with event-time timeout, without watermark"
    PANDAS_STATE_TWICE = "applyInPandasWithState twice"
    PANDAS_STATE_AFTER_AGGREGATE = "applyInPandasWithState after an aggregation"
    PANDAS_UPDATES_AGGREGATED = "aggregation after applyInPandasWithState in update mode"

    # Chained stateful operators.
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
    """One operator of a query plan. `detail` is its name in Spark, or its columns, for messages.

    `unbounded_inputs` names the inputs whose rows a join never evicts, if known.
    """

    kind: OperatorKind
    detail: str = ""
    unbounded_inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class QueryPlan:
    """The operators of a flow, read from its query plan.

    `unsupported_operation_message` is Spark's message if Spark refuses the plan.
    """

    operators: tuple[Operator, ...]
    unsupported_operation_message: str | None = None


@dataclass(frozen=True)
class UnknownPlan:
    """Why the query plan of a flow is unknown. `is_transform_error` if the transform itself fails."""

    why: str
    is_transform_error: bool = False


# Complete mode writes the complete result, so it needs one of these.
AGGREGATIONS = frozenset(
    {
        OperatorKind.AGGREGATE,
        OperatorKind.AGGREGATE_UNBOUNDED,
        OperatorKind.SESSION,
        OperatorKind.SESSION_UNBOUNDED,
        OperatorKind.DISTINCT_AGGREGATE,
        OperatorKind.PANDAS_AGGREGATE,
    }
)
