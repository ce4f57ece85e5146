"""The JVM behind a Spark session: the only module that uses the private attributes by which PySpark reaches it."""

from collections.abc import Sequence

from py4j.java_gateway import JavaObject, JVMView
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import DataType


def jvm_of(session: SparkSession) -> JVMView:
    """Return the JVM behind a session."""
    jvm = session._jvm
    assert jvm is not None  # noqa: S101 - a classic session always has its JVM
    return jvm


def java_session(session: SparkSession) -> JavaObject:
    """Return the session of the JVM."""
    return session._jsparkSession


def clone_session(session: SparkSession) -> SparkSession:
    """Return a copy of a session with the same settings, views and functions."""
    return SparkSession(session.sparkContext, java_session(session).cloneSession())


def java_dataset(rows: DataFrame) -> JavaObject:
    """Return the Dataset of the JVM behind a DataFrame."""
    return rows._jdf


def analyzed_plan(rows: DataFrame) -> JavaObject:
    """Return the analyzed plan of a DataFrame, before optimization."""
    return java_dataset(rows).queryExecution().analyzed()


def to_dataframe(session: SparkSession, plan: JavaObject) -> DataFrame:
    """Return a DataFrame with this plan."""
    dataset = jvm_of(session).org.apache.spark.sql.classic.Dataset
    return DataFrame(dataset.ofRows(java_session(session), plan), session)


def to_expression(session: SparkSession, column: Column) -> JavaObject:
    """Return the expression of a column."""
    return jvm_of(session).org.apache.spark.sql.classic.ExpressionUtils.expression(column._jc)


def to_column(session: SparkSession, expression: JavaObject) -> Column:
    """Return a column with this expression."""
    from pyspark.sql.classic.column import Column as ClassicColumn  # noqa: PLC0415 - needs a JVM

    return ClassicColumn(jvm_of(session).org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def java_type(session: SparkSession, data_type: DataType) -> JavaObject:
    """Return the type of the JVM for a type of PySpark."""
    return java_session(session).parseDataType(data_type.json())


def to_seq(session: SparkSession, items: Sequence[object]) -> JavaObject:
    """Return items as a Scala sequence."""
    return jvm_of(session).PythonUtils.toSeq(list(items))


def hadoop_path(session: SparkSession, location: str) -> tuple[JavaObject, JavaObject]:
    """Return a location as Hadoop's path, and the file system that it is on."""
    path = jvm_of(session).org.apache.hadoop.fs.Path(location)
    return path, path.getFileSystem(session._jsc.hadoopConfiguration())
