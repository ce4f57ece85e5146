"""Finds the operators of a plan that drop late rows, and the rows that reach them.

Spark marks a watermark column in its metadata, and passes the mark on with the column, also into windows. Each stateful
operator looks for the mark among its input columns and drops the rows behind the watermark:

| operator                              | columns                        | a row is late if                            |
|---------------------------------------|--------------------------------|---------------------------------------------|
| aggregation (not in complete mode)    | the grouping columns           | window end, or event time, <= watermark     |
| dropDuplicates, also within watermark | every input column             | event time <= watermark                     |
| join of two streams                   | each side separately           | event time, or window end, <= watermark     |
| custom state                          | every input column             | event time, or window end, <= watermark     |

The watermark is that of the previous batch, for every operator that reads inputs only. The output of one operator is
never late for the next: Spark delays the watermark of the next accordingly. The input of the next cannot be computed
from one batch, since it comes from state; if Spark counts drops there, they are reported as unexplained.

Batch DataFrames have no such marks, so `mark_input` sets them as a stream would. The transform itself sees only the
columns that it has in a stream.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from py4j.java_gateway import JavaObject
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from headrace.clients.spark.jvm import analyzed_plan, jvm_of, to_dataframe, to_seq
from headrace.clients.sql import column_named
from headrace.flow.inputs import Input
from headrace.flow.levers import OutputMode
from headrace.spark_plan import tree
from headrace.spark_plan.nodes import GROUP_STATE, NODES

# The internal column that `mark_input` adds: the origin of each row, and its event time.
ORIGIN = "_headrace_at"

# The internal column with topic, partition and offset of a Kafka record.
RECORD_POSITION = "_headrace_position"
_POSITION_FIELDS = {"topic": "string", "partition": "int", "offset": "long"}

# The aliases by which `transforms.keyed` marks, in the plan of a batch, the input rows of custom state. With event time
# a stream drops late rows there.
STATE_INPUT, TIMED_STATE_INPUT = "_headrace_state_input", "_headrace_timed_state_input"

# The alias prefix of an input's DataFrame.
_INPUT = "_headrace_input_"

_STATEFUL_NODES = {
    **{name: node.state for name, node in NODES.items() if node.state is not None},
    **dict.fromkeys((STATE_INPUT, TIMED_STATE_INPUT), "custom state"),
}

# Nodes that output all input columns. Joins and unions are checked afterwards.
_PASS_THROUGH = (
    "Filter",
    "SubqueryAlias",
    "Join",
    "Union",
    "Generate",
    "CollectMetrics",
    "ResolvedHint",
    "Repartition",
    "RepartitionByExpression",
    "Sort",
)


@dataclass(frozen=True)
class LateFilter:
    """An operator input where Spark drops late rows.

    | field    | meaning                                                                                          |
    |----------|--------------------------------------------------------------------------------------------------|
    | number   | the index of the stateful operator in Spark's progress                                           |
    | operator | its description in the late ledger                                                               |
    | rows     | its input rows, with `ORIGIN` if available; None if they come from state                          |
    | column   | the index of the column with the window or event time that is compared                           |
    | window   | whether that column is a window                                                                  |
    """

    number: int
    operator: str
    rows: DataFrame | None
    column: int
    window: bool


@dataclass(frozen=True)
class LateFilters:
    """The late filters of a plan, and its number of stateful operators."""

    operators: int
    filters: tuple[LateFilter, ...]


def mark_input(rows: DataFrame, name: str, input_: Input, columns: Sequence[str]) -> DataFrame:
    """Return the input DataFrame for a transform: `columns` of the rows, with the watermark marked as in a stream.

    The origin of each row stays in the plan, hidden from the transform: `LateFilters` extracts it.
    """
    watermark = input_.watermark
    event_time = F.lit(None) if watermark is None else column_named(watermark.column)
    has_position = RECORD_POSITION in rows.columns
    position = [
        (F.col(RECORD_POSITION).getField(field) if has_position else F.lit(None)).cast(data_type).alias(field)
        for field, data_type in _POSITION_FIELDS.items()
    ]
    origin = F.struct(
        F.lit(name).alias("input"),
        *position,
        # Identifies a row if there are no offsets: a row in several windows is one row.
        (F.concat_ws("/", *position) if has_position else F.monotonically_increasing_id().cast("string")).alias(
            "row_id"
        ),
        event_time.cast("timestamp").alias("event_time"),
    )

    def marked(column: str) -> Column:
        value = column_named(column)
        if watermark is None or column != watermark.column:
            return value
        return value.alias(column, metadata={tree.WATERMARK_DELAY: round(watermark.duration.seconds * 1000)})

    return rows.withColumn(ORIGIN, origin).select(*(marked(column) for column in columns)).alias(f"{_INPUT}{name}")


def record_position() -> Column:
    """Return the topic, partition and offset of a Kafka record, as `mark_input` expects them."""
    return F.struct(*_POSITION_FIELDS).alias(RECORD_POSITION)


def find_late_filters(result: DataFrame, mode: OutputMode) -> LateFilters:
    """Return where a transform over DataFrames of `mark_input` would drop late rows in a stream."""
    plan, session = analyzed_plan(result), result.sparkSession
    # An operator has only the columns that are needed above it.
    operators, pruned_operators = list(stateful_nodes(plan)), list(stateful_nodes(tree.prune_columns(session, plan)))
    filters: list[LateFilter] = []
    for number, (node, pruned) in enumerate(zip(operators, pruned_operators, strict=True)):
        filters.extend(_find_filters(session, number, node, pruned, mode))
    return LateFilters(len(operators), tuple(filters))


def _find_filters(
    session: SparkSession, number: int, node: JavaObject, pruned: JavaObject, mode: OutputMode
) -> Iterator[LateFilter]:
    name = _node_name(node)
    # State of a group drops late rows only with an event-time timeout.
    if name in ("GlobalLimit", STATE_INPUT) or (name in GROUP_STATE and str(node.timeout()) != "EventTimeTimeout"):
        return
    if name == "Aggregate":
        if mode is OutputMode.COMPLETE:
            return
        sides = [("aggregation", tree.grouping_columns(pruned), node.child())]
    elif name == "Join":
        both = zip(("left", "right"), tree.children(node), tree.children(pruned), strict=True)
        sides = [(f"join, {side} side", list(tree.items(needed.output())), child) for side, child, needed in both]
    else:
        # Custom state can have a second child with the initial state; rows come from the first.
        first, needed = tree.children(node)[0], tree.children(pruned)[0]
        sides = [(_STATEFUL_NODES[name], list(tree.items(needed.output())), first)]
    for operator, columns, source in sides:
        marked = tree.watermark_column(columns)
        if marked is not None:
            is_window = marked.dataType().typeName() == "struct"
            late_filter = LateFilter(number, _describe(operator, marked), None, -1, is_window)
            from_state = next(stateful_nodes(source), None) is not None
            yield late_filter if from_state else _with_rows(session, late_filter, source, marked.exprId())


def _describe(operator: str, marked: JavaObject) -> str:
    if operator != "aggregation":
        return operator
    windows = ((tree.SESSION_WINDOW, "session window"), (tree.TIME_WINDOW, "window"))
    return next((name for mark, name in windows if tree.has_metadata(marked, mark)), operator)


def _with_rows(
    session: SparkSession, late_filter: LateFilter, source: JavaObject, compared_id: JavaObject
) -> LateFilter:
    """Return the filter with its input rows: all their columns, and their origin if available."""
    with_origin = _with_origin(source, session)
    plan = with_origin if with_origin is not None else source
    ids = [column.exprId() for column in tree.items(plan.output())]
    column = next(number for number, column_id in enumerate(ids) if column_id.equals(compared_id))
    return replace(late_filter, rows=to_dataframe(session, plan), column=column)


def _with_origin(plan: JavaObject, session: SparkSession) -> JavaObject | None:
    """Return the plan with `ORIGIN` in its output, or None if a node cannot pass it on."""
    name = tree.node_name(plan)
    if _is_input(plan):
        selected = plan.child()
        return plan.withNewChildren(to_seq(session, [_project_origin(selected, selected.child(), session)]))
    children = []
    for child in tree.children(plan):
        new_child = _with_origin(child, session) if _has_input(child) else child
        if new_child is None:
            return None
        children.append(new_child)
    if name == "Project":
        return _project_origin(plan, children[0], session)
    if name == "Expand":
        return _expand_origin(plan, children[0], session)
    if name not in _PASS_THROUGH:
        return None
    rebuilt = plan.withNewChildren(to_seq(session, children))
    return rebuilt if sum(column.name() == ORIGIN for column in tree.items(rebuilt.output())) == 1 else None


def _project_origin(project: JavaObject, child: JavaObject, session: SparkSession) -> JavaObject:
    """Return a projection with `ORIGIN` of its child added."""
    columns = [*tree.items(project.projectList()), _origin(child)]
    return jvm_of(session).org.apache.spark.sql.catalyst.plans.logical.Project(to_seq(session, columns), child)


def _expand_origin(expand: JavaObject, child: JavaObject, session: SparkSession) -> JavaObject:
    """Return the Expand node of sliding windows with `ORIGIN` added."""
    origin = _origin(child)
    projections = [
        to_seq(session, [*tree.items(projection), origin]) for projection in tree.items(expand.projections())
    ]
    output = to_seq(session, [*tree.items(expand.output()), origin])
    return jvm_of(session).org.apache.spark.sql.catalyst.plans.logical.Expand(
        to_seq(session, projections), output, child
    )


def _origin(plan: JavaObject) -> JavaObject:
    return next(column for column in tree.items(plan.output()) if column.name() == ORIGIN)


def stateful_nodes(plan: JavaObject) -> Iterator[JavaObject]:
    """Yield the stateful nodes of a stream from the result down, in the order of Spark's progress."""
    name = _node_name(plan)
    children = tree.children(plan)
    if name == "Join":
        if all(_has_input(child) for child in children):
            yield plan
    elif name in _STATEFUL_NODES and _has_input(plan):
        yield plan
    for child in children:
        yield from stateful_nodes(child)


def _node_name(plan: JavaObject) -> str:
    """Return the name of a node; for the input rows of `per_key` over a batch, their alias."""
    name = tree.node_name(plan)
    return str(plan.identifier().name()) if name == "SubqueryAlias" else name


def _has_input(plan: JavaObject) -> bool:
    return any(_is_input(node) for node in tree.nodes(plan))


def _is_input(node: JavaObject) -> bool:
    return tree.node_name(node) == "SubqueryAlias" and bool(node.identifier().name().startswith(_INPUT))
