"""The guards of a running query, in one list."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pyspark.sql import SparkSession

from headrace.errors import HeadraceError
from headrace.flow.run_cache import RunCache
from headrace.runtime.guards.batches import BatchEventGuard, ComputeBeforeWriteGuard
from headrace.runtime.guards.checkpoint import CheckpointGuard, LeaseLossGuard, OwnershipGuard, SettingsGuard
from headrace.runtime.guards.epochs import EpochGuard
from headrace.runtime.guards.guard import Attempt, Guard, Progress
from headrace.runtime.guards.idle_inputs import IdleInputGuard
from headrace.runtime.guards.sources import CaptureGuard, SourceGuard
from headrace.runtime.guards.state_budget import StateBudgetGuard
from headrace.runtime.run import Run
from headrace.runtime.stopping import Stopper


class OrderedGuards(Guard):
    """All guards of one run of a flow.

    The order of the list has these reasons:

    | hook         | order    | reason                                                                                 |
    |--------------|----------|----------------------------------------------------------------------------------------|
    | before_start | down     | a damaged checkpoint is refused before another check reads it                          |
    | around_batch | down, up | the lease is checked after the requests to a broker, shortly before the write         |
    | on_progress  | down     | a batch is published when its files are recorded and its state is checked              |
    | on_end       | up       | the last epochs are reported before another guard ends; a lost lease explains an error |
    |              |          | before lost offsets do                                                                 |
    """

    def __init__(self, run: Run, stopper: Stopper, cache: RunCache) -> None:
        flow, target, checkpoint, publish = run.flow, run.target, run.checkpoint, run.publish
        self._guards: tuple[Guard, ...] = (
            stopper,
            CheckpointGuard(flow, checkpoint),
            StateBudgetGuard(flow, checkpoint, run.clock, publish, stopper.stop),
            BatchEventGuard(publish),
            SourceGuard(flow, target, checkpoint, publish, stopper.stop),
            CaptureGuard(flow, target, publish, stopper.stop),
            SettingsGuard(flow, checkpoint, publish),
            OwnershipGuard(flow, target, checkpoint),
            LeaseLossGuard(run.lease, stopper.stop),
            ComputeBeforeWriteGuard(flow, checkpoint),
            IdleInputGuard(flow, target, checkpoint, run.clock, cache),
            EpochGuard(flow, target, checkpoint, stopper.stop, self.on_progress),
        )

    def before_start(self, session: SparkSession) -> None:
        """Let every guard check the start."""
        for guard in self._guards:
            guard.before_start(session)

    @contextmanager
    def around_batch(self, attempt: Attempt) -> Iterator[None]:
        """Enter the context of every guard; the last one is the innermost."""
        with ExitStack() as stack:
            for guard in self._guards:
                stack.enter_context(guard.around_batch(attempt))
            yield

    def on_progress(self, progress: Progress) -> None:
        """Report a committed batch to every guard."""
        for guard in self._guards:
            guard.on_progress(progress)

    def on_end(self, error: HeadraceError | None) -> HeadraceError | None:
        """End every guard, and return the error that the flow ends with."""
        for guard in reversed(self._guards):
            error = guard.on_end(error)
        return error
