"""Reads the operators of a streaming DataFrame from its analyzed plan.

The plan is walked through py4j, and nothing runs. Spark's own rule decides whether the state of a join is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from py4j.java_gateway import JavaObject, JVMView
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from headrace.clients.spark.jvm import analyzed_plan, jvm_of
from headrace.flow.checks.operators import Operator, OperatorKind
from headrace.flow.levers import OutputMode
from headrace.spark_plan import tree
from headrace.spark_plan.nodes import CUSTOM_STATE, NODES, NodeType

# Any timestamp in milliseconds; larger than 32 bits, so that py4j passes it as a long.
_ANY_TIME_MS = 2**40

_STATEFUL_JOINS = {
    OperatorKind.INNER_JOIN,
    OperatorKind.INNER_JOIN_HALF_BOUNDED,
    OperatorKind.INNER_JOIN_UNBOUNDED,
    OperatorKind.SEMI_JOIN,
    OperatorKind.SEMI_JOIN_HALF_BOUNDED,
    OperatorKind.OUTER_JOIN,
    OperatorKind.OUTER_JOIN_HALF_BOUNDED,
}
# By join type: the kind if the state of both sides, of one side, or of no side is bounded. Spark accepts one bounded
# side if that is the side whose unmatched rows it emits.
_JOIN_KINDS = {
    "Inner": (OperatorKind.INNER_JOIN, OperatorKind.INNER_JOIN_HALF_BOUNDED, OperatorKind.INNER_JOIN_UNBOUNDED),
    "LeftSemi": (OperatorKind.SEMI_JOIN, OperatorKind.SEMI_JOIN_HALF_BOUNDED, OperatorKind.SEMI_JOIN_UNBOUNDED),
    "LeftOuter": (OperatorKind.OUTER_JOIN, OperatorKind.OUTER_JOIN_HALF_BOUNDED, OperatorKind.OUTER_JOIN_UNBOUNDED),
    "RightOuter": (OperatorKind.OUTER_JOIN, OperatorKind.OUTER_JOIN_HALF_BOUNDED, OperatorKind.OUTER_JOIN_UNBOUNDED),
    "FullOuter": (OperatorKind.OUTER_JOIN, OperatorKind.FULL_JOIN_HALF_BOUNDED, OperatorKind.OUTER_JOIN_UNBOUNDED),
}


@dataclass(frozen=True)
class _SubtreeProperties:
    """Properties of a subtree of a plan that matter for operators above it."""

    aggregate: bool = False
    timeouts: bool = False
    pandas_state: bool = False
    pandas_updates: bool = False
    sources: int = 0

    def __add__(self, other: _SubtreeProperties) -> _SubtreeProperties:
        return _SubtreeProperties(
            self.aggregate or other.aggregate,
            self.timeouts or other.timeouts,
            self.pandas_state or other.pandas_state,
            self.pandas_updates or other.pandas_updates,
            self.sources + other.sources,
        )


def read_operators(
    result: DataFrame, inputs: int = 1, frames: Mapping[str, DataFrame] | None = None
) -> tuple[Operator, ...]:
    """Return the operators of a streaming DataFrame, each kind once, those next to the sources first.

    `inputs` is the number of inputs: more streams in the plan mean that an input is read twice. `frames` has the
    input DataFrames by name; it is needed to name the unbounded inputs of a join.
    """
    plan = analyzed_plan(result)
    reader = _Reader(jvm_of(result.sparkSession), plan, frames or {})
    operators = list(reader.read(plan))
    if reader.below.sources > inputs:
        operators.append(Operator(OperatorKind.READ_TWICE))
    by_kind: dict[OperatorKind, Operator] = {}
    for operator in operators:
        first = by_kind.setdefault(operator.kind, operator)
        unbounded_inputs = tuple(dict.fromkeys((*first.unbounded_inputs, *operator.unbounded_inputs)))
        by_kind[operator.kind] = replace(first, unbounded_inputs=unbounded_inputs)
    return tuple(by_kind.values())


def unsupported_operation_message(result: DataFrame, mode: OutputMode) -> str | None:
    """Return Spark's message if it refuses the DataFrame in an output mode, or None."""
    jvm = jvm_of(result.sparkSession)
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    spark_modes = {
        OutputMode.APPEND: modes.Append,
        OutputMode.UPDATE: modes.Update,
        OutputMode.COMPLETE: modes.Complete,
    }
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(analyzed_plan(result), spark_modes[mode]())
    except PySparkException as error:
        # The first line; the plan follows.
        return str(error).split(";\n")[0].strip().splitlines()[0]
    return None


class _Reader:
    """Walks one plan. After `read`, `below` has the properties of the complete plan."""

    def __init__(self, jvm: JVMView, plan: JavaObject, frames: Mapping[str, DataFrame]) -> None:
        self._java, self._frames = jvm, frames
        patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        marks = {OperatorKind.PYTHON: patterns.PYTHON_UDF(), OperatorKind.CURRENT_TIME: patterns.CURRENT_LIKE()}
        # Each check is a call to the JVM. Most plans contain neither pattern, so their expressions are not checked.
        self._patterns = {kind: mark for kind, mark in marks.items() if plan.containsPattern(mark)}
        self.below = _SubtreeProperties()

    def read(self, plan: JavaObject) -> Iterator[Operator]:
        """Yield the operators of a plan from the sources up."""
        if not plan.isStreaming():
            self.below = _SubtreeProperties()
            return
        below = _SubtreeProperties()
        children = tree.children(plan)
        for child in children:
            yield from self.read(child)
            below += self.below
        if not children:
            below = _SubtreeProperties(sources=1)
        for operator in self._node_operators(plan, children, below):
            yield operator
            below += _operator_properties(operator, plan)
        self.below = below

    def _node_operators(
        self, plan: JavaObject, children: list[JavaObject], below: _SubtreeProperties
    ) -> Iterator[Operator]:
        name = tree.node_name(plan)
        kind = NODES.get(name, NodeType(OperatorKind.OTHER)).kind
        yield from self._expressions(plan)
        match name:
            case _ if not children or kind is OperatorKind.PROJECTION:
                yield Operator(OperatorKind.PROJECTION, name)
            case "Aggregate":
                yield from self._aggregate(plan, below)
            case "Deduplicate":
                bounded = tree.watermark_column(tree.items(plan.keys())) is not None
                yield Operator(
                    OperatorKind.DEDUP if bounded else OperatorKind.DEDUP_UNBOUNDED, _column_names(plan.keys())
                )
                if bounded:
                    yield from _chained_state(below)
                elif below.aggregate:
                    yield Operator(OperatorKind.DEDUP_AFTER_AGGREGATE, _column_names(plan.keys()))
            case "DeduplicateWithinWatermark":
                bounded = _has_watermark(children[0])
                yield Operator(
                    OperatorKind.DEDUP_WITHIN if bounded else OperatorKind.DEDUP_WITHIN_UNBOUNDED,
                    _column_names(plan.keys()),
                )
                yield from _chained_state(below)
            case "Join":
                yield from self._join(plan, children, below)
            case "Union":
                mixed = not all(child.isStreaming() for child in children)
                yield Operator(OperatorKind.STATIC_UNION if mixed else OperatorKind.UNION)
            case "Sort":
                yield Operator(OperatorKind.SORT if below.aggregate else OperatorKind.SORT_ROWS)
            case _ if name in CUSTOM_STATE:
                # Its timers use the watermark of the query, even if the watermark column no longer exists.
                has_watermark = any(tree.node_name(node) == "EventTimeWatermark" for node in tree.nodes(plan))
                timers_fire = has_watermark or "EventTime" not in plan.timeMode().toString()
                yield Operator(
                    OperatorKind.CUSTOM_STATE if timers_fire else OperatorKind.CUSTOM_TIMERS_WITHOUT_WATERMARK
                )
                yield from _chained_state(below)
            case "FlatMapGroupsInPandasWithState":
                yield from _pandas_state(plan, below)
            case _:
                yield Operator(kind or OperatorKind.OTHER, name)

    def _expressions(self, plan: JavaObject) -> Iterator[Operator]:
        """Yield the operators within the expressions of one node."""
        expressions = plan.expressions()
        if "monotonically_increasing_id()" in expressions.toString():
            yield Operator(OperatorKind.ROW_NUMBERS)
        for kind, mark in self._patterns.items():
            if any(expression.containsPattern(mark) for expression in tree.items(expressions)):
                yield Operator(kind)

    def _aggregate(self, plan: JavaObject, below: _SubtreeProperties) -> Iterator[Operator]:
        keys = list(tree.items(plan.groupingExpressions()))
        bounded = tree.watermark_column(keys) is not None
        key_names = _column_names(plan.groupingExpressions())
        if any(tree.has_metadata(key, tree.SESSION_WINDOW) for key in keys):
            yield Operator(OperatorKind.SESSION if bounded else OperatorKind.SESSION_UNBOUNDED, key_names)
        else:
            yield Operator(OperatorKind.AGGREGATE if bounded else OperatorKind.AGGREGATE_UNBOUNDED, key_names)
        for call in _aggregate_calls(plan.aggregateExpressions()):
            if call.isDistinct():
                yield Operator(OperatorKind.DISTINCT_AGGREGATE, str(call.toString()))
            if tree.node_name(call.aggregateFunction()) == "PythonUDAF":
                yield Operator(OperatorKind.PANDAS_AGGREGATE)
        if below.pandas_updates:
            yield Operator(OperatorKind.PANDAS_UPDATES_AGGREGATED)
        yield from _chained_state(below)

    def _join(self, plan: JavaObject, children: list[JavaObject], below: _SubtreeProperties) -> Iterator[Operator]:
        how = str(plan.joinType().toString())
        left, right = (child.isStreaming() for child in children)
        keyed = self._java.org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys.unapply(plan).isDefined()
        if left and right:
            kind, unbounded = self._stream_join(plan, how, keyed=keyed)
            yield Operator(kind, how, tuple(name for side in unbounded for name in self._inputs_of(side)))
            if kind in _STATEFUL_JOINS:
                yield from _chained_state(below)
        elif how == "FullOuter" or how in ({"RightOuter"} if left else {"LeftOuter", "LeftSemi", "LeftAnti"}):
            yield Operator(OperatorKind.OUTER_STATIC_JOIN, how)
        else:
            is_broadcast = keyed and _is_broadcast(children[1] if left else children[0])
            yield Operator(OperatorKind.BROADCAST_JOIN if is_broadcast else OperatorKind.STATIC_JOIN, how)

    def _stream_join(self, plan: JavaObject, how: str, *, keyed: bool) -> tuple[OperatorKind, list[JavaObject]]:
        """Return the kind of a stream-stream join, and the sides whose rows it never evicts."""
        if how == "LeftAnti":
            return OperatorKind.ANTI_JOIN, []
        if not keyed:
            return OperatorKind.KEYLESS_JOIN, []
        bounds = self._java.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
        any_time = self._java.scala.Some(_ANY_TIME_MS)

        def is_bounded(side: JavaObject, against: JavaObject) -> bool:
            """Whether the watermark of the other side evicts the rows of a side.

            Spark needs a watermark of the side itself, too: without one it keeps the rows.
            """
            state_watermark = bounds.getStateValueWatermark(
                side.outputSet(), against.outputSet(), plan.condition(), any_time
            )
            return bool(state_watermark.isDefined()) and _has_watermark(side)

        left, right = plan.left(), plan.right()
        by_key = bool(bounds.isWatermarkInJoinKeys(plan))
        left_bounded, right_bounded = by_key or is_bounded(left, right), by_key or is_bounded(right, left)
        unbounded = [side for side, bounded in ((left, left_bounded), (right, right_bounded)) if not bounded]
        both, half, none = _JOIN_KINDS.get(how, _JOIN_KINDS["Inner"])
        # The side that must be bounded for this join type. For other types either side is enough.
        required = {"LeftOuter": left_bounded, "LeftSemi": left_bounded, "RightOuter": right_bounded}
        if not unbounded:
            return both, unbounded
        return half if required.get(how, left_bounded or right_bounded) else none, unbounded

    def _inputs_of(self, side: JavaObject) -> list[str]:
        """Return the inputs that a part of a plan reads, by the ids of its columns."""
        columns = set(_read_columns(side))
        return [
            name for name, frame in self._frames.items() if not columns.isdisjoint(_read_columns(analyzed_plan(frame)))
        ]


def _read_columns(plan: JavaObject) -> Iterator[int]:
    """Yield the ids of the columns that the leaves of a plan output."""
    return (
        int(column.exprId().id()) for leaf in tree.items(plan.collectLeaves()) for column in tree.items(leaf.output())
    )


def _chained_state(below: _SubtreeProperties) -> Iterator[Operator]:
    """Yield operators for stateful operators below another one."""
    if below.aggregate:
        yield Operator(OperatorKind.STATE_AFTER_AGGREGATE)
    if below.timeouts:
        yield Operator(OperatorKind.STATE_AFTER_TIMEOUTS)


def _pandas_state(plan: JavaObject, below: _SubtreeProperties) -> Iterator[Operator]:
    updates = plan.outputMode().toString() == "Update"
    yield Operator(OperatorKind.PANDAS_STATE_UPDATE if updates else OperatorKind.PANDAS_STATE_APPEND)
    if "EventTime" in plan.timeout().toString() and not _has_watermark(tree.children(plan)[0]):
        yield Operator(OperatorKind.PANDAS_STATE_WITHOUT_WATERMARK)
    if below.pandas_state:
        yield Operator(OperatorKind.PANDAS_STATE_TWICE)
    if below.aggregate:
        yield Operator(OperatorKind.PANDAS_STATE_AFTER_AGGREGATE)
    yield from _chained_state(below)


def _operator_properties(operator: Operator, plan: JavaObject) -> _SubtreeProperties:
    match operator.kind:
        case (
            OperatorKind.AGGREGATE
            | OperatorKind.AGGREGATE_UNBOUNDED
            | OperatorKind.SESSION
            | OperatorKind.SESSION_UNBOUNDED
        ):
            return _SubtreeProperties(aggregate=True)
        case OperatorKind.PANDAS_STATE_APPEND | OperatorKind.PANDAS_STATE_UPDATE:
            timeouts = "EventTime" in plan.timeout().toString()
            return _SubtreeProperties(
                timeouts=timeouts, pandas_state=True, pandas_updates=operator.kind is OperatorKind.PANDAS_STATE_UPDATE
            )
        case _:
            return _SubtreeProperties()


def _aggregate_calls(expressions: JavaObject) -> Iterator[JavaObject]:
    """Yield the calls of aggregate functions within expressions."""
    for expression in tree.items(expressions):
        if tree.node_name(expression) == "AggregateExpression":
            yield expression
        else:
            yield from _aggregate_calls(expression.children())


def _is_broadcast(plan: JavaObject) -> bool:
    """Whether a static side has a broadcast hint at its top."""
    while tree.node_name(plan) in ("Project", "SubqueryAlias", "Filter"):
        plan = tree.children(plan)[0]
    return tree.node_name(plan) == "ResolvedHint" and "broadcast" in plan.hints().toString()


def _has_watermark(plan: JavaObject) -> bool:
    """Whether an output column of a node has a watermark."""
    return tree.watermark_column(tree.items(plan.output())) is not None


def _column_names(expressions: JavaObject) -> str:
    return ", ".join(str(item.name()) for item in tree.items(expressions) if tree.is_column(item))
