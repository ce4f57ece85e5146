"""How large a batch may be: the bound that measured rates suggest. Pure arithmetic over values that others measured.

    bound = rate x interval of the trigger x head room, rounded up to two digits

| the rate is          | head room | reason                                                                       |
|----------------------|-----------|------------------------------------------------------------------------------|
| that of the flow     | 0.8       | a full batch is done before the next one is due, with a fifth of it to spare |
| that of what arrives | 2         | a batch holds what arrives in its time, and as much again of what is waiting |

Where little arrives, a tenth of the usual bound is suggested: any machine holds that, and a smaller bound would only
make it slower to catch up after the flow was down.

A trigger without an interval starts a batch when the last one is done. Ten seconds stand for it: long enough that the
fixed cost of a batch, a few hundred milliseconds, does not matter, and short enough to be held in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.flow.levers import Every, Trigger
from headrace.flow.source import Bound

OWN_HEAD_ROOM = 0.8
ARRIVAL_HEAD_ROOM = 2.0
SECONDS_WITHOUT_INTERVAL = 10.0


@dataclass(frozen=True)
class Measured:
    """What is known of one input in numbers per second.

    | field     | meaning                                                                             |
    |-----------|-------------------------------------------------------------------------------------|
    | arrivals  | what arrived lately, by unit: records, files, bytes                                 |
    | processed | the records that the flow itself processed, while its batches were large; or None   |
    """

    arrivals: Mapping[str, float] = field(default_factory=dict)
    processed: float | None = None


@dataclass(frozen=True)
class Suggestion:
    """A bound to set, and in words where its number comes from."""

    bound: Bound
    value: int
    reason: str


def suggested_bound(rate: float, interval_seconds: float, head_room: float) -> int:
    """Return the bound for a rate per second, rounded up to two digits, at least 1."""
    exact = math.ceil(rate * interval_seconds * head_room)
    if exact < 100:
        return max(1, exact)
    step: int = 10 ** (len(str(exact)) - 2)
    return math.ceil(exact / step) * step


def suggestion(bounds: Sequence[Bound], measured: Measured, trigger: Trigger) -> Suggestion:
    """Return the bound to set: from the flow's own rate, else from what arrives, else the usual one."""
    interval = trigger.duration.seconds if isinstance(trigger, Every) else SECONDS_WITHOUT_INTERVAL
    for bound in bounds:
        if bound.unit == "records" and measured.processed:
            value = suggested_bound(measured.processed, interval, OWN_HEAD_ROOM)
            return Suggestion(
                bound, value, f"The flow itself has processed {measured.processed:,.0f} records a second."
            )
    for bound in bounds:
        rate = measured.arrivals.get(bound.unit)
        if rate:
            return _by_arrivals(bound, rate, interval)
    return Suggestion(bounds[0], bounds[0].usual, "Nothing was measured; this is the usual bound.")


def too_small(bounds: Sequence[Bound], measured: Measured, trigger: Trigger) -> Suggestion | None:
    """Return a larger bound where one that is set lets less through than what arrives.

    Only under a trigger with an interval: without one a full batch is followed by the next at once.
    """
    if not isinstance(trigger, Every):
        return None
    for bound in bounds:
        rate, interval = measured.arrivals.get(bound.unit, 0.0), trigger.duration.seconds
        if bound.value is not None and bound.value < rate * interval:
            return _by_arrivals(bound, rate, interval)
    return None


def _by_arrivals(bound: Bound, rate: float, interval: float) -> Suggestion:
    value = max(suggested_bound(rate, interval, ARRIVAL_HEAD_ROOM), bound.usual // 10)
    return Suggestion(bound, value, f"Lately {rate:,.3g} {bound.unit} a second arrived.")
