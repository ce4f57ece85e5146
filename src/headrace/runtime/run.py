"""What one run of a flow works with."""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.lease import ActiveLease
from headrace.runtime.clock import Clock, now_ms
from headrace.runtime.events import FlowEvent

# Returns the stream of a folder of idle ticks: one column, of event times. `sources` has the only streams, and the
# runtime imports no source, so `operate` passes it in.
IdleTicks = Callable[["SparkSession", str], "DataFrame"]


@dataclass(frozen=True)
class Run:
    """One run of a flow, from a start to its end. Created by the supervisor, under the lease.

    `memory_mb` limits RocksDB; None keeps Spark's default. `idle_ticks` is needed if an input has an `idle_timeout`.
    """

    flow: Flow
    target: Target
    checkpoint: Checkpoint
    lease: ActiveLease
    publish: Callable[[FlowEvent], None]
    clock: Clock = now_ms
    memory_mb: int | None = None
    idle_ticks: IdleTicks | None = None
