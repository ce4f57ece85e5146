"""Helpers to read and rebuild Spark's logical plans from Python.

Plans are immutable: a node with other children is a new node, and its columns keep their ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.clients.spark.jvm import jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

# Each pass of Spark's rule prunes one more node of a plan; a transform has some dozens of them at most.
_MAX_PASSES = 100


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


def is_named(expression: JavaObject) -> bool:
    """Whether an expression is a column or an alias: those have an id and metadata."""
    return node_name(expression) in ("AttributeReference", "Alias")


def prune_columns(session: SparkSession, plan: JavaObject) -> JavaObject:
    """Return the plan with only the columns that it needs, by Spark's own rule until nothing changes."""
    rule = jvm_of(session).org.apache.spark.sql.catalyst.optimizer.ColumnPruning
    for _ in range(_MAX_PASSES):
        pruned = rule.apply(plan)
        if pruned.fastEquals(plan):
            break
        plan = pruned
    return plan
