"""The plan of a flow before it runs: its transform over frames that have the inputs' columns and no source behind them.

A frame of a declared schema is a streaming relation without rows, made of nothing, so no broker is asked. Of an input
that has its columns from its source, such as a Delta table, the source itself is opened, as a start would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from headrace.errors import HeadraceError
from headrace.flow.checks.operators import Plan, Unplanned
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.target import Target
from headrace.spark_plan.operators import operators, spark_refuses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

# What a transform that reads tables says when they are not there: another flow may still have to make them.
_NOT_THERE = ("NOT_FOUND", "DOES_NOT_EXIST", "NOT_EXIST", "MISSING_DELTA_TABLE", "NOT_A_DELTA_TABLE")

# A message of Spark's analyser names every column that there is.
_LONGEST_REASON = 400


def plan_of(session: SparkSession, flow: Flow, target: Target | None) -> Plan | Unplanned:
    """Return what the plan of a flow holds, or why it is not known. Runs nothing and never raises.

    Without a target only inputs with a schema can be planned.
    """
    frames = {}
    for name, given in flow.named_inputs.items():
        known_to = f"The columns of input '{name}' are known to {given.source.name} only"
        if given.schema is None and target is None:
            return Unplanned(f"{known_to}, and without a target it cannot be asked")
        try:
            frames[name] = _frame(session, given, target)
        except (HeadraceError, PySparkException, Py4JError) as error:
            return Unplanned(f"{known_to}: {_said(error)}")
    for name, given in flow.named_inputs.items():
        for rule in given.rules:
            try:
                frames[name].where(rule.condition)
            except PySparkException as error:
                return Unplanned(f"Rule '{rule.name}' of input '{name}': {_said(error)}", wrong=True)
    try:
        result = flow.apply(frames)
        return Plan(operators(result, len(frames), frames), spark_refuses(result, flow.mode))
    except PySparkException as error:
        missing = any(word in str(error.getCondition() or error) for word in _NOT_THERE)
        return Unplanned(_said(error), wrong=not missing)
    except Exception as error:
        # The transform is a user's function: whatever it raises here it would raise at every start.
        return Unplanned(f"{type(error).__name__}: {_said(error)}", wrong=True)


def _frame(session: SparkSession, given: Input, target: Target | None) -> DataFrame:
    if given.columns is not None:
        rows = blank(session, given.columns)
    else:
        assert target is not None  # noqa: S101 - asked by `plan_of`
        rows = given.source.stream(session, target)
    if given.watermark is not None:
        rows = rows.withWatermark(given.watermark.column, given.watermark.duration.spark())
    return rows


def blank(session: SparkSession, schema: StructType) -> DataFrame:
    """Return a streaming frame with these columns, of nothing. It can be planned, and never started."""
    jvm = session._jvm
    assert jvm is not None  # noqa: S101 - a classic session always has its JVM
    columns = jvm.org.apache.spark.sql.catalyst.types.DataTypeUtils.toAttributes(
        session._jsparkSession.parseDataType(schema.json())
    )
    relation = jvm.org.apache.spark.sql.catalyst.plans.logical.LocalRelation(
        columns, columns.take(0), True, jvm.scala.Option.empty()
    )
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, relation), session)


def _said(error: BaseException) -> str:
    text = (str(error).split(";\n")[0].strip().splitlines() or [type(error).__name__])[0]
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."
