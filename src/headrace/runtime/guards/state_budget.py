"""Keeps a flow within its state budget: tells of it in time, and stops the flow behind the batch that exceeds it.

| the state                                             | then                                                       |
|-------------------------------------------------------|------------------------------------------------------------|
| has four fifths of a limit                            | StateNearBudget, once until it is below seven tenths again |
| reaches it within an hour at the present growth       | StateNearBudget, once until it does not any more           |
| is above it after a commit                            | the flow stops (HR-228); what is committed stays            |
| was above it when the flow last ran                   | the flow is not started (HR-229) until the budget is raised |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from py4j.protocol import Py4JError

from headrace.errors import FlowError
from headrace.flow.flow import Flow
from headrace.flow.size import said_bytes
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.clock import Clock
from headrace.runtime.events import StateNearBudget
from headrace.runtime.state.forecast import Growth
from headrace.runtime.state.size import OperatorState, read_note, total, write_note

# A warning at four fifths leaves time to act. It is given again only after the state has been clearly below.
_NEAR, _BELOW = 0.8, 0.7

# A forecast that is further off changes before anybody has acted on it.
_SOON_SECONDS = 3600.0

# State fills for the first time for as long as the watermark's delay and a window; twice the delay covers most.
_FILLING = 2

_NOTE_EVERY_MS = 30_000


class StateWatch:
    """The watch over one run of a flow. `begin` before it, `take` per committed batch in their order, then `close`."""

    def __init__(
        self, flow: Flow, checkpoint: Checkpoint, clock: Clock, hear: Callable[[StateNearBudget], None]
    ) -> None:
        self._flow, self._checkpoint, self._clock, self._hear = flow, checkpoint, clock, hear
        self._limits = flow.state.budget.limits if flow.state.budget is not None else {}
        delays = [each.watermark.duration.seconds for each in flow.named_inputs.values() if each.watermark is not None]
        settled = clock() / 1000 + _FILLING * max(delays, default=0.0)
        self._growth = {measure: Growth(settled) for measure in self._limits}
        self._told: dict[str, set[str]] = {measure: set() for measure in self._limits}
        self._last: tuple[int, Sequence[OperatorState]] | None = None
        self._noted_at = clock()

    def begin(self) -> None:
        """Raise HR-229 when the last run left more state than the budget allows."""
        note = read_note(self._checkpoint) if self._limits else None
        for measure, limit in self._limits.items():
            if note is not None and note.amount(measure) > limit:
                raise FlowError(
                    f"Flow '{self._flow.name}' is not started: its state is over its budget.",
                    why=f"After batch {note.batch} it had {_said(measure, note.amount(measure))}; the budget is "
                    f"{_said(measure, limit)}.",
                    state="The checkpoint is good. The sinks hold every batch up to the last commit.",
                    remedy=f"Raise the budget of its state ({measure}), or take it away, and start the flow again: it "
                    "goes on where it stopped. With a shorter watermark delay or window less is kept; a changed window "
                    "needs a new name.",
                    code="HR-229",
                )

    def take(self, batch_id: int, state: Sequence[OperatorState]) -> FlowError | None:
        """Look at what a batch left; return the error to stop with when it is over the budget."""
        if not state:
            return None
        self._last, now = (batch_id, state), self._clock()
        over = self.exceeded(batch_id, state)
        if over is not None:
            self._note()
            return over
        for measure, limit in self._limits.items():
            self._growth[measure].take(now / 1000, total(state, measure))
            self._warn(batch_id, state, measure, limit)
        if now - self._noted_at >= _NOTE_EVERY_MS:
            self._note()
        return None

    def exceeded(self, batch_id: int, state: Sequence[OperatorState]) -> FlowError | None:
        """Return the error to stop with when a batch left more than the budget. Any thread may ask."""
        over = next((each for each in self._limits.items() if total(state, each[0]) > each[1]), None)
        return self._over(batch_id, state, *over) if over is not None else None

    def close(self) -> None:
        """Note the size that the run ends with. Called once, when the query has ended."""
        self._note()

    def _warn(self, batch_id: int, state: Sequence[OperatorState], measure: str, limit: int) -> None:
        used, told = total(state, measure), self._told[measure]
        left = self._growth[measure].seconds_until(limit)
        reasons = {"near"} if used >= _NEAR * limit else set()
        reasons |= {"soon"} if left is not None and left <= _SOON_SECONDS else set()
        if reasons - told:
            self._hear(
                StateNearBudget(self._flow.name, batch_id, measure, used, limit, left, str(_largest(state, measure)))
            )
        kept = {"near"} & told if used >= _BELOW * limit else set()
        self._told[measure] = reasons | kept

    def _note(self) -> None:
        self._noted_at = self._clock()
        if self._last is not None:
            # The note is advice. A disk that is full keeps no batch back.
            with suppress(OSError, Py4JError):
                write_note(self._checkpoint, *self._last)

    def _over(self, batch_id: int, state: Sequence[OperatorState], measure: str, limit: int) -> FlowError:
        used, largest = total(state, measure), _largest(state, measure)
        return FlowError(
            f"Flow '{self._flow.name}' stopped: its state is over its budget.",
            why=f"Batch {batch_id} left {_said(measure, used)}, and the budget is {_said(measure, limit)}: "
            f"{used / limit - 1:.0%} over. Most of it, {_said(measure, largest.amount(measure))}, is in {largest}.",
            state="The batch is committed and the checkpoint is good: nothing is lost and nothing is written twice.",
            remedy=f"Raise the budget of its state ({measure}), or take it away, and start the flow again: it goes on "
            "where it stopped. With a shorter watermark delay or window, or fewer keys, less is kept.",
            code="HR-228",
        )


def _largest(state: Sequence[OperatorState], measure: str) -> OperatorState:
    return max(state, key=lambda each: each.amount(measure))


def _said(measure: str, number: int) -> str:
    return f"{number:,} rows" if measure == "rows" else said_bytes(number)
