"""Write one batch to several sinks, or only the rows that meet a condition."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from headrace.errors import FlowError
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch, ForwardingSink, Sink, WrapsSinks
from headrace.flow.target import Target
from headrace.sinks.batch.persist import persisted


@dataclass(frozen=True)
class Filtered(ForwardingSink, WrapsSinks):
    """Write only the rows that meet a Spark SQL condition. The guarantee is that of the wrapped sink."""

    condition: str
    sink: Sink

    def wrapped_sinks(self, step: str) -> tuple[tuple[str, Sink]]:
        """Return the wrapped sink, with the same step."""
        return ((step, self.sink),)

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write the rows that meet the condition."""
        self.sink.write(rows.where(self.condition), batch)


@dataclass(frozen=True, init=False)
class FanOut(WrapsSinks):
    """Write each batch to several sinks, in order, from one read.

    Each sink keeps its own guarantee: it gets its own step, so an exactly-once sink that has already committed the
    batch skips it when the batch is retried. The fan-out as a whole has the weakest guarantee of its sinks.

    The batch is computed once and persisted until the last sink is done.
    """

    sinks: tuple[Sink, ...]

    def __init__(self, *sinks: Sink) -> None:
        if not sinks:
            raise FlowError(
                "A fan-out has no sinks.",
                why="FanOut() was called without any.",
                remedy="Name at least one sink: FanOut(KafkaSink(...), DeltaAppend(...)).",
                code="HR-204",
            )
        object.__setattr__(self, "sinks", sinks)

    @property
    def name(self) -> str:
        """Return the names of the sinks."""
        return " + ".join(sink.name for sink in self.sinks)

    @property
    def guarantee(self) -> Guarantee:
        """The weakest guarantee of the sinks."""
        return max((sink.guarantee for sink in self.sinks), key=list(Guarantee).index)

    @property
    def output_modes(self) -> frozenset[OutputMode]:
        """The output modes that every sink supports."""
        return frozenset.intersection(*(sink.output_modes for sink in self.sinks))

    def wrapped_sinks(self, step: str) -> Iterator[tuple[str, Sink]]:
        """Yield the sinks, with the numbers from 0 below the step."""
        return ((f"{step}.{number}", sink) for number, sink in enumerate(self.sinks))

    def preflight(self, target: Target) -> None:
        """Check every sink."""
        for sink in self.sinks:
            sink.preflight(target)

    def prepare(self, spark: SparkSession, target: Target, cache: RunCache) -> None:
        """Prepare every sink."""
        for sink in self.sinks:
            sink.prepare(spark, target, cache)

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Compute the batch once and write it to each sink."""
        with persisted(rows) as cached:
            for step, sink in self.wrapped_sinks(batch.step):
                sink.write(cached, replace(batch, step=step))
