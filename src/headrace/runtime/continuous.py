"""Support for the triggers without micro-batches, `Continuous` and `RealTime`.

Spark then writes the rows itself, so Headrace sees no batches. Information about such a flow has other sources:

|                    | RealTime                          | Continuous                                              |
|--------------------|-----------------------------------|---------------------------------------------------------|
| progress           | Spark reports each batch          | Spark reports nothing: the commit log is polled         |
| invalid rows       | counted in the query, quarantined | not counted: every epoch is read again and its invalid  |
|                    | after the batch                   | rows are quarantined                                    |
| start offsets      | recorded by Spark                 | recorded here before the first start                    |
| recreated topics   | ids are compared after each batch | ids are compared after each epoch                       |
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from headrace.errors import FlowError
from headrace.flow.flow import Flow
from headrace.flow.levers import Continuous, RealTime
from headrace.flow.sink import NativeWrite, SupportsNativeWrite
from headrace.flow.source import Source, SupportsContinuous
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint

# A slot that these flows leave free: for micro-batch flows, and the audit of invalid rows.
_RESERVED_SLOTS = 1


def is_continuous(flow: Flow) -> bool:
    """Whether a flow runs without micro-batches."""
    return isinstance(flow.trigger, Continuous | RealTime)


def count_tasks(flow: Flow, target: Target) -> int:
    """Return how many task slots a flow occupies while it runs; 0 with micro-batches. Asks the broker."""
    if not is_continuous(flow):
        return 0
    sources = [input_.source for input_ in flow.named_inputs.values()]
    return sum(source.partition_count(target) for source in sources if isinstance(source, SupportsContinuous))


def require_task_slots(application: SparkSession, target: Target, flows: Sequence[Flow]) -> None:
    """Raise HR-222 unless every partition that the flows read without batches has a slot, and one slot is free.

    Spark does not check: it reads as many partitions as it has slots, and the other partitions wait.
    """
    slots = application.sparkContext.defaultParallelism
    occupied = {flow.name: count_tasks(flow, target) for flow in flows if is_continuous(flow)}
    if sum(occupied.values()) + _RESERVED_SLOTS > slots:
        flow_slots = ", ".join(f"'{name}' {count}" for name, count in occupied.items())
        raise FlowError(
            f"{sum(occupied.values())} partitions are read without batches, and Spark has {slots} task slots.",
            why=f"Each of them occupies a slot while the flow runs ({flow_slots}), and {_RESERVED_SLOTS} has to "
            "be free for everything else. Records of the other partitions would not be read.",
            state="Nothing was started and nothing was written.",
            remedy=f"Give the target {sum(occupied.values()) + _RESERVED_SLOTS} cores or more, run the flows in "
            "separate applications, or use a trigger with batches.",
            code="HR-222",
        )


def require_batch_checkpoint(flow: Flow, checkpoint: Checkpoint) -> None:
    """Raise HR-223 for a flow with batches on a checkpoint of continuous processing, which Spark cannot resume."""
    planned = checkpoint.planned_batches()
    if isinstance(flow.trigger, Continuous) or not planned:
        return
    last = checkpoint.offset_entry(planned[-1])
    if last.continuous:
        offsets = "; ".join(source for source in last.offsets if source)
        raise FlowError(
            f"Flow '{flow.name}' cannot continue in batches: continuous processing wrote its checkpoint.",
            why="It records no watermark with its offsets, and Spark's batches need one.",
            state=f"Nothing was started. All records before these offsets are sent: {offsets}.",
            remedy="Set trigger=Continuous() again; or start the flow under a new name, with "
            "starting=StartOffsets(...) at these offsets.",
            code="HR-223",
        )


def input_source(flow: Flow, name: str, checkpoint: Checkpoint) -> Source:
    """Return the source of an input; for triggers without batches, without bounds and at the start offsets."""
    source = flow.named_inputs[name].source
    if not is_continuous(flow) or not isinstance(source, SupportsContinuous):
        return source
    start = (
        checkpoint.continuous_start()
        if isinstance(flow.trigger, Continuous) and not checkpoint.planned_batches()
        else ()
    )
    return source.for_continuous(start[list(flow.named_inputs).index(name)] if start else None)


def native_write(flow: Flow, target: Target, rows: DataFrame) -> NativeWrite | None:
    """Return how Spark's own writer writes the rows of a flow; None for a flow with batches, whose sink writes them."""
    if not is_continuous(flow):
        return None
    assert isinstance(flow.sink, SupportsNativeWrite)  # noqa: S101 - `compatibility.trigger` refuses others (HRC-108)
    return flow.sink.native_write(rows, target)


def record_start_offsets(flow: Flow, target: Target, checkpoint: Checkpoint) -> None:
    """Record the start offsets of a continuous flow before its first start.

    Spark records them with the first epoch only. After a crash before it the flow would start at later offsets, and the
    audit of the first epoch would not know its range.
    """
    if isinstance(flow.trigger, Continuous) and not checkpoint.planned_batches() and not checkpoint.continuous_start():
        sources = [input_.source for input_ in flow.named_inputs.values()]
        checkpoint.record_continuous_start(
            [source.initial_offsets(target) for source in sources if isinstance(source, SupportsContinuous)]
        )


def latest_offsets(flow: Flow, target: Target) -> tuple[str, ...]:
    """Return the current end offsets of each input."""
    sources = (input_.source for input_ in flow.named_inputs.values())
    return tuple(source.latest_offsets(target) for source in sources if isinstance(source, SupportsContinuous))
