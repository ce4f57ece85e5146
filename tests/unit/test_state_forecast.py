"""When growing state reaches a limit, on tables that are worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from headrace.runtime.state.forecast import StateGrowth


def growth(points: Iterable[tuple[float, float]], settled: float = 0.0) -> StateGrowth:
    actual = StateGrowth(settled)
    for second, amount in points:
        actual.add(second, amount)
    return actual


def test_steady_growth_is_the_slope_and_the_limit_is_the_rest_over_it() -> None:
    # 100 rows, and 5 more each second: after 15 s 175 rows, and 325 more to 500.
    grown = growth((second, 100 + 5 * second) for second in range(16))
    assert grown.per_second() == pytest.approx(5.0)
    assert grown.seconds_until(500) == pytest.approx(65.0)


def test_growth_in_steps_is_a_line_through_the_peaks() -> None:
    # Quarters of 4 s with peaks (3, 10), (7, 20), (11, 30), (15, 40): 10 in 4 s. From 40 to 100 it takes 24 s.
    amounts = [1, 2, 3, 10, 2, 3, 4, 20, 3, 4, 5, 30, 4, 5, 6, 40]
    grown = growth(enumerate(amounts))
    assert grown.per_second() == pytest.approx(2.5)
    assert grown.seconds_until(100) == pytest.approx(24.0)


def test_windows_that_fill_and_close_are_not_growth() -> None:
    # Fills to 120 in 6 batches, then closes: the same from then on.
    grown = growth((second, 20 * (second % 6 + 1)) for second in range(60))
    assert grown.per_second() == 0.0
    assert grown.seconds_until(125) is None


def test_a_rise_of_the_last_batches_alone_is_not_growth_yet() -> None:
    # The peaks are 50, 50, 50, 90.
    grown = growth(enumerate([50] * 12 + [60, 70, 80, 90]))
    assert grown.per_second() == 0.0


def test_a_growth_below_the_teeth_of_closing_windows_is_found() -> None:
    # Teeth of 10 batches on ground that rises by 2 a second. The peaks of quarters lie 20 s and 40 rows apart.
    grown = growth((second, 2 * second + 30 * (second % 10)) for second in range(80))
    assert grown.per_second() == pytest.approx(2.0)


@pytest.mark.parametrize(
    "points", [[], [(0, 1)], [(second, second) for second in range(7)], [(5, n) for n in range(9)]]
)
def test_too_little_is_known_for_a_forecast(points: list[tuple[float, float]]) -> None:
    assert growth(points).seconds_until(1000) is None


def test_the_first_filling_is_not_looked_at() -> None:
    # Ten minutes of growth while the first windows fill, then 1,200 for good.
    filling = [(second * 10.0, second * 20.0) for second in range(60)]
    steady = [(600 + second * 10.0, 1200.0) for second in range(20)]
    assert growth(filling + steady, settled=600).per_second() == 0.0
    assert growth(filling[:30], settled=600).seconds_until(2000) is None


def test_a_limit_that_is_reached_is_now() -> None:
    grown = growth((second, 10.0 * second) for second in range(16))
    assert grown.seconds_until(100) == 0.0
