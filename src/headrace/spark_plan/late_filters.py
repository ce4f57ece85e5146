"""Where the plan of a transform drops late rows, and which rows reach those places.

Spark marks the column of a watermark in its metadata, and hands the mark on with the column, into windows too. Each
operator with state looks for the mark among the columns that it is given and drops the rows behind the watermark:

| operator                              | looks at                       | a row is late when                          |
|---------------------------------------|--------------------------------|---------------------------------------------|
| aggregation (not in complete mode)    | the columns it is grouped by   | window end, or event time, <= watermark     |
| dropDuplicates, also within watermark | every column that it is given  | event time <= watermark                     |
| join of two streams                   | each side by itself            | event time, or window end, <= watermark     |
| custom state                          | every column that it is given  | event time, or window end, <= watermark     |

The watermark is that of the batch before, for every operator that is fed by inputs only. What comes out of one operator
is never late for the next: Spark holds the watermark of the next back until it is so. What the next one is given cannot
be computed from one batch, since it comes out of state; should Spark count drops there, they are told as unexplained.

Frames of a batch bear no marks, so `as_input` sets them as a stream would. The plan is only read and rebuilt here; the
transform itself sees nothing but the columns that it is given in a stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.flow.inputs import Input
from headrace.flow.levers import OutputMode
from headrace.spark_plan import tree

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject, JVMView
    from pyspark.sql import SparkSession

# What `as_input` puts beside the columns of an input: where each row comes from, and its event time.
AT = "_headrace_at"

# Where a record lies in Kafka, as rows bring it here: below a name that no field of a payload has.
PLACE = "_headrace_place"
_PLACE_FIELDS = {"topic": "string", "partition": "int", "offset": "long"}

# How `transforms.keyed` names, in the plan of a batch, the rows that a stream would give to custom state. Under event
# time a stream drops late ones of them, and whoever looks for those has to find the place.
STATE_INPUT, TIMED_STATE_INPUT = "_headrace_state_input", "_headrace_timed_state_input"

# How a plan names the frame of an input.
_INPUT = "_headrace_input_"

# How Spark marks the column of a watermark, and the columns that its two window functions make.
DELAY = "spark.watermarkDelayMs"
_WINDOW, SESSION = "spark.timeWindow", "spark.sessionWindow"

_CUSTOM = ("TransformWithState", "TransformWithStateInPySpark")
# These drop late rows only when they time out by event time.
_CUSTOM_WITH_TIMEOUT = ("FlatMapGroupsInPandasWithState", "FlatMapGroupsWithState")
_KINDS = {
    "Aggregate": "aggregation",
    "Distinct": "deduplication",
    "Deduplicate": "deduplication",
    "DeduplicateWithinWatermark": "deduplication",
    "GlobalLimit": "limit",
    **dict.fromkeys((*_CUSTOM, *_CUSTOM_WITH_TIMEOUT, STATE_INPUT, TIMED_STATE_INPUT), "custom state"),
}

# Steps that hand on every column they are given; what a join or a union makes of a column is looked at afterwards.
_PASSING = (
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
    """One place where Spark drops late rows.

    | field    | meaning                                                                                          |
    |----------|--------------------------------------------------------------------------------------------------|
    | number   | which operator with state it is, in the order in which Spark's progress tells of them            |
    | operator | what it is, in words, as the ledger says it                                                      |
    | rows     | the rows that reach it, with `AT` where it could be handed on; None when they come out of state   |
    | column   | which of the columns holds the window or the event time that is compared                         |
    | window   | whether that is a window                                                                         |
    """

    number: int
    operator: str
    rows: DataFrame | None
    column: int
    window: bool


@dataclass(frozen=True)
class LatePlan:
    """The places where a plan drops late rows, and how many operators with state it has."""

    operators: int
    filters: tuple[LateFilter, ...]


def as_input(rows: DataFrame, name: str, given: Input, columns: Sequence[str]) -> DataFrame:
    """Return the frame that a transform is given: `columns` of the rows, the watermark marked as in a stream.

    Where the row comes from stays within the frame, unseen by the transform: `LatePlan` gets it out.
    """
    watermark = given.watermark
    event_time = F.lit(None) if watermark is None else F.col(f"`{watermark.column}`")
    placed = PLACE in rows.columns
    lies = [
        (F.col(PLACE).getField(each) if placed else F.lit(None)).cast(kind).alias(each)
        for each, kind in _PLACE_FIELDS.items()
    ]
    at = F.struct(
        F.lit(name).alias("input"),
        *lies,
        # Tells the rows of a batch apart where they have no offsets: a row in several windows is one row.
        (F.concat_ws("/", *lies) if placed else F.monotonically_increasing_id().cast("string")).alias("row_id"),
        event_time.cast("timestamp").alias("event_time"),
    )

    def marked(column: str) -> Column:
        found = F.col(f"`{column}`")
        if watermark is None or column != watermark.column:
            return found
        return found.alias(column, metadata={DELAY: round(watermark.duration.seconds * 1000)})

    return rows.withColumn(AT, at).select(*(marked(each) for each in columns)).alias(f"{_INPUT}{name}")


def place() -> Column:
    """Return where a record lies, from the columns that Kafka's source gives it, as `as_input` looks for it."""
    return F.struct(*_PLACE_FIELDS).alias(PLACE)


def late_plan(result: DataFrame, mode: OutputMode) -> LatePlan:
    """Return where a result, of a transform over frames of `as_input`, would have dropped late rows as a stream."""
    plan, jvm = tree.analyzed(result), tree.jvm_of(result.sparkSession)
    # A column that nobody needs further on is not there for the operator to look at.
    operators, needing = list(stateful(plan)), list(stateful(tree.pruned(plan, jvm)))
    found = []
    for number, (whole, needed) in enumerate(zip(operators, needing, strict=True)):
        for filtered in _filters(number, whole, needed, mode):
            if filtered.source is None:
                found.append(filtered.told)
            else:
                found.append(_with_rows(filtered, result.sparkSession, jvm))
    return LatePlan(len(operators), tuple(found))


@dataclass(frozen=True)
class _Filtered:
    """A place where rows are dropped, the plan of the rows, and the id of the column that is compared."""

    told: LateFilter
    source: JavaObject | None
    expression: JavaObject


def _filters(number: int, node: JavaObject, needed: JavaObject, mode: OutputMode) -> Iterator[_Filtered]:
    kind = _kind(node)
    if kind in ("GlobalLimit", STATE_INPUT) or (
        kind in _CUSTOM_WITH_TIMEOUT and str(node.timeout()) != "EventTimeTimeout"
    ):
        return
    if kind == "Aggregate":
        if mode is OutputMode.COMPLETE:
            return
        keys = [each.toAttribute() for each in tree.each(needed.groupingExpressions()) if tree.is_named(each)]
        sides = [("aggregation", keys, node.child())]
    elif kind == "Join":
        both = zip(("left", "right"), tree.each(node.children()), tree.each(needed.children()), strict=True)
        sides = [(f"join, {side} side", list(tree.each(pruned.output())), whole) for side, whole, pruned in both]
    else:
        # Custom state can have a second child with the state to begin with; rows come from the first.
        first, pruned = next(tree.each(node.children())), next(tree.each(needed.children()))
        sides = [(_KINDS[kind], list(tree.each(pruned.output())), first)]
    for operator, columns, source in sides:
        marked = next((each for each in columns if each.metadata().contains(DELAY)), None)
        if marked is not None:
            is_window = marked.dataType().typeName() == "struct"
            told = LateFilter(number, _worded(operator, marked), None, -1, is_window)
            from_state = next(stateful(source), None) is not None
            yield _Filtered(told, None if from_state else source, marked.exprId())


def _worded(operator: str, marked: JavaObject) -> str:
    if operator != "aggregation":
        return operator
    known = ((SESSION, "session window"), (_WINDOW, "window"))
    return next((words for mark, words in known if marked.metadata().contains(mark)), operator)


def _with_rows(found: _Filtered, session: SparkSession, jvm: JVMView) -> LateFilter:
    """Return the filter with its rows: all their columns, and where they come from if that can be had."""
    assert found.source is not None  # noqa: S101 - asked before
    carried = _carried(found.source, jvm)
    plan = carried if carried is not None else found.source
    ids = [each.exprId() for each in tree.each(plan.output())]
    column = next(number for number, each in enumerate(ids) if each.equals(found.expression))
    return replace(found.told, rows=tree.framed(session, plan), column=column)


def _carried(plan: JavaObject, jvm: JVMView) -> JavaObject | None:
    """Return the plan with `AT` in what it puts out, or None where a step cannot hand it on."""
    kind = tree.kind(plan)
    if kind == "SubqueryAlias" and plan.identifier().name().startswith(_INPUT):
        selected = plan.child()
        return plan.withNewChildren(tree.sequence(jvm, [_wider(selected, selected.child(), jvm)]))
    children = []
    for child in tree.each(plan.children()):
        handed = _carried(child, jvm) if _has_input(child) else child
        if handed is None:
            return None
        children.append(handed)
    if kind == "Project":
        return _wider(plan, children[0], jvm)
    if kind == "Expand":
        return _expanded(plan, children[0], jvm)
    if kind not in _PASSING:
        return None
    whole = plan.withNewChildren(tree.sequence(jvm, children))
    return whole if sum(each.name() == AT for each in tree.each(whole.output())) == 1 else None


def _wider(project: JavaObject, child: JavaObject, jvm: JVMView) -> JavaObject:
    """Return a selection of columns with `AT` of its child beside them."""
    columns = [*tree.each(project.projectList()), _at(child)]
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(tree.sequence(jvm, columns), child)


def _expanded(expand: JavaObject, child: JavaObject, jvm: JVMView) -> JavaObject:
    """Return the step that puts a row into each of its sliding windows, with `AT` beside the columns."""
    at = _at(child)
    projections = [tree.sequence(jvm, [*tree.each(one), at]) for one in tree.each(expand.projections())]
    output = tree.sequence(jvm, [*tree.each(expand.output()), at])
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Expand(tree.sequence(jvm, projections), output, child)


def _at(plan: JavaObject) -> JavaObject:
    return next(each for each in tree.each(plan.output()) if each.name() == AT)


def stateful(plan: JavaObject) -> Iterator[JavaObject]:
    """Yield the steps that keep state in a stream, from the result downwards, as Spark's progress lists them."""
    kind = _kind(plan)
    children = list(tree.each(plan.children()))
    if kind == "Join":
        if all(_has_input(child) for child in children):
            yield plan
    elif kind in _KINDS and _has_input(plan):
        yield plan
    for child in children:
        yield from stateful(child)


def _kind(plan: JavaObject) -> str:
    """Return what a step is; of `per_key` over a batch it is the name that this gives to the rows."""
    kind = tree.kind(plan)
    return str(plan.identifier().name()) if kind == "SubqueryAlias" else kind


def _has_input(plan: JavaObject) -> bool:
    if tree.kind(plan) == "SubqueryAlias" and plan.identifier().name().startswith(_INPUT):
        return True
    return any(_has_input(child) for child in tree.each(plan.children()))
