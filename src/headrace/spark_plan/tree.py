"""Spark's logical plans, read and rebuilt from Python. Nothing here knows what a plan is about.

A plan is never changed: a step with other children is a new step, and the columns keep their ids in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject, JVMView
    from pyspark.sql import SparkSession

# Each pass of Spark's rule prunes one more step of a plan; a transform has some dozens of them at most.
_MOST_PASSES = 100


def jvm_of(session: SparkSession) -> JVMView:
    """Return the JVM behind a session."""
    jvm = session._jvm
    assert jvm is not None  # noqa: S101 - a classic session always has its JVM
    return jvm


def analyzed(frame: DataFrame) -> JavaObject:
    """Return the plan of a frame, resolved and not yet optimized."""
    return frame._jdf.queryExecution().analyzed()


def framed(session: SparkSession, plan: JavaObject) -> DataFrame:
    """Return a plan as a frame."""
    dataset = jvm_of(session).org.apache.spark.sql.classic.Dataset
    return DataFrame(dataset.ofRows(session._jsparkSession, plan), session)


def kind(node: JavaObject) -> str:
    """Return the name of a step or an expression, such as `Project`."""
    return str(node.getClass().getSimpleName())


def each(sequence: JavaObject) -> Iterator[JavaObject]:
    """Yield the items of one of Spark's sequences."""
    for number in range(sequence.size()):
        yield sequence.apply(number)


def children(plan: JavaObject) -> list[JavaObject]:
    """Return the steps that feed a step."""
    return list(each(plan.children()))


def sequence(jvm: JVMView, items: Sequence[JavaObject]) -> JavaObject:
    """Return items as one of Spark's sequences."""
    return jvm.PythonUtils.toSeq(list(items))


def is_named(expression: JavaObject) -> bool:
    """Whether an expression is a column or an alias: those have an id, and hand metadata on."""
    return kind(expression) in ("AttributeReference", "Alias")


def pruned(plan: JavaObject, jvm: JVMView) -> JavaObject:
    """Return the plan with the columns that it needs, by Spark's own rule, applied until nothing changes."""
    for _ in range(_MOST_PASSES):
        after = jvm.org.apache.spark.sql.catalyst.optimizer.ColumnPruning.apply(plan)
        if after.fastEquals(plan):
            break
        plan = after
    return plan
