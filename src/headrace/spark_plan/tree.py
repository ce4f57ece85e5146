"""Walk Spark's logical plans from Python: their nodes, and the marks of Spark on their columns.

Plans are immutable: a node with other children is a new node, and its columns keep their ids.
"""

from collections.abc import Iterable, Iterator

from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

from headrace.clients.spark.jvm import jvm_of

# Metadata keys of watermark columns, and of the columns of the two window functions. A copy of a column has them too.
WATERMARK_DELAY = "spark.watermarkDelayMs"
TIME_WINDOW, SESSION_WINDOW = "spark.timeWindow", "spark.sessionWindow"

# Each pass of Spark's rule prunes one more node of a plan; a transform has some dozens of them at most.
_MAX_PASSES = 100


def node_name(node: JavaObject) -> str:
    """Return Spark's name of a node or an expression, such as `Project`."""
    return str(node.nodeName())


def items(seq: JavaObject) -> Iterator[JavaObject]:
    """Yield the items of a Scala sequence."""
    for number in range(seq.size()):
        yield seq.apply(number)


def children(plan: JavaObject) -> list[JavaObject]:
    """Return the child nodes of a node."""
    return list(items(plan.children()))


def nodes(plan: JavaObject) -> Iterator[JavaObject]:
    """Yield a node and all nodes below it, children from left to right."""
    yield plan
    for child in children(plan):
        yield from nodes(child)


def is_column(expression: JavaObject) -> bool:
    """Whether an expression is a column of a node below."""
    return node_name(expression) == "AttributeReference"


def has_metadata(expression: JavaObject, mark: str) -> bool:
    """Whether an expression is a column with a metadata key."""
    return is_column(expression) and bool(expression.metadata().contains(mark))


def watermark_column(columns: Iterable[JavaObject]) -> JavaObject | None:
    """Return the first of some columns that has a watermark, or None."""
    return next((column for column in columns if has_metadata(column, WATERMARK_DELAY)), None)


def grouping_columns(aggregate: JavaObject) -> list[JavaObject]:
    """Return the columns that an aggregation groups by, without expressions that have no name."""
    return [key.toAttribute() for key in items(aggregate.groupingExpressions()) if is_named(key)]


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
