"""One read, several sinks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.errors import FlowError
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch, Sink
from headrace.flow.target import Target
from headrace.sinks.batch.persist import kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Filtered:
    """Pass on the rows that meet a condition, written in Spark SQL. The guarantee is that of the sink behind it."""

    condition: str
    sink: Sink

    @property
    def name(self) -> str:
        """Return the name of the sink behind the condition."""
        return self.sink.name

    @property
    def guarantee(self) -> Guarantee:
        """The promise of the sink behind the condition."""
        return self.sink.guarantee

    @property
    def output_modes(self) -> frozenset[OutputMode]:
        """The modes of the sink behind the condition."""
        return self.sink.output_modes

    def preflight(self, target: Target) -> None:
        """Ask the sink behind the condition."""
        self.sink.preflight(target)

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Prepare the sink behind the condition."""
        self.sink.prepare(spark, target)

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write the rows that meet the condition."""
        self.sink.write(rows.where(self.condition), batch)


@dataclass(frozen=True, init=False)
class FanOut:
    """Write each batch to several sinks, in their order, from one read.

    Each sink keeps its own guarantee: it is told a step of its own, so a batch that is run again after a crash between
    two sinks is skipped by those exactly-once sinks that have it. The whole is as good as its weakest sink.

    The batch is computed once and kept on the executors until the last sink is done.
    """

    sinks: tuple[Sink, ...]

    def __init__(self, *sinks: Sink) -> None:
        if not sinks:
            raise FlowError(
                "A fan-out has no sinks.",
                why="FanOut() was called without any.",
                state="Nothing was started.",
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
        """The weakest promise among the sinks."""
        return max((sink.guarantee for sink in self.sinks), key=list(Guarantee).index)

    @property
    def output_modes(self) -> frozenset[OutputMode]:
        """The modes that every sink takes."""
        return frozenset.intersection(*(sink.output_modes for sink in self.sinks))

    def preflight(self, target: Target) -> None:
        """Ask every sink."""
        for sink in self.sinks:
            sink.preflight(target)

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Prepare every sink."""
        for sink in self.sinks:
            sink.prepare(spark, target)

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Compute the batch once and hand it to each sink."""
        with kept(rows) as once:
            for step, sink in enumerate(self.sinks):
                sink.write(once, replace(batch, step=f"{batch.step}.{step}"))
