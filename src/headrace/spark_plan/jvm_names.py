"""Names of classes in the JVM, looked up once.

The bridge remembers no name. It asks the JVM at every use of one, part by part, and for each part that is a package the
JVM searches some three hundred jars for a class of that name: milliseconds, at every column of a transform and at every
figure of a batch. A view of the JVM takes attributes like any object, and an attribute that is there is not asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# By these PySpark itself asks: at every call of a session or a function, for the metrics of a batch, and twice for
# every column.
_WHOLE = (
    "PythonSQLUtils",
    "PythonUtils",
    "functions",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.catalyst.trees.PySparkCurrentOrigin",
    "org.apache.spark.sql.api.python.PythonSQLUtils",
)

# By these Headrace asks, part by part: at every start of a flow, at every file of a checkpoint that is not local.
_BY_PARTS = (
    "io.delta.tables.DeltaTable",
    "io.headrace.json.FlatJson",
    "java.lang.System",
    "java.util.HashMap",
    "org.apache.commons.io.IOUtils",
    "org.apache.hadoop.fs.Path",
    "org.apache.spark.SparkEnv",
    "org.apache.spark.sql.catalyst.expressions.Literal",
    "org.apache.spark.sql.catalyst.expressions.objects.Invoke",
    "org.apache.spark.sql.catalyst.plans.logical",
    "org.apache.spark.sql.catalyst.trees.TreePattern",
    "org.apache.spark.sql.classic.Dataset",
    "org.apache.spark.sql.classic.ExpressionUtils",
    "org.apache.spark.sql.delta.DeltaLog",
    "org.apache.spark.sql.execution.datasources",
    "org.apache.spark.sql.execution.streaming.sinks",
    "org.apache.spark.sql.types.ObjectType",
    "scala.Option",
)


def remember_names(spark: SparkSession) -> None:
    """Look the names up. Called once per session of an application, before any flow starts."""
    jvm = spark._jvm
    assert jvm is not None  # noqa: S101 - a classic session always has its JVM
    for name in _WHOLE:
        setattr(jvm, name, getattr(jvm, name))
    for name in _BY_PARTS:
        at: Any = jvm
        for part in name.split("."):
            found = getattr(at, part)
            setattr(at, part, found)
            at = found
