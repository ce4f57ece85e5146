"""Which operators a streaming frame is made of, read from its analysed plan.

The plan is walked over the bridge to the JVM, once per look, and nothing is run. Where Spark has a rule of its own for
what ends the state of a join, that rule is asked, so that the answer is Spark's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from headrace.flow.checks.operators import Kind, Operator
from headrace.flow.levers import OutputMode

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame

# How Spark marks columns of a watermark, and those of a session window.
_WATERMARK = "spark.watermarkDelayMs"
_SESSION = "spark.sessionWindow"

# Any moment, in milliseconds; past 32 bits, so that the bridge hands it over as a long.
_SOME_TIME_MS = 2**40

_PLAIN = {
    "Project",
    "Filter",
    "SubqueryAlias",
    "EventTimeWatermark",
    "CollectMetrics",
    "View",
    "ResolvedHint",
    "TypedFilter",
}
_SIMPLE = {
    "Generate": Kind.EXPLODE,
    "Expand": Kind.EXPLODE,
    "Repartition": Kind.REPARTITION,
    "RepartitionByExpression": Kind.REPARTITION,
    "RebalancePartitions": Kind.REPARTITION,
    "MapInPandas": Kind.PYTHON_MAP,
    "MapInArrow": Kind.PYTHON_MAP,
    "FlatMapGroupsInPandas": Kind.GROUPED_PYTHON,
    "FlatMapGroupsInArrow": Kind.GROUPED_PYTHON,
    "FlatMapCoGroupsInPandas": Kind.GROUPED_PYTHON,
    "FlatMapCoGroupsInArrow": Kind.GROUPED_PYTHON,
    "GlobalLimit": Kind.LIMIT,
    "LocalLimit": Kind.LIMIT,
    "Offset": Kind.OFFSET,
    "Sample": Kind.SAMPLE,
    "Window": Kind.ROW_WINDOW,
    "Intersect": Kind.INTERSECT,
    "Intersect All": Kind.INTERSECT,
    "Except": Kind.EXCEPT,
    "Except All": Kind.EXCEPT,
}
_STATEFUL_JOINS = {
    Kind.INNER_JOIN,
    Kind.INNER_JOIN_HALF,
    Kind.INNER_JOIN_UNBOUNDED,
    Kind.SEMI_JOIN,
    Kind.SEMI_JOIN_HALF,
    Kind.OUTER_JOIN,
    Kind.OUTER_JOIN_HALF,
}
# By how streams are joined: what it is when rows of both sides are let go of, of one side, and of none. Of one side is
# enough for Spark to take the join where that is the side whose rows without partner it hands on.
_BOUNDED = {
    "Inner": (Kind.INNER_JOIN, Kind.INNER_JOIN_HALF, Kind.INNER_JOIN_UNBOUNDED),
    "LeftSemi": (Kind.SEMI_JOIN, Kind.SEMI_JOIN_HALF, Kind.SEMI_JOIN_UNBOUNDED),
    "LeftOuter": (Kind.OUTER_JOIN, Kind.OUTER_JOIN_HALF, Kind.OUTER_JOIN_UNBOUNDED),
    "RightOuter": (Kind.OUTER_JOIN, Kind.OUTER_JOIN_HALF, Kind.OUTER_JOIN_UNBOUNDED),
    "FullOuter": (Kind.OUTER_JOIN, Kind.FULL_JOIN_HALF, Kind.OUTER_JOIN_UNBOUNDED),
}


@dataclass(frozen=True)
class _Below:
    """What a subtree of a plan holds that an operator above it may have to know."""

    aggregate: bool = False
    timeouts: bool = False
    pandas_state: bool = False
    pandas_updates: bool = False
    sources: int = 0

    def __add__(self, other: _Below) -> _Below:
        return _Below(
            self.aggregate or other.aggregate,
            self.timeouts or other.timeouts,
            self.pandas_state or other.pandas_state,
            self.pandas_updates or other.pandas_updates,
            self.sources + other.sources,
        )


def operators(result: DataFrame, inputs: int = 1, named: Mapping[str, DataFrame] | None = None) -> tuple[Operator, ...]:
    """Return the operators of a streaming frame, each kind once, those next to the sources first.

    `inputs` is how many inputs the frame was made from: more streams in its plan mean that one of them is read twice.
    `named` holds their frames, for who wants to know which of them a join never lets go of.
    """
    plan = result._jdf.queryExecution().analyzed()
    reader = _Reader(_jvm(result), plan, named or {})
    found = list(reader.read(plan))
    if reader.below.sources > inputs:
        found.append(Operator(Kind.READ_TWICE))
    first: dict[Kind, Operator] = {}
    for operator in found:
        known = first.setdefault(operator.kind, operator)
        endless = tuple(dict.fromkeys((*known.endless, *operator.endless)))
        first[operator.kind] = replace(known, endless=endless)
    return tuple(first.values())


def spark_refuses(result: DataFrame, mode: OutputMode) -> str | None:
    """Return in which words Spark would refuse the frame in an output mode, or None when it would not."""
    jvm = _jvm(result)
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    wanted = {OutputMode.APPEND: modes.Append, OutputMode.UPDATE: modes.Update, OutputMode.COMPLETE: modes.Complete}
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(result._jdf.queryExecution().analyzed(), wanted[mode]())
    except PySparkException as error:
        # The first line; the plan follows.
        return str(error).split(";\n")[0].strip().splitlines()[0]
    return None


class _Reader:
    """Walks one plan. `below` is what the whole of it holds, once `read` has come to its end."""

    def __init__(self, jvm: Any, plan: JavaObject, named: Mapping[str, DataFrame]) -> None:
        self._jvm, self._named = jvm, named
        patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        marks = {Kind.PYTHON: patterns.PYTHON_UDF(), Kind.CURRENT_TIME: patterns.CURRENT_LIKE()}
        # Each question takes a trip to the JVM: most plans hold neither, and then no expression is asked.
        self._marks = {kind: mark for kind, mark in marks.items() if plan.containsPattern(mark)}
        self.below = _Below()

    def read(self, plan: JavaObject) -> Iterator[Operator]:
        """Yield the operators of a plan from the sources up."""
        if not plan.isStreaming():
            self.below = _Below()
            return
        below = _Below()
        children = list(_each(plan.children()))
        for child in children:
            yield from self.read(child)
            below += self.below
        if not children:
            below = _Below(sources=1)
        for operator in self._of(plan, children, below):
            yield operator
            below += _adds(operator, plan)
        self.below = below

    def _of(self, plan: JavaObject, children: list[JavaObject], below: _Below) -> Iterator[Operator]:
        name = str(plan.nodeName())
        yield from self._expressions(plan)
        match name:
            case _ if not children or name in _PLAIN:
                yield Operator(Kind.PROJECTION, name)
            case "Aggregate":
                yield from self._aggregate(plan, below)
            case "Deduplicate":
                bounded = any(_marked(key, _WATERMARK) for key in _each(plan.keys()))
                yield Operator(Kind.DEDUP if bounded else Kind.DEDUP_UNBOUNDED, _named(plan.keys()))
                if bounded:
                    yield from _following(below)
                elif below.aggregate:
                    yield Operator(Kind.DEDUP_AFTER_AGGREGATE, _named(plan.keys()))
            case "DeduplicateWithinWatermark":
                kind = Kind.DEDUP_WITHIN if _has_watermark(plan) else Kind.DEDUP_WITHIN_UNBOUNDED
                yield Operator(kind, _named(plan.keys()))
                yield from _following(below)
            case "Join":
                yield from self._join(plan, children, below)
            case "Union":
                mixed = not all(child.isStreaming() for child in children)
                yield Operator(Kind.STATIC_UNION if mixed else Kind.UNION)
            case "Sort":
                yield Operator(Kind.SORT if below.aggregate else Kind.SORT_ROWS)
            case "TransformWithStateInPySpark" | "TransformWithState":
                # Its timers go by the watermark of the query, whatever became of the column that it was declared on.
                unmarked = "EventTime" in plan.timeMode().toString() and not _is_watermarked(plan)
                yield Operator(Kind.CUSTOM_TIMERS_UNMARKED if unmarked else Kind.CUSTOM_STATE)
                yield from _following(below)
            case "FlatMapGroupsInPandasWithState":
                yield from _pandas_state(plan, below)
            case _:
                yield Operator(_SIMPLE.get(name, Kind.OTHER), name)

    def _expressions(self, plan: JavaObject) -> Iterator[Operator]:
        """Yield what the columns of one operator do besides being computed."""
        expressions = plan.expressions()
        if "monotonically_increasing_id()" in expressions.toString():
            yield Operator(Kind.ROW_NUMBERS)
        for kind, mark in self._marks.items():
            if any(expression.containsPattern(mark) for expression in _each(expressions)):
                yield Operator(kind)

    def _aggregate(self, plan: JavaObject, below: _Below) -> Iterator[Operator]:
        keys = list(_each(plan.groupingExpressions()))
        bounded = any(_marked(key, _WATERMARK) for key in keys)
        named = _named(plan.groupingExpressions())
        if any(_marked(key, _SESSION) for key in keys):
            yield Operator(Kind.SESSION if bounded else Kind.SESSION_UNBOUNDED, named)
        else:
            yield Operator(Kind.AGGREGATE if bounded else Kind.AGGREGATE_UNBOUNDED, named)
        for call in _calls(plan.aggregateExpressions()):
            if call.isDistinct():
                yield Operator(Kind.DISTINCT_AGGREGATE, str(call.toString()))
            if call.aggregateFunction().getClass().getSimpleName() == "PythonUDAF":
                yield Operator(Kind.PANDAS_AGGREGATE)
        if below.pandas_updates:
            yield Operator(Kind.PANDAS_UPDATES_AGGREGATED)
        yield from _following(below)

    def _join(self, plan: JavaObject, children: list[JavaObject], below: _Below) -> Iterator[Operator]:
        how = str(plan.joinType().toString())
        left, right = (child.isStreaming() for child in children)
        keyed = self._jvm.org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys.unapply(plan).isDefined()
        if left and right:
            kind, endless = self._streams_joined(plan, how, keyed=keyed)
            yield Operator(kind, how, tuple(name for side in endless for name in self._inputs_of(side)))
            if kind in _STATEFUL_JOINS:
                yield from _following(below)
        elif how == "FullOuter" or how in ({"RightOuter"} if left else {"LeftOuter", "LeftSemi", "LeftAnti"}):
            yield Operator(Kind.OUTER_STATIC_JOIN, how)
        else:
            hinted = keyed and _broadcast(children[1] if left else children[0])
            yield Operator(Kind.BROADCAST_JOIN if hinted else Kind.STATIC_JOIN, how)

    def _streams_joined(self, plan: JavaObject, how: str, *, keyed: bool) -> tuple[Kind, list[JavaObject]]:
        """Return what a join of two streams is, and the sides whose rows it never lets go of."""
        if how == "LeftAnti":
            return Kind.ANTI_JOIN, []
        if not keyed:
            return Kind.KEYLESS_JOIN, []
        bounds = self._jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
        some_time = self._jvm.scala.Some(_SOME_TIME_MS)

        def ends(side: JavaObject, against: JavaObject) -> bool:
            """Whether rows of a side are let go of, by what the watermark of the other one says.

            Spark asks for a watermark of the side, too: without one it keeps the rows.
            """
            found = bounds.getStateValueWatermark(side.outputSet(), against.outputSet(), plan.condition(), some_time)
            return bool(found.isDefined()) and any(_marked(each, _WATERMARK) for each in _each(side.output()))

        left, right = plan.left(), plan.right()
        by_key = bool(bounds.isWatermarkInJoinKeys(plan))
        left_ends, right_ends = by_key or ends(left, right), by_key or ends(right, left)
        endless = [side for side, over in ((left, left_ends), (right, right_ends)) if not over]
        both, one, none = _BOUNDED.get(how, _BOUNDED["Inner"])
        # The side whose rows wait for a partner to be handed on, or not. Of the others either may be the one.
        waits = {"LeftOuter": left_ends, "LeftSemi": left_ends, "RightOuter": right_ends}
        if not endless:
            return both, endless
        return one if waits.get(how, left_ends or right_ends) else none, endless

    def _inputs_of(self, side: JavaObject) -> list[str]:
        """Return which inputs a part of a plan reads, as far as its columns are still theirs."""
        read = set(_read_columns(side))
        return [
            name
            for name, frame in self._named.items()
            if not read.isdisjoint(_read_columns(frame._jdf.queryExecution().analyzed()))
        ]


def _read_columns(plan: JavaObject) -> Iterator[int]:
    """Yield the numbers that Spark gave to the columns of what a plan reads."""
    return (int(column.exprId().id()) for leaf in _each(plan.collectLeaves()) for column in _each(leaf.output()))


def _following(below: _Below) -> Iterator[Operator]:
    """Yield what it means that a stateful operator has others below it."""
    if below.aggregate:
        yield Operator(Kind.STATE_AFTER_AGGREGATE)
    if below.timeouts:
        yield Operator(Kind.STATE_AFTER_TIMEOUTS)


def _pandas_state(plan: JavaObject, below: _Below) -> Iterator[Operator]:
    updates = plan.outputMode().toString() == "Update"
    yield Operator(Kind.PANDAS_STATE_UPDATE if updates else Kind.PANDAS_STATE_APPEND)
    if "EventTime" in plan.timeout().toString() and not _has_watermark(plan):
        yield Operator(Kind.PANDAS_STATE_UNMARKED)
    if below.pandas_state:
        yield Operator(Kind.PANDAS_STATE_TWICE)
    if below.aggregate:
        yield Operator(Kind.PANDAS_STATE_AFTER_AGGREGATE)
    yield from _following(below)


def _adds(operator: Operator, plan: JavaObject) -> _Below:
    match operator.kind:
        case Kind.AGGREGATE | Kind.AGGREGATE_UNBOUNDED | Kind.SESSION | Kind.SESSION_UNBOUNDED:
            return _Below(aggregate=True)
        case Kind.PANDAS_STATE_APPEND | Kind.PANDAS_STATE_UPDATE:
            timeouts = "EventTime" in plan.timeout().toString()
            return _Below(
                timeouts=timeouts, pandas_state=True, pandas_updates=operator.kind is Kind.PANDAS_STATE_UPDATE
            )
        case _:
            return _Below()


def _calls(expressions: JavaObject) -> Iterator[JavaObject]:
    """Yield the calls of aggregate functions within expressions."""
    for expression in _each(expressions):
        if expression.getClass().getSimpleName() == "AggregateExpression":
            yield expression
        else:
            yield from _calls(expression.children())


def _broadcast(plan: JavaObject) -> bool:
    """Whether a static side asks to be broadcast, at its top."""
    while plan.nodeName() in ("Project", "SubqueryAlias", "Filter"):
        plan = plan.children().apply(0)
    return plan.nodeName() == "ResolvedHint" and "broadcast" in plan.hints().toString()


def _has_watermark(plan: JavaObject) -> bool:
    """Whether a column of the rows that an operator is given carries a watermark."""
    return any(_marked(column, _WATERMARK) for column in _each(plan.children().apply(0).output()))


def _is_watermarked(plan: JavaObject) -> bool:
    """Whether a watermark is declared anywhere below an operator."""
    below = list(_each(plan.children()))
    return any(each.getClass().getSimpleName() == "EventTimeWatermark" or _is_watermarked(each) for each in below)


def _marked(expression: JavaObject, mark: str) -> bool:
    is_column = expression.getClass().getSimpleName() == "AttributeReference"
    return is_column and bool(expression.metadata().contains(mark))


def _named(expressions: JavaObject) -> str:
    columns = (each for each in _each(expressions) if each.getClass().getSimpleName() == "AttributeReference")
    return ", ".join(str(column.name()) for column in columns)


def _each(sequence: JavaObject) -> Iterator[JavaObject]:
    return (sequence.apply(index) for index in range(sequence.size()))


def _jvm(result: DataFrame) -> Any:
    jvm = result.sparkSession._jvm
    assert jvm is not None  # noqa: S101 - a classic session always has its JVM
    return jvm
