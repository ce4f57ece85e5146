"""What a sink has to do for the runtime, and what it is told about a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.flow.target import Target


@dataclass(frozen=True)
class Batch:
    """One attempt to write one micro-batch.

    `query_id` comes from the checkpoint's metadata. A new checkpoint is a new query id, so a writer keyed
    by `app_id` never mistakes batch 0 of a new checkpoint for batch 0 of the old one.
    """

    flow: str
    query_id: str
    id: int
    target: Target
    step: str = "0"

    @property
    def app_id(self) -> str:
        """The identity under which an exactly-once sink records that this batch is in."""
        return f"{self.query_id}:{self.flow}:{self.step}"


@runtime_checkable
class Sink(Protocol):
    """Where the rows of each batch go.

    `write` is called once per attempt, on the driver, never concurrently for one flow. An attempt may follow
    one that died half-way, with the same batch id and the same rows: the guarantee says what then happens.
    It consumes `rows` exactly once: a second action would run the batch, and its state, again.
    """

    @property
    def guarantee(self) -> Guarantee:
        """The promise; an attribute of the class for every sink but those that wrap others."""
        ...

    @property
    def output_modes(self) -> frozenset[OutputMode]:
        """The modes that the sink can take."""
        ...

    @property
    def name(self) -> str:
        """A short name for messages and figures, such as `delta:gold/driver_metrics`."""
        ...

    def preflight(self, target: Target) -> None:
        """Prove that the sink can be written. Called once, before Spark starts; raises a HeadraceError."""
        ...

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Make what the first write needs. Called once per start of a flow, before the query."""
        ...

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write all rows of the batch. Returns only when they are durable."""
        ...
