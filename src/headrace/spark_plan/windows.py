"""Recomputes a windowed aggregation for selected windows, and finds the columns that contain the window.

A filter directly below the aggregation selects the windows, so each is computed from all of its rows and no other
window is computed. The plan above the aggregation stays unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from headrace.clients.spark.jvm import analyzed_plan, to_column, to_dataframe, to_seq
from headrace.spark_plan import tree
from headrace.spark_plan.late_filters import stateful_nodes

# The content of a result column: the window, one of its bounds, or another grouping key.
Holds = Literal["window", "start", "end", "key"]


class NotAWindowedAggregation(Exception):
    """The result is not a single windowed aggregation. The message says why."""


@dataclass(frozen=True)
class WindowResults:
    """A transform over batch DataFrames whose only state is a windowed aggregation.

    `holds` says which result columns are copies of the window or of keys; the others are computed.
    """

    result: DataFrame
    holds: dict[str, Holds]
    _aggregate: JavaObject
    _window: JavaObject

    @classmethod
    def of(cls, result: DataFrame) -> WindowResults:
        """Analyze a result over DataFrames of `mark_input`. Raises NotAWindowedAggregation."""
        plan = analyzed_plan(result)
        nodes = list(stateful_nodes(plan))
        if not nodes:
            raise NotAWindowedAggregation("It has no state.")
        if len(nodes) > 1:
            raise NotAWindowedAggregation(f"It has {len(nodes)} stateful operators, and only one is supported.")
        if tree.node_name(nodes[0]) != "Aggregate":
            raise NotAWindowedAggregation("Its state is not that of an aggregation.")
        window = tree.watermark_column(tree.grouping_columns(nodes[0]))
        if window is None or window.dataType().typeName() != "struct":
            raise NotAWindowedAggregation("It does not aggregate by a window over the event time.")
        if tree.has_metadata(window, tree.SESSION_WINDOW):
            raise NotAWindowedAggregation(
                "A late row can join two sessions that were written as two: windows of a fixed length only."
            )
        output = zip(result.columns, tree.items(plan.output()), strict=True)
        contents = {name: _column_content(plan, column.exprId(), nodes[0], window.exprId()) for name, column in output}
        return cls(
            result, {name: content for name, content in contents.items() if content is not None}, nodes[0], window
        )

    def for_windows(self, starts: Sequence[datetime]) -> DataFrame:
        """Return the rows of the result for the windows that start at these times."""
        session = self.result.sparkSession
        window = to_column(session, self._window)
        rows = to_dataframe(session, self._aggregate.child()).where(window.getField("start").isin(list(starts)))
        filtered = self._aggregate.withNewChildren(to_seq(session, [analyzed_plan(rows)]))
        return to_dataframe(session, self._rebuild(analyzed_plan(self.result), filtered))

    def _rebuild(self, plan: JavaObject, filtered: JavaObject) -> JavaObject:
        if plan.fastEquals(self._aggregate):
            return filtered
        children = [
            self._rebuild(child, filtered) if next(stateful_nodes(child), None) is not None else child
            for child in tree.children(plan)
        ]
        return plan.withNewChildren(to_seq(self.result.sparkSession, children))


def _column_content(plan: JavaObject, column: JavaObject, aggregate: JavaObject, window: JavaObject) -> Holds | None:
    """Return the content of an output column, by following it down to the aggregation."""
    if plan.fastEquals(aggregate):
        return _aggregate_content(aggregate, column, window)
    if tree.node_name(plan) == "Project":
        expression = next((item for item in tree.items(plan.projectList()) if item.exprId().equals(column)), None)
        inner, part = _copied_column(expression)
        if inner is None:
            return None
        content = _column_content(plan.child(), inner, aggregate, window)
        return content if part is None else part if content == "window" else None
    for child in tree.children(plan):
        if any(output.exprId().equals(column) for output in tree.items(child.output())):
            return _column_content(child, column, aggregate, window)
    return None


def _aggregate_content(aggregate: JavaObject, column: JavaObject, window: JavaObject) -> Holds | None:
    expressions = tree.items(aggregate.aggregateExpressions())
    expression = next((item for item in expressions if item.exprId().equals(column)), None)
    inner, part = _copied_column(expression)
    if inner is not None and inner.equals(window):
        return part or "window"
    if expression is None:
        return None
    value = expression.child() if tree.node_name(expression) == "Alias" else expression
    is_key = any(value.semanticEquals(key) for key in tree.items(aggregate.groupingExpressions()))
    return "key" if is_key else None


def _copied_column(expression: JavaObject | None) -> tuple[JavaObject | None, Literal["start", "end"] | None]:
    """Return the id of the column that an expression copies, and which bound, if it is a bound of a window."""
    if expression is not None and tree.node_name(expression) == "Alias":
        expression = expression.child()
    if expression is not None and tree.is_column(expression):
        return expression.exprId(), None
    if expression is not None and tree.node_name(expression) == "GetStructField" and tree.is_column(expression.child()):
        return expression.child().exprId(), "start" if expression.ordinal() == 0 else "end"
    return None, None
