"""Plans a flow before it runs: applies its transform to empty streaming DataFrames with the columns of the inputs.

An input with a declared schema becomes a streaming relation without rows, so no broker is needed. For an input with the
columns of its source, such as a Delta table, the source is opened, as at a start.
"""

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.clients.spark.jvm import java_type, jvm_of, to_dataframe
from headrace.errors import HeadraceError
from headrace.flow.checks.operators import QueryPlan, UnknownPlan
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.target import Target
from headrace.spark_plan.operators import read_operators, unsupported_operation_message

# Errors of a transform that reads missing tables: another flow may create them later.
_MISSING_TABLE = ("NOT_FOUND", "DOES_NOT_EXIST", "NOT_EXIST", "MISSING_DELTA_TABLE", "NOT_A_DELTA_TABLE")

# Messages of Spark's analyser list every available column.
_MAX_REASON_LENGTH = 400


def plan_flow(session: SparkSession, flow: Flow, target: Target | None) -> QueryPlan | UnknownPlan:
    """Return the query plan of a flow, or why it is unknown. Runs nothing and never raises.

    Without a target only inputs with a schema can be planned.
    """
    frames = {}
    for name, input_ in flow.named_inputs.items():
        columns_from = f"The columns of input '{name}' are known to {input_.source.name} only"
        if input_.schema is None and target is None:
            return UnknownPlan(f"{columns_from}, and without a target it cannot be read")
        try:
            frames[name] = _input_frame(session, input_, target)
        except (HeadraceError, PySparkException, Py4JError) as error:
            return UnknownPlan(f"{columns_from}: {_first_line(error)}")
    for name, input_ in flow.named_inputs.items():
        for rule in input_.rules:
            try:
                frames[name].where(rule.condition)
            except PySparkException as error:
                return UnknownPlan(
                    f"Rule '{rule.name}' of input '{name}': {_first_line(error)}", is_transform_error=True
                )
    try:
        result = flow.apply(frames)
        return QueryPlan(read_operators(result, len(frames), frames), unsupported_operation_message(result, flow.mode))
    except PySparkException as error:
        is_missing_table = any(word in str(error.getCondition() or error) for word in _MISSING_TABLE)
        return UnknownPlan(_first_line(error), is_transform_error=not is_missing_table)
    except Exception as error:
        # The transform is a user's function: whatever it raises here it would raise at every start.
        return UnknownPlan(f"{type(error).__name__}: {_first_line(error)}", is_transform_error=True)


def _input_frame(session: SparkSession, input_: Input, target: Target | None) -> DataFrame:
    if input_.columns is not None:
        rows = empty_stream(session, input_.columns)
    else:
        assert target is not None  # noqa: S101 - checked by `plan_flow`
        rows = input_.source.stream(session, target)
    if input_.watermark is not None:
        rows = rows.withWatermark(input_.watermark.column, input_.watermark.duration.as_interval())
    return rows


def empty_stream(session: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty streaming DataFrame with these columns. It can be planned, but not started."""
    jvm = jvm_of(session)
    columns = jvm.org.apache.spark.sql.catalyst.types.DataTypeUtils.toAttributes(java_type(session, schema))
    relation = jvm.org.apache.spark.sql.catalyst.plans.logical.LocalRelation(
        columns, columns.take(0), True, jvm.scala.Option.empty()
    )
    return to_dataframe(session, relation)


def _first_line(error: BaseException) -> str:
    text = (str(error).split(";\n")[0].strip().splitlines() or [type(error).__name__])[0]
    return text if len(text) <= _MAX_REASON_LENGTH else f"{text[:_MAX_REASON_LENGTH]}..."
