"""Choose automatic batch sizes before flows run, from the available memory and the processing rate.

Measure the rates to compare batch bounds with: the arrival rate, and the earlier processing rate of a flow.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pyspark.sql import SparkSession

from headrace.audit.throughput import processed_per_second
from headrace.clients.spark.jvm import jvm_of
from headrace.clients.storage import is_local
from headrace.flow.checks.backpressure import (
    MIN_RECORDS,
    AvailableResources,
    BatchSize,
    MeasuredRates,
    choose_batch_size,
)
from headrace.flow.flow import Flow
from headrace.flow.source import Bounded, HasAutoBatchSize
from headrace.flow.target import Target


def size_batches(
    flows: Sequence[Flow], target: Target, spark: SparkSession
) -> tuple[list[Flow], dict[tuple[str, str], BatchSize]]:
    """Return the flows with all batch sizes set, and the chosen sizes by flow and input.

    Call once per run, after the start of Spark. Flows of an application share its memory; so do the inputs of a flow.
    """
    automatic = {
        (flow.name, name): input_.source
        for flow in flows
        for name, input_ in flow.named_inputs.items()
        if isinstance(input_.source, HasAutoBatchSize) and input_.source.auto_batch_size is not None
    }
    inputs = {flow.name: len(flow.named_inputs) for flow in flows}
    share = _memory_for_data(spark) / max(1, len(automatic))
    # Flows of an application often read the same topic: its records are sampled only once.
    record_bytes = {source: source.record_bytes(target) for source in set(automatic.values())}
    sizes: dict[tuple[str, str], BatchSize] = {}
    for (flow, name), source in automatic.items():
        assert source.auto_batch_size is not None  # noqa: S101 - selected above
        rate = processed_per_second(target, flow, spark, batches_of=MIN_RECORDS)
        # The recorded rate of a flow is not split by input.
        rate_per_input = rate / inputs[flow] if rate else None
        sizes[flow, name] = choose_batch_size(
            source.auto_batch_size, AvailableResources(share, record_bytes[source], rate_per_input)
        )
    return [_with_batch_sizes(flow, sizes) for flow in flows], sizes


def _with_batch_sizes(flow: Flow, sizes: dict[tuple[str, str], BatchSize]) -> Flow:
    inputs = {
        name: replace(input_, source=input_.source.with_batch_size(sizes[flow.name, name].records))
        if isinstance(input_.source, HasAutoBatchSize) and (flow.name, name) in sizes
        else input_
        for name, input_ in flow.named_inputs.items()
    }
    return replace(flow, inputs=inputs)


def _memory_for_data(spark: SparkSession) -> float:
    """Return the storage memory of the executors in bytes, or that of the driver in local mode."""
    managers = jvm_of(spark).org.apache.spark.SparkEnv.get().blockManager().master().getMemoryStatus()
    iterator = managers.iterator()
    driver = executors = 0.0
    while iterator.hasNext():
        manager = iterator.next()
        storage_memory = float(manager._2()._1())
        if manager._1().isDriver():
            driver += storage_memory
        else:
            executors += storage_memory
    return executors or driver


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
    # Only local checkpoints can be read without Spark. The recorded rate of a flow is not split by input.
    with_rate = single_input if is_local(target.checkpoints) else set[str]()
    return {
        key: MeasuredRates(rate, processed_per_second(target, key[0]) if key[0] in with_rate else None)
        for key, rate in arrivals.items()
    }
