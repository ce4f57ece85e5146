"""Guards the state budget of a flow: warns in time, and stops the flow after a batch that exceeds the budget.

| the state                                             | then                                                       |
|-------------------------------------------------------|------------------------------------------------------------|
| reaches four fifths of a limit                        | StateNearBudget, once until it is below seven tenths again |
| reaches it within an hour at the current growth       | StateNearBudget, once until that is no longer expected     |
| is above it after a commit                            | the flow stops (HR-228); committed data stays               |
| was above it when the flow last ran                   | the flow is not started (HR-229) until the budget is raised |
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from headrace.errors import FlowError, HeadraceError
from headrace.flow.flow import Flow
from headrace.flow.size import format_bytes
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.clock import Clock
from headrace.runtime.events import StateNearBudget
from headrace.runtime.guards.guard import Attempt, Guard, Progress, Stop
from headrace.runtime.state.forecast import StateGrowth
from headrace.runtime.state.size import OperatorState, operator_states, read_state_size, total_state, write_state_size

# A warning at four fifths leaves time to act. It repeats only after the state was clearly below.
_NEAR, _CLEARLY_BELOW = 0.8, 0.7

# A longer forecast is too unreliable to act on.
_SOON_SECONDS = 3600.0

# The initial growth of state lasts for the watermark delay and a window; twice the delay covers most.
_FILLING = 2

_SAVE_INTERVAL_MS = 30_000


class StateBudgetGuard(Guard):
    """The budget guard of one run."""

    def __init__(
        self, flow: Flow, checkpoint: Checkpoint, clock: Clock, on_event: Callable[[StateNearBudget], None], stop: Stop
    ) -> None:
        self._flow, self._checkpoint, self._clock, self._on_event = flow, checkpoint, clock, on_event
        self._stop = stop
        self._over_budget: FlowError | None = None
        self._limits = flow.state.budget.limits if flow.state.budget is not None else {}
        delays = [
            input_.watermark.duration.seconds for input_ in flow.named_inputs.values() if input_.watermark is not None
        ]
        settled = clock() / 1000 + _FILLING * max(delays, default=0.0)
        self._growth = {measure: StateGrowth(settled) for measure in self._limits}
        self._warned: dict[str, set[str]] = {measure: set() for measure in self._limits}
        self._last: tuple[int, Sequence[OperatorState]] | None = None
        self._saved_at = clock()

    def before_start(self, session: SparkSession) -> None:
        """Raise HR-229 if the last run left more state than the budget allows."""
        size = read_state_size(self._checkpoint) if self._limits else None
        for measure, limit in self._limits.items():
            if size is not None and size.amount(measure) > limit:
                raise FlowError(
                    f"Flow '{self._flow.name}' is not started: its state is over its budget.",
                    why=f"After batch {size.batch} it had {_format(measure, size.amount(measure))}; the budget is "
                    f"{_format(measure, limit)}.",
                    state="The checkpoint is good. The sinks hold every batch up to the last commit.",
                    remedy=f"Raise the budget of its state ({measure}), or remove it, and start the flow again: it "
                    "resumes where it stopped. A shorter watermark delay or window needs less state; a changed window "
                    "needs a new name.",
                    code="HR-229",
                )

    @contextmanager
    def around_batch(self, attempt: Attempt) -> Iterator[None]:
        """Raise if the previous batch left too much state. The listener may not have reported it yet.

        The current batch is planned but not written: it runs first after the budget is raised.
        """
        if self._limits and self._over_budget is None:
            previous = attempt.last_progress()
            if previous is not None:
                self._over_budget = self._find_excess(previous.batchId, operator_states(previous.stateOperators))
        if self._over_budget is not None:
            raise self._over_budget
        yield

    def on_progress(self, progress: Progress) -> None:
        """Check the state after a batch: warn, or stop the query after its in-flight batch."""
        batch_id, state, now = progress.event.batch_id, progress.event.state, self._clock()
        if not state:
            return
        self._last = (batch_id, state)
        error = self._find_excess(batch_id, state)
        if error is not None:
            self._save()
            if self._over_budget is None:
                self._over_budget = error
                self._stop(error)
            return
        for measure, limit in self._limits.items():
            self._growth[measure].add(now / 1000, total_state(state, measure))
            self._warn(batch_id, state, measure, limit)
        if now - self._saved_at >= _SAVE_INTERVAL_MS:
            self._save()

    def on_end(self, error: HeadraceError | None) -> HeadraceError | None:
        """Save the final size of the state."""
        self._save()
        return error

    def _find_excess(self, batch_id: int, state: Sequence[OperatorState]) -> FlowError | None:
        """Return the error to stop with if the state exceeds the budget."""
        for measure, limit in self._limits.items():
            if total_state(state, measure) > limit:
                return self._budget_error(batch_id, state, measure, limit)
        return None

    def _warn(self, batch_id: int, state: Sequence[OperatorState], measure: str, limit: int) -> None:
        used, warned = total_state(state, measure), self._warned[measure]
        seconds_left = self._growth[measure].seconds_until(limit)
        reasons = {"near"} if used >= _NEAR * limit else set()
        reasons |= {"soon"} if seconds_left is not None and seconds_left <= _SOON_SECONDS else set()
        if reasons - warned:
            self._on_event(
                StateNearBudget(
                    self._flow.name, batch_id, measure, used, limit, seconds_left, str(_largest(state, measure))
                )
            )
        repeated = {"near"} & warned if used >= _CLEARLY_BELOW * limit else set()
        self._warned[measure] = reasons | repeated

    def _save(self) -> None:
        self._saved_at = self._clock()
        if self._last is not None:
            # The record is advisory: a full disk must not stop the flow.
            with suppress(OSError, Py4JError):
                write_state_size(self._checkpoint, *self._last)

    def _budget_error(self, batch_id: int, state: Sequence[OperatorState], measure: str, limit: int) -> FlowError:
        used, largest = total_state(state, measure), _largest(state, measure)
        return FlowError(
            f"Flow '{self._flow.name}' stopped: its state is over its budget.",
            why=f"Batch {batch_id} left {_format(measure, used)}, and the budget is {_format(measure, limit)}: "
            f"{used / limit - 1:.0%} over. Most of it, {_format(measure, largest.amount(measure))}, is in {largest}.",
            state="The batch is committed and the checkpoint is good: nothing is lost and nothing is written twice.",
            remedy=f"Raise the budget of its state ({measure}), or remove it, and start the flow again: it resumes "
            "where it stopped. A shorter watermark delay or window, or fewer keys, need less state.",
            code="HR-228",
        )


def _largest(state: Sequence[OperatorState], measure: str) -> OperatorState:
    return max(state, key=lambda operator: operator.amount(measure))


def _format(measure: str, number: int) -> str:
    return f"{number:,} rows" if measure == "rows" else format_bytes(number)
