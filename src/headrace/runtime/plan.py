"""Builds the result of a flow from its inputs, and checks its plan before it starts."""

from pyspark.sql import DataFrame, SparkSession

from headrace.flow.checks import compatibility
from headrace.flow.checks.check import raise_on_errors
from headrace.flow.checks.operators import QueryPlan
from headrace.flow.levers import Continuous
from headrace.runtime.checkpoint.source_order import require_same_source_order
from headrace.runtime.counters import count_results
from headrace.runtime.inputs import open_inputs
from headrace.runtime.run import Run
from headrace.spark_plan.custom_state import configure_custom_state
from headrace.spark_plan.operators import read_operators
from headrace.spark_plan.source_order import PlannedSource, plan_source_order


def plan_result(session: SparkSession, run: Run) -> tuple[DataFrame, tuple[PlannedSource, ...]]:
    """Open the inputs, apply the transform, and check the plan. Called once per start.

    Returns the rows for the sink, and the sources that they come from in Spark's order.
    Raises if the plan cannot run as declared, or reads other sources than the checkpoint.
    """
    flow = run.flow
    inputs, streams = open_inputs(session, run)
    result = flow.apply(inputs)
    plan = QueryPlan(read_operators(result, len(streams)))
    raise_on_errors([*compatibility.check_trigger(flow), *compatibility.check_operators(flow, plan)])
    configure_custom_state(session, result, flow.trigger)
    order = plan_source_order(result, streams)
    require_same_source_order(run.checkpoint, order)
    return result if isinstance(flow.trigger, Continuous) else count_results(result), order
