"""Plan a project's flows before they run, on a small Spark session without a broker."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.flow.checks import compatibility
from headrace.flow.checks.finding import Finding
from headrace.flow.checks.operators import QueryPlan, UnknownPlan
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.runtime.continuous import count_tasks, is_continuous
from headrace.runtime.session import flow_session, local_cores, planning_session
from headrace.spark_plan.planning import plan_flow
from headrace.stack.jars import JarCache


def read_query_plans(
    flows: Sequence[Flow], target: Target | None, *, log: Path | None = None
) -> dict[str, QueryPlan | UnknownPlan]:
    """Return the plan of each flow, by the flow's name. Takes seconds, most of them to start Spark.

    Reads and writes nothing. If Spark cannot start, every flow has the reason.
    """
    if not flows:
        return {}
    try:
        jars = JarCache().verify("spark")
        with planning_session(jars, log=log) as spark:
            return {flow.name: plan_flow(flow_session(spark, flow), flow, target) for flow in flows}
    except HeadraceError as error:
        return {flow.name: UnknownPlan(f"{error.what} {error.remedy}") for flow in flows}


def task_slot_findings(flows: Sequence[Flow], target: Target | None) -> Iterator[Finding]:
    """Yield a finding for each continuous flow that needs more task slots than the target has, if both are known.

    Asks the target's broker for the topics; if it does not answer, the start of the flow asks again.
    """
    slots = local_cores(target.master) if target is not None else None
    if target is None or slots is None:
        return
    slots_needed: dict[str, int] = {}
    for flow in filter(is_continuous, flows):
        try:
            slots_needed[flow.name] = count_tasks(flow, target)
        except HeadraceError:
            return
    for flow in flows:
        if flow.name in slots_needed:
            slots_of_others = sum(slots_needed.values()) - slots_needed[flow.name]
            yield from compatibility.check_task_slots(
                flow, slots_needed[flow.name], max(0, slots - 1 - slots_of_others)
            )
