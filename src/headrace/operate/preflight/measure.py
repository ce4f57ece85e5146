"""Measure the rates to compare batch bounds with: the arrival rate, and the earlier processing rate of a flow."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from headrace.audit.throughput import processed_per_second
from headrace.clients.storage import is_local
from headrace.flow.checks.backpressure import MeasuredRates
from headrace.flow.flow import Flow
from headrace.flow.source import Bounded
from headrace.flow.target import Target


def measure_rates(flows: Sequence[Flow], target: Target) -> dict[tuple[str, str], MeasuredRates]:
    """Measure every input with a bounded source, by flow and input. Takes seconds at most and starts no Spark.

    Rates are missing if a broker does not answer or a folder is on remote storage.
    """
    sources = {
        (flow.name, name): input_.source
        for flow in flows
        for name, input_ in flow.named_inputs.items()
        if isinstance(input_.source, Bounded)
    }
    if not sources:
        return {}
    single_input = {flow.name for flow in flows if len(flow.named_inputs) == 1}
    with ThreadPoolExecutor(max_workers=len(sources), thread_name_prefix="measure") as pool:
        arrivals = dict(
            zip(sources, pool.map(lambda source: source.arrival_rates(target), sources.values()), strict=True)
        )
    return {
        # The recorded rate of a flow with several inputs is not split by input.
        key: MeasuredRates(
            rate, processed_per_second(target, key[0]) if key[0] in single_input and _readable(target) else None
        )
        for key, rate in arrivals.items()
    }


def _readable(target: Target) -> bool:
    """Whether the checkpoints can be read without Spark."""
    return is_local(target.checkpoints)
