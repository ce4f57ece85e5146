"""The plans of a project's flows, looked at before they run: on a small Spark of its own, without a broker."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.flow.checks import compatibility
from headrace.flow.checks.finding import Finding
from headrace.flow.checks.operators import QueryPlan, UnknownPlan
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.runtime.continuous import count_tasks, is_continuous
from headrace.runtime.session import flow_session, planning_session
from headrace.spark_plan.planning import plan_flow
from headrace.stack.jars import JarCache

# A master on one machine, with a number of cores or a star for all of them.
_LOCAL = re.compile(r"local(?:\[(\d+|\*)[^\]]*\])?")


def plans(
    flows: Sequence[Flow], target: Target | None, *, log: Path | None = None
) -> dict[str, QueryPlan | UnknownPlan]:
    """Return what the plan of each flow holds, by the flow's name. Takes seconds: most of them to start Spark.

    Nothing is read and nothing is written. Where Spark cannot start, every flow says why.
    """
    if not flows:
        return {}
    try:
        jars = JarCache().verify("spark")
        with planning_session(jars, log=log) as spark:
            return {flow.name: plan_flow(flow_session(spark, flow), flow, target) for flow in flows}
    except HeadraceError as error:
        return {flow.name: UnknownPlan(f"{error.what} {error.remedy}") for flow in flows}


def slot_findings(flows: Sequence[Flow], target: Target | None) -> Iterator[Finding]:
    """Yield the flows without batches that the target has too few task slots for, as far as both can be known.

    The topics are asked for at the target's broker; one that does not answer is asked again by the start.
    """
    slots = _slots(target.master) if target is not None else None
    if target is None or slots is None:
        return
    held: dict[str, int] = {}
    for flow in filter(is_continuous, flows):
        try:
            held[flow.name] = count_tasks(flow, target)
        except HeadraceError:
            return
    for flow in flows:
        if flow.name in held:
            others = sum(held.values()) - held[flow.name]
            yield from compatibility.check_task_slots(flow, held[flow.name], max(0, slots - 1 - others))


def _slots(master: str) -> int | None:
    """Return the task slots of a master on this machine; None for a cluster, which says so when it runs."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        return None
    return 1 if found[1] is None else (os.cpu_count() or 1) if found[1] == "*" else int(found[1])
