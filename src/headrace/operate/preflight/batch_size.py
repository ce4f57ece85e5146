"""Bounds that are left to the machine, worked out before flows run: what memory holds, and what is done in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.audit.throughput import processed_per_second
from headrace.flow.checks.backpressure import MIN_RECORDS, AvailableResources, BatchSize, choose_batch_size
from headrace.flow.flow import Flow
from headrace.flow.source import HasAutoBatchSize
from headrace.flow.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fitted_flows(
    flows: Sequence[Flow], target: Target, spark: SparkSession
) -> tuple[list[Flow], dict[tuple[str, str], BatchSize]]:
    """Return the flows with a number for every bound, and those that were worked out, by flow and input.

    Called once per run, when Spark is up. Flows that run together share its memory; so do the inputs of a flow.
    """
    waiting = {
        (flow.name, name): given.source
        for flow in flows
        for name, given in flow.named_inputs.items()
        if isinstance(given.source, HasAutoBatchSize) and given.source.auto_batch_size is not None
    }
    inputs = {flow.name: len(flow.named_inputs) for flow in flows}
    share = _memory_for_data(spark) / max(1, len(waiting))
    # Flows of one application often read one topic: its records are looked at once.
    sizes = {source: source.record_bytes(target) for source in set(waiting.values())}
    found: dict[tuple[str, str], BatchSize] = {}
    for (flow, name), source in waiting.items():
        assert source.auto_batch_size is not None  # noqa: S101 - chosen above
        rate = processed_per_second(target, flow, spark, batches_of=MIN_RECORDS)
        # The record of a flow does not say which of its inputs the rows came from.
        own = rate / inputs[flow] if rate else None
        found[flow, name] = choose_batch_size(source.auto_batch_size, AvailableResources(share, sizes[source], own))
    return [_bounded(flow, found) for flow in flows], found


def _bounded(flow: Flow, found: dict[tuple[str, str], BatchSize]) -> Flow:
    inputs = {
        name: replace(given, source=given.source.with_batch_size(found[flow.name, name].records))
        if isinstance(given.source, HasAutoBatchSize) and (flow.name, name) in found
        else given
        for name, given in flow.named_inputs.items()
    }
    return replace(flow, inputs=inputs)


def _memory_for_data(spark: SparkSession) -> float:
    """Return the bytes that the executors have for data. Without executors, as in local mode, the driver is one."""
    jvm = spark._jvm
    assert jvm is not None  # noqa: S101 - a classic session always has its JVM
    managers = jvm.org.apache.spark.SparkEnv.get().blockManager().master().getMemoryStatus()
    found = managers.iterator()
    driver = executors = 0.0
    while found.hasNext():
        manager = found.next()
        most = float(manager._2()._1())
        if manager._1().isDriver():
            driver += most
        else:
            executors += most
    return executors or driver
