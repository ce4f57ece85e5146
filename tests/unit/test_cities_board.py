"""The board: what it keeps, what it replaces, and what it shows."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from headrace.patterns.rides.board import BoardRow, BoardSnapshot, CityBoard, RideMetrics, SurgeReading

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
FIVE = timedelta(minutes=5)


def rides(city: str = "Lisbon", window: int = 0, count: int = 120, **other: object) -> RideMetrics:
    start = NOON + window * FIVE
    values: dict[str, object] = {
        "city": city,
        "window_start": start,
        "window_end": start + FIVE,
        "ride_count": count,
        "completed_rides": count // 2,
        "avg_fare": 12.5,
        "active_drivers": 37,
        "completion_rate": 0.5,
    }
    return RideMetrics.model_validate(values | other)


def surge(city: str = "Lisbon", window: int = 0, multiplier: float = 1.5) -> SurgeReading:
    start = NOON + window * FIVE
    return SurgeReading(
        city=city,
        window_start=start,
        window_end=start + FIVE,
        total_requests=90,
        active_rides=40,
        available_drivers=15,
        surge_multiplier=multiplier,
    )


def put(board: CityBoard, *rows: BoardRow, at: datetime = NOON) -> int:
    return board.apply([(row, at) for row in rows])


def windows_by_city(snapshot: BoardSnapshot) -> dict[str, list[tuple[RideMetrics, SurgeReading | None]]]:
    return {name: [(w.rides, w.surge) for w in city.windows] for name, city in snapshot.cities.items()}


def test_a_new_board_is_empty_and_has_no_totals() -> None:
    snapshot = CityBoard().snapshot()
    assert (snapshot.version, snapshot.as_of, snapshot.totals) == (0, None, None)
    assert snapshot.cities == {}


def test_a_later_row_of_the_same_window_replaces_the_earlier_one() -> None:
    board = CityBoard()
    put(board, rides(count=10), rides(count=25))
    assert [w.rides.ride_count for w in board.snapshot().cities["Lisbon"].windows] == [25]


def test_a_repeated_row_changes_nothing() -> None:
    board = CityBoard()
    put(board, rides(), surge())
    before = board.snapshot()
    assert put(board, rides(), surge(), at=NOON + FIVE) == 0
    assert board.snapshot() is before


def test_windows_are_shown_oldest_first_whatever_their_order_of_arrival() -> None:
    board = CityBoard()
    put(board, rides(window=2, count=3), rides(window=0, count=1), rides(window=1, count=2))
    city = board.snapshot().cities["Lisbon"]
    assert [w.rides.ride_count for w in city.windows] == [1, 2, 3]
    assert city.latest.rides.ride_count == 3


def test_surge_joins_the_rides_of_its_own_window_only() -> None:
    board = CityBoard()
    put(board, rides(window=0), rides(window=1), surge(window=0, multiplier=2.0))
    first, second = board.snapshot().cities["Lisbon"].windows
    assert (first.multiplier, second.multiplier) == (2.0, 1.0)
    assert second.surge is None


def test_a_surge_that_arrives_before_its_rides_waits_for_them() -> None:
    board = CityBoard()
    put(board, surge())
    assert board.snapshot().cities == {}
    put(board, rides())
    assert board.snapshot().cities["Lisbon"].latest.multiplier == 1.5


def test_only_the_newest_windows_stay_on_the_board() -> None:
    board = CityBoard(history=3)
    put(board, *(rides(window=n, count=n + 1) for n in range(10)))
    assert [w.rides.ride_count for w in board.snapshot().cities["Lisbon"].windows] == [8, 9, 10]


def test_a_row_older_than_the_history_changes_nothing() -> None:
    board = CityBoard(history=2)
    put(board, rides(window=5), rides(window=6))
    assert put(board, rides(window=1)) == 0


def test_cities_beyond_the_limit_are_left_out() -> None:
    board = CityBoard(max_cities=2)
    put(board, rides("A"), rides("B"), rides("C"))
    assert list(board.snapshot().cities) == ["A", "B"]


@pytest.mark.parametrize("history", [0, -1, 2017])
def test_a_history_out_of_bounds_is_refused(history: int) -> None:
    with pytest.raises(ValueError, match="history must lie between"):
        CityBoard(history=history)


def test_totals_sum_only_the_cities_that_reached_the_newest_window() -> None:
    board = CityBoard()
    put(
        board,
        rides("Lisbon", window=1, count=100, completed_rides=80, avg_fare=10.0),
        rides("Porto", window=1, count=50, completed_rides=20, avg_fare=20.0),
        rides("Faro", window=0, count=999),
    )
    totals = board.snapshot().totals
    assert totals is not None
    assert (totals.cities, totals.ride_count, totals.completed_rides) == (2, 150, 100)
    assert totals.completion_rate == pytest.approx(100 / 150)
    assert totals.avg_fare == pytest.approx(12.0)  # (80 * 10 + 20 * 20) / 100


def test_totals_without_any_fare_have_no_average() -> None:
    board = CityBoard()
    put(board, rides(avg_fare=None))
    totals = board.snapshot().totals
    assert totals is not None
    assert totals.avg_fare is None


def test_a_surge_counts_for_one_more_window() -> None:
    board = CityBoard()
    put(board, rides("Lisbon"), surge("Lisbon"), rides("Porto", window=1))
    assert board.snapshot().totals.surging_cities == 1  # type: ignore[union-attr]
    put(board, rides("Porto", window=2))
    assert board.snapshot().totals.surging_cities == 0  # type: ignore[union-attr]


def test_as_of_is_the_newest_publication_and_never_goes_back() -> None:
    board = CityBoard()
    put(board, rides(count=1), at=NOON + FIVE)
    put(board, rides(count=2), at=NOON)
    assert board.snapshot().as_of == NOON + FIVE


@pytest.mark.parametrize(
    ("asked", "meant"), [("lisbon", "Lisbon"), ("Lisbonn", "Lisbon"), ("PORTO", "Porto"), ("Zzz", None)]
)
def test_the_nearest_name_ignores_case_and_typing_errors(asked: str, meant: str | None) -> None:
    board = CityBoard()
    put(board, rides("Lisbon"), rides("Porto"))
    assert board.snapshot().nearest(asked) == meant


def test_a_snapshot_does_not_change_with_the_board() -> None:
    board = CityBoard()
    put(board, rides(count=1))
    before = board.snapshot()
    put(board, rides(count=2), rides(window=1))
    assert [w.rides.ride_count for w in before.cities["Lisbon"].windows] == [1]
    assert board.snapshot().version > before.version


def test_listeners_are_called_once_per_change_until_they_unsubscribe() -> None:
    board = CityBoard()
    versions: list[int] = []
    end = board.subscribe(lambda: versions.append(board.snapshot().version))
    put(board, rides(count=1), rides(count=2))
    put(board, rides(count=2))
    end()
    put(board, rides(count=3))
    assert versions == [2]


def test_readers_on_other_threads_see_complete_batches() -> None:
    board = CityBoard()
    torn: list[tuple[int, int]] = []
    done = threading.Event()

    def read_snapshots() -> None:
        while not done.is_set():
            cities = board.snapshot().cities
            if cities:
                pair = (cities["A"].latest.rides.ride_count, cities["B"].latest.rides.ride_count)
                if pair[0] != pair[1]:
                    torn.append(pair)

    reader = threading.Thread(target=read_snapshots)
    reader.start()
    for count in range(500):
        put(board, rides("A", count=count), rides("B", count=count))
    done.set()
    reader.join()
    assert torn == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"ride_count": -1},
        {"completion_rate": 1.2},
        {"avg_fare": float("nan")},
        {"city": "  "},
        {"window_start": "2026-11-16T12:00:00"},
    ],
)
def test_an_invalid_row_is_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        rides(**wrong)  # type: ignore[arg-type]


row_lists = st.lists(
    st.builds(rides, city=st.sampled_from("ABC"), window=st.integers(0, 6), count=st.integers(0, 50))
    | st.builds(
        surge, city=st.sampled_from("ABC"), window=st.integers(0, 6), multiplier=st.sampled_from([1.0, 1.5, 2.0])
    ),
    max_size=40,
)


@given(rows=row_lists, history=st.integers(1, 8))
def test_reading_the_topic_again_from_the_beginning_shows_the_same_board(rows: list[BoardRow], history: int) -> None:
    once, twice = CityBoard(history=history), CityBoard(history=history)
    put(once, *rows)
    put(twice, *rows)
    put(twice, *rows)
    assert windows_by_city(once.snapshot()) == windows_by_city(twice.snapshot())


@given(rows=row_lists, cut=st.integers(0, 40))
def test_any_split_into_batches_shows_the_same_board(rows: list[BoardRow], cut: int) -> None:
    single_batch, parts = CityBoard(), CityBoard()
    put(single_batch, *rows)
    put(parts, *rows[:cut])
    put(parts, *rows[cut:])
    assert windows_by_city(single_batch.snapshot()) == windows_by_city(parts.snapshot())
