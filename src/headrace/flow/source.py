"""What a source has to do for the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.flow.target import Target


@runtime_checkable
class Source(Protocol):
    """Rows from outside, as a stream and, for audits and replays, as an exact range of it.

    A source is a frozen value. It opens nothing before one of its methods is called.
    """

    @property
    def name(self) -> str:
        """A short name for messages, such as `kafka:ride-events`."""
        ...

    @property
    def carries_payload(self) -> bool:
        """Whether rows arrive as bytes in a `value` column that a schema has to be applied to."""
        ...

    def preflight(self, target: Target) -> None:
        """Prove that the source can be read. Called once, before Spark starts; raises a HeadraceError."""
        ...

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the endless frame. Called once per start of a flow."""
        ...

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Return exactly the rows between two offsets of the checkpoint's log, `end` excluded.

        Called by the auditor and by replays, never on the path of a batch. `start` and `end` are the
        JSON that Spark wrote into the offset log for this source.
        """
        ...
