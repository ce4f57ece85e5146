"""When an idle input gets an idle tick. Times are milliseconds; the idle timeout is 10 s."""

from __future__ import annotations

from headrace.runtime.guards.guard import InputProgress
from headrace.runtime.guards.idle_inputs import IdleTimer

IDLE = 10_000


class Clock:
    def __init__(self, now: int = 100_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def idle_timer(clock: Clock, *names: str) -> IdleTimer:
    return IdleTimer(dict.fromkeys(names or ("rows",), IDLE), clock)


def test_an_idle_input_gets_an_idle_tick_at_the_clock_minus_the_idle_timeout() -> None:
    clock = Clock()
    beating = idle_timer(clock)
    assert beating.on_batch({"rows": InputProgress(5)}, state_rows=3) == {}
    clock.now = 109_999
    assert beating.on_empty_trigger() == {}
    clock.now = 110_000
    assert beating.on_empty_trigger() == {"rows": 100_000}


def test_the_next_idle_tick_is_half_of_the_idle_timeout_later() -> None:
    clock = Clock()
    beating = idle_timer(clock)
    actual = []
    for clock.now in range(110_000, 126_000, 1_000):
        actual.extend(beating.on_empty_trigger().values())
    assert actual == [100_000, 105_000, 110_000, 115_000]


def test_a_row_resets_the_idle_timer() -> None:
    clock = Clock()
    beating = idle_timer(clock)
    clock.now = 109_000
    assert beating.on_batch({"rows": InputProgress(1)}, state_rows=1) == {}
    clock.now = 118_999
    assert beating.on_empty_trigger() == {}
    clock.now = 119_000
    assert beating.on_empty_trigger() == {"rows": 109_000}


def test_an_input_with_a_backlog_is_not_idle_even_after_a_batch_without_rows() -> None:
    clock = Clock()
    beating = idle_timer(clock)
    clock.now = 200_000
    assert beating.on_batch({"rows": InputProgress(0, rest=True)}, state_rows=1) == {}
    clock.now = 209_999
    assert beating.on_empty_trigger() == {}


def test_an_input_is_not_idle_before_the_idle_timeout_has_passed_in_this_run() -> None:
    clock = Clock()
    beating = idle_timer(clock)
    clock.now = 105_000
    assert beating.on_empty_trigger() == {}


def test_without_state_there_are_no_idle_ticks() -> None:
    clock = Clock()
    beating = idle_timer(clock)
    beating.on_batch({"rows": InputProgress(0)}, state_rows=0)
    clock.now = 500_000
    assert beating.on_empty_trigger() == {}
    assert beating.on_batch({"rows": InputProgress(0)}, state_rows=2) == {"rows": 490_000}


def test_without_state_an_idle_tick_is_due_when_the_sink_has_pending_rows() -> None:
    clock, waits, asked = Clock(), [False], []

    def sink_waits() -> bool:
        asked.append(clock.now)
        return waits[0]

    beating = IdleTimer({"rows": IDLE}, clock, sink_waits)
    beating.on_batch({"rows": InputProgress(3)}, state_rows=0)
    for clock.now in (105_000, 110_000, 111_000):
        assert beating.on_empty_trigger() == {}
    # Before its input is idle for long enough nobody asks the sink.
    assert asked == [110_000, 111_000]
    waits[0] = True
    clock.now = 112_000
    assert beating.on_empty_trigger() == {"rows": 102_000}
    clock.now = 116_999
    assert beating.on_empty_trigger() == {}
    clock.now = 117_000
    assert beating.on_batch({"rows": InputProgress(0)}, state_rows=0) == {"rows": 107_000}


def test_of_two_inputs_only_the_idle_one_gets_an_idle_tick() -> None:
    clock = Clock()
    beating = idle_timer(clock, "orders", "payments")
    clock.now = 120_000
    assert beating.on_batch({"orders": InputProgress(3), "payments": InputProgress(0)}, state_rows=9) == {
        "payments": 110_000
    }
    assert beating.on_batch({"orders": InputProgress(3), "payments": InputProgress(0)}, state_rows=9) == {}


def test_a_clock_that_is_set_back_causes_no_earlier_idle_tick() -> None:
    clock = Clock()
    beating = idle_timer(clock)
    clock.now = 200_000
    assert beating.on_empty_trigger() == {"rows": 190_000}
    clock.now = 150_000
    assert beating.on_empty_trigger() == {}
