"""Caches JVM class names in py4j, so that each is resolved once.

Py4J does not cache names. It asks the JVM at every use, part by part, and for each package part the JVM searches some
three hundred jars for a class: milliseconds, for every column of a transform and every metric of a batch. A JVM view
accepts attributes like any object, and an existing attribute is not looked up.
"""

from typing import Any

from pyspark.sql import SparkSession

from headrace.clients.spark.jvm import jvm_of

# Full names that PySpark looks up: for sessions, functions, metrics of a batch, and twice for every column.
_FULL_NAMES = (
    "PythonSQLUtils",
    "PythonUtils",
    "functions",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.catalyst.trees.PySparkCurrentOrigin",
    "org.apache.spark.sql.api.python.PythonSQLUtils",
)

# Names that Headrace looks up part by part: at every start of a flow, for every remote file of a checkpoint.
_DOTTED_NAMES = (
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


def cache_jvm_classes(spark: SparkSession) -> None:
    """Resolve and cache the names. Called once per session of an application, before any flow starts."""
    jvm = jvm_of(spark)
    for name in _FULL_NAMES:
        setattr(jvm, name, getattr(jvm, name))
    for name in _DOTTED_NAMES:
        parent: Any = jvm
        for part in name.split("."):
            child = getattr(parent, part)
            setattr(parent, part, child)
            parent = child
