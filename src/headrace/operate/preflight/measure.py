"""The rates that bounds are compared with, measured before flows run: what arrives, and how fast a flow has been."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from headrace.audit.throughput import processed_per_second
from headrace.clients.storage import is_local
from headrace.flow.checks.backpressure import MeasuredRates
from headrace.flow.flow import Flow
from headrace.flow.source import Bounded
from headrace.flow.target import Target


def measured(flows: Sequence[Flow], target: Target) -> dict[tuple[str, str], MeasuredRates]:
    """Measure every input whose source has bounds, by flow and input. Takes seconds at most and starts no Spark.

    A broker that does not answer, or a folder on other storage, leaves its numbers out.
    """
    asked = {
        (flow.name, name): given.source
        for flow in flows
        for name, given in flow.named_inputs.items()
        if isinstance(given.source, Bounded)
    }
    if not asked:
        return {}
    alone = {flow.name for flow in flows if len(flow.named_inputs) == 1}
    with ThreadPoolExecutor(max_workers=len(asked), thread_name_prefix="measure") as pool:
        arrivals = dict(zip(asked, pool.map(lambda source: source.arrival_rates(target), asked.values()), strict=True))
    return {
        # The record of a flow with several inputs does not say which of them its rows came from.
        key: MeasuredRates(
            found, processed_per_second(target, key[0]) if key[0] in alone and _readable(target) else None
        )
        for key, found in arrivals.items()
    }


def _readable(target: Target) -> bool:
    """Whether the checkpoints can be read without Spark."""
    return is_local(target.checkpoints)
