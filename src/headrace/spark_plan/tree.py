"""Helpers to read and rebuild Spark's logical plans from Python.

Plans are immutable: a node with other children is a new node, and its columns keep their ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject, JVMView
    from pyspark.sql import SparkSession

# Each pass of Spark's rule prunes one more node of a plan; a transform has some dozens of them at most.
_MAX_PASSES = 100


def jvm_of(session: SparkSession) -> JVMView:
    """Return the JVM behind a session."""
    jvm = session._jvm
    assert jvm is not None  # noqa: S101 - a classic session always has its JVM
    return jvm


def analyzed_plan(frame: DataFrame) -> JavaObject:
    """Return the analyzed plan of a DataFrame, before optimization."""
    return frame._jdf.queryExecution().analyzed()


def to_dataframe(session: SparkSession, plan: JavaObject) -> DataFrame:
    """Return a DataFrame with this plan."""
    dataset = jvm_of(session).org.apache.spark.sql.classic.Dataset
    return DataFrame(dataset.ofRows(session._jsparkSession, plan), session)


def node_name(node: JavaObject) -> str:
    """Return the class name of a node or an expression, such as `Project`."""
    return str(node.getClass().getSimpleName())


def items(seq: JavaObject) -> Iterator[JavaObject]:
    """Yield the items of a Scala sequence."""
    for number in range(seq.size()):
        yield seq.apply(number)


def children(plan: JavaObject) -> list[JavaObject]:
    """Return the child nodes of a node."""
    return list(items(plan.children()))


def to_seq(jvm: JVMView, items: Sequence[JavaObject]) -> JavaObject:
    """Return items as a Scala sequence."""
    return jvm.PythonUtils.toSeq(list(items))


def is_named(expression: JavaObject) -> bool:
    """Whether an expression is a column or an alias: those have an id and metadata."""
    return node_name(expression) in ("AttributeReference", "Alias")


def prune_columns(plan: JavaObject, jvm: JVMView) -> JavaObject:
    """Return the plan with only the columns that it needs, by Spark's own rule until nothing changes."""
    for _ in range(_MAX_PASSES):
        pruned = jvm.org.apache.spark.sql.catalyst.optimizer.ColumnPruning.apply(plan)
        if pruned.fastEquals(plan):
            break
        plan = pruned
    return plan
