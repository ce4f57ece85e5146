"""The result of a windowed aggregation for chosen windows only, and which of its columns hold the window.

A condition is put right below the aggregation, so that a window is computed from all of its rows and no other window is
computed at all. Above it the plan of the transform stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from pyspark.sql.classic.column import Column

from headrace.spark_plan import tree
from headrace.spark_plan.late_filters import DELAY, SESSION, stateful

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame

# What a column of a result holds: the window, one of its bounds, or another column that rows are grouped by.
Holds = Literal["window", "start", "end", "key"]


class NotAWindow(Exception):
    """The result is not that of one windowed aggregation. The text says what it is instead."""


@dataclass(frozen=True)
class WindowResults:
    """A transform over batch frames whose only state is a windowed aggregation.

    `holds` says for columns of the result what they are copies of; the others are computed.
    """

    result: DataFrame
    holds: dict[str, Holds]
    _aggregate: JavaObject
    _window: JavaObject

    @classmethod
    def of(cls, result: DataFrame) -> WindowResults:
        """Look at a result over frames of `as_input`. Raises NotAWindow."""
        plan = tree.analyzed(result)
        steps = list(stateful(plan))
        if not steps:
            raise NotAWindow("It keeps no state.")
        if len(steps) > 1:
            raise NotAWindow(
                f"It keeps state in {len(steps)} steps, and one of them feeds the other or stands beside it."
            )
        if tree.kind(steps[0]) != "Aggregate":
            raise NotAWindow("Its state is not that of an aggregation.")
        keys = [each.toAttribute() for each in tree.each(steps[0].groupingExpressions()) if tree.is_named(each)]
        marked = next((each for each in keys if each.metadata().contains(DELAY)), None)
        if marked is None or marked.dataType().typeName() != "struct":
            raise NotAWindow("It does not aggregate by a window over the event time.")
        if marked.metadata().contains(SESSION):
            raise NotAWindow(
                "A late row can join two sessions that were written as two: windows of a fixed length only."
            )
        output = zip(result.columns, tree.each(plan.output()), strict=True)
        found = {name: _held(plan, each.exprId(), steps[0], marked.exprId()) for name, each in output}
        return cls(result, {name: what for name, what in found.items() if what is not None}, steps[0], marked)

    def only(self, starts: Sequence[datetime]) -> DataFrame:
        """Return the rows of the result for the windows that begin at these times."""
        session = self.result.sparkSession
        jvm = tree.jvm_of(session)
        window = Column(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(self._window))
        rows = tree.framed(session, self._aggregate.child()).where(window.getField("start").isin(list(starts)))
        chosen = self._aggregate.withNewChildren(tree.sequence(jvm, [tree.analyzed(rows)]))
        return tree.framed(session, self._rebuilt(tree.analyzed(self.result), chosen))

    def _rebuilt(self, plan: JavaObject, chosen: JavaObject) -> JavaObject:
        if plan.fastEquals(self._aggregate):
            return chosen
        jvm = tree.jvm_of(self.result.sparkSession)
        below = [
            self._rebuilt(child, chosen) if next(stateful(child), None) is not None else child
            for child in tree.children(plan)
        ]
        return plan.withNewChildren(tree.sequence(jvm, below))


def _held(plan: JavaObject, column: JavaObject, aggregate: JavaObject, window: JavaObject) -> Holds | None:
    """Return what a column of a plan's output is a copy of, by following it down to the aggregation."""
    if plan.fastEquals(aggregate):
        return _of_aggregate(aggregate, column, window)
    if tree.kind(plan) == "Project":
        made = next((each for each in tree.each(plan.projectList()) if each.exprId().equals(column)), None)
        inner, part = _copied(made)
        if inner is None:
            return None
        whole = _held(plan.child(), inner, aggregate, window)
        return whole if part is None else part if whole == "window" else None
    for child in tree.children(plan):
        if any(each.exprId().equals(column) for each in tree.each(child.output())):
            return _held(child, column, aggregate, window)
    return None


def _of_aggregate(aggregate: JavaObject, column: JavaObject, window: JavaObject) -> Holds | None:
    made = next((each for each in tree.each(aggregate.aggregateExpressions()) if each.exprId().equals(column)), None)
    inner, part = _copied(made)
    if inner is not None and inner.equals(window):
        return part or "window"
    if made is None:
        return None
    whole = made.child() if tree.kind(made) == "Alias" else made
    is_key = any(whole.semanticEquals(each) for each in tree.each(aggregate.groupingExpressions()))
    return "key" if is_key else None


def _copied(made: JavaObject | None) -> tuple[JavaObject | None, Literal["start", "end"] | None]:
    """Return the id of the column that an expression is a copy of, and which field of it, if it is one of a window."""
    if made is not None and tree.kind(made) == "Alias":
        made = made.child()
    if made is not None and tree.kind(made) == "AttributeReference":
        return made.exprId(), None
    if made is not None and tree.kind(made) == "GetStructField" and tree.kind(made.child()) == "AttributeReference":
        return made.child().exprId(), "start" if made.ordinal() == 0 else "end"
    return None, None
