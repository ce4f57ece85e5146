"""The stream of ride events: the same from the same seed, and as uneven as a real one."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace.errors import ConfigError
from headrace.patterns.records import ConsumedRecord
from headrace.patterns.rides.generator import CITIES, MALFORMED, RideTraffic
from headrace.patterns.traffic import GeneratedRecord
from headrace.patterns.window_model import replay
from model_examples import SURGE

NOW = datetime(2024, 5, 6, 6, tzinfo=UTC)
CLEAN = RideTraffic(rate=50, late=0, duplicates=0, malformed=0)
GOOD = {"ride", "late", "duplicate"}


def records(given: RideTraffic, *, minutes: float) -> list[GeneratedRecord]:
    return list(given.events(NOW, NOW + timedelta(minutes=minutes)))


def fields(record: GeneratedRecord) -> dict[str, Any]:
    assert record.value is not None
    parsed: dict[str, Any] = json.loads(record.value)
    return parsed


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**32),
    late=st.floats(0, 0.3),
    duplicates=st.floats(0, 0.3),
    malformed=st.floats(0, 0.3),
    rate=st.floats(0.5, 20),
)
def test_the_same_seed_results_in_the_same_records_and_another_seed_in_others(
    seed: int, late: float, duplicates: float, malformed: float, rate: float
) -> None:
    given = RideTraffic(rate, late, duplicates, malformed, seed)
    first = records(given, minutes=1)
    assert records(given, minutes=1) == first
    assert records(RideTraffic(rate, late, duplicates, malformed, seed + 1), minutes=1) != first


def test_a_longer_stream_starts_with_the_shorter_one() -> None:
    shorter = records(CLEAN, minutes=1)
    assert list(islice(CLEAN.events(NOW), len(shorter))) == shorter


def test_records_arrive_at_the_rate_and_in_order() -> None:
    arrivals = [record.arrival_ms for record in records(CLEAN, minutes=1)]
    start = round(NOW.timestamp() * 1000)
    assert arrivals == [start + 20 * n for n in range(3000)]


def test_an_empty_span_and_a_reversed_span_have_no_records() -> None:
    assert records(CLEAN, minutes=0) == []
    assert records(CLEAN, minutes=-1) == []


def test_the_shares_of_the_generator_are_as_declared() -> None:
    created = records(RideTraffic(rate=100, late=0.02, duplicates=0.03, malformed=0.05), minutes=10)
    kinds = Counter("malformed" if record.kind in MALFORMED else record.kind for record in created)
    shares = {kind: number / len(created) for kind, number in kinds.items()}
    assert shares == {
        "ride": pytest.approx(0.90, abs=0.01),
        "late": pytest.approx(0.02, abs=0.005),
        "duplicate": pytest.approx(0.03, abs=0.005),
        "malformed": pytest.approx(0.05, abs=0.005),
    }


def test_malformed_records_go_through_every_kind_in_turn() -> None:
    created = records(RideTraffic(rate=1, late=0, duplicates=0, malformed=1), minutes=0.6)
    assert [record.kind for record in created] == [*MALFORMED, *MALFORMED, *list(MALFORMED)[:4]]
    assert all(record.event_time_ms is None for record in created)


def test_an_event_has_the_fields_of_its_status_and_its_city_as_key() -> None:
    always = {"ride_id", "driver_id", "rider_id", "city", "pickup_lat", "pickup_lon", "status", "event_time"}
    names = {city.name: city for city in CITIES}
    statuses = Counter[str]()
    for record in records(CLEAN, minutes=4):
        event = fields(record)
        statuses[event["status"]] += 1
        assert always <= event.keys()
        assert record.key == event["city"].encode()
        city = names[event["city"]]
        assert abs(event["pickup_lat"] - city.lat) < 0.1
        assert abs(event["pickup_lon"] - city.lon) < 0.1
        assert (event.get("fare_amount") is not None) == (event["status"] == "completed")
        assert (event.get("dropoff_lat") is not None) == (event["status"] == "completed")
        moment = datetime.strptime(event["event_time"], "%Y-%m-%dT%H:%M:%S.%f%z")
        assert event["event_time"].endswith("Z")
        assert round(moment.timestamp() * 1000) == record.event_time_ms
    assert statuses.keys() == {"requested", "in_progress", "completed", "cancelled"}


def test_a_fare_is_money_with_two_decimals() -> None:
    completed = [record.value for record in records(CLEAN, minutes=1) if b'"completed"' in (record.value or b"")]
    fares = [value.split(b'"fare_amount":')[1].split(b",")[0] for value in completed if value]
    assert fares
    assert all(len(fare.split(b".")[1]) == 2 and float(fare) > 0 for fare in fares)


def test_a_ride_has_constant_ids_and_takes_its_steps_in_order() -> None:
    rides: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records(replace(CLEAN, rate=10), minutes=45):
        event = fields(record)
        rides[event["ride_id"]].append(event)
    complete = [steps for steps in rides.values() if len(steps) == 3]
    assert len(complete) > 1000
    for steps in complete:
        assert len({(step["driver_id"], step["rider_id"], step["city"], step["pickup_lat"]) for step in steps}) == 1
        first, second, last = (step["status"] for step in steps)
        assert (first, second) == ("requested", "in_progress")
        assert last in {"completed", "cancelled"}
        times = [step["event_time"] for step in steps]
        assert times == sorted(times)


def test_a_driver_has_one_ride_at_a_time() -> None:
    busy: dict[str, str] = {}
    for record in records(replace(CLEAN, rate=20), minutes=30):
        event = fields(record)
        holder = busy.setdefault(event["driver_id"], event["ride_id"])
        assert holder == event["ride_id"]
        if event["status"] in {"completed", "cancelled"}:
            del busy[event["driver_id"]]


def test_events_come_out_of_order_but_within_five_minutes_unless_they_are_late() -> None:
    created = records(RideTraffic(rate=50, late=0.05), minutes=10)
    behind = {kind: [r.arrival_ms - (r.event_time_ms or 0) for r in created if r.kind == kind] for kind in GOOD}
    times = [record.event_time_ms or 0 for record in created if record.kind == "ride"]
    assert times != sorted(times)
    assert 0 < min(behind["ride"]) < max(behind["ride"]) < 5 * 60_000
    assert 20 * 60_000 <= min(behind["late"]) < max(behind["late"]) <= 60 * 60_000


def test_a_duplicate_is_a_recent_record_byte_for_byte() -> None:
    observed: set[tuple[bytes | None, bytes | None, int | None]] = set()
    duplicates = 0
    for record in records(RideTraffic(rate=20, duplicates=0.2), minutes=2):
        payload = (record.key, record.value, record.event_time_ms)
        if record.kind == "duplicate":
            duplicates += 1
            assert payload in observed
        observed.add(payload)
    assert duplicates > 300


def test_a_city_rides_more_in_its_rush_hours_than_in_its_night() -> None:
    def share_of_tokyo(hour_in_utc: int) -> float:
        start = NOW.replace(hour=hour_in_utc)
        created = list(replace(CLEAN, rate=20).events(start, start + timedelta(minutes=5)))
        return sum(record.key == b"Tokyo" for record in created) / len(created)

    night, morning, evening = share_of_tokyo(18), share_of_tokyo(23), share_of_tokyo(9)
    assert morning > 3 * night
    assert evening > 3 * night


def test_surges_pass_both_thresholds_and_most_windows_stay_calm() -> None:
    created = records(replace(CLEAN, rate=20), minutes=40)
    topic = [ConsumedRecord(0, n, record.arrival_ms, record.key, record.value) for n, record in enumerate(created)]
    (rows,) = replay(topic, [{0: (0, len(topic))}], SURGE).batches
    multipliers = Counter(row.surge_multiplier for row in rows)
    assert multipliers[2.0] > 0
    assert multipliers[1.5] > 0
    assert multipliers[1.0] > 0.7 * multipliers.total()


def test_the_oversized_record_comes_first_once_and_only_on_request() -> None:
    first, *others = records(RideTraffic(rate=10, oversized=True), minutes=1)
    assert first.kind == "oversized"
    assert len(first.value or b"") > 5 * 1024 * 1024
    assert fields(first)["status"]
    assert max(len(record.value or b"") for record in others) < 1000


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0},
        {"rate": float("nan")},
        {"rate": float("inf")},
        {"late": -0.1},
        {"malformed": 1.1},
        {"late": 0.5, "duplicates": 0.3, "malformed": 0.3},
        {"cities": ()},
    ],
)
def test_settings_that_no_stream_can_have_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="HR-121"):
        RideTraffic(**wrong)


def test_one_city_alone_can_ride() -> None:
    created = records(RideTraffic(rate=5, cities=CITIES[:1]), minutes=1)
    assert {record.key for record in created if record.kind in GOOD} == {b"New York"}


def test_a_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(ConfigError, match="no time zone"):
        list(RideTraffic().events(datetime(2024, 5, 6)))  # noqa: DTZ001
