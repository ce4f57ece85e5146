"""How long a flow that failed waits, and how events reach who listens."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from headrace.runtime.events import EventBus, FlowEvent, FlowStarted, FlowStopped
from headrace.runtime.supervisor import Backoff


def test_the_wait_doubles_from_a_second_to_a_minute_and_never_ends() -> None:
    assert [Backoff().delay(n) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_an_outage_of_a_month_does_not_overflow() -> None:
    """One try per minute: 43,200 failures in a row."""
    assert Backoff().delay(43_200) == 60.0


@pytest.mark.parametrize(("failures", "delay"), [(1, 0.5), (2, 1.0), (3, 1.5), (4, None), (9, None)])
def test_after_the_last_attempt_a_flow_stays_down(failures: int, delay: float | None) -> None:
    assert Backoff(first=0.5, longest=1.5, attempts=3).delay(failures) == delay


def test_without_attempts_the_first_failure_is_the_last() -> None:
    assert Backoff(attempts=0).delay(1) is None


@given(st.floats(0.001, 10), st.floats(10, 600))
def test_a_wait_is_never_shorter_than_the_one_before_nor_longer_than_the_longest(first: float, longest: float) -> None:
    waits = [Backoff(first, longest).delay(n) or 0.0 for n in range(1, 30)]
    assert waits[0] == first
    assert waits[-1] == longest
    assert all(single <= two <= longest for single, two in pairwise(waits))


def test_every_subscriber_receives_every_event_in_order() -> None:
    bus, first, second = EventBus(), list[FlowEvent](), list[FlowEvent]()
    bus.subscribe(first.append)
    bus.subscribe(second.append)
    events: list[FlowEvent] = [FlowStarted("rides", "q1"), FlowStopped("rides")]
    for event in events:
        bus.publish(event)
    assert first == second == events
