"""The model of ride analytics, against tables worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace.patterns.records import LARGEST_VALUE, ConsumedRecord, InvalidRecord
from headrace.patterns.rides.generator import MALFORMED, RideTraffic
from headrace.patterns.rides.model import DRIVER_METRICS, RIDE, CityRides, DriverMetrics, Ride, Surge, surge_multiplier
from headrace.patterns.window_model import WindowFlow, replay
from model_examples import CITY_RIDES, SURGE

NOW = datetime(2024, 5, 6, 12, tzinfo=UTC)


def ms(clock: str) -> int:
    """A time of the test's day, in milliseconds: `08:05`, `08:05:30` or `08:05:30.250`."""
    moment = datetime.fromisoformat(f"2024-05-06T{clock}").replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def event(**changes: object) -> dict[str, object]:
    return {
        "ride_id": "r1",
        "driver_id": "d1",
        "rider_id": "u1",
        "city": "Paris",
        "pickup_lat": 48.85,
        "pickup_lon": 2.35,
        "status": "completed",
        "event_time": "2024-05-06T12:00:00.000Z",
        **changes,
    }


def consumed(value: bytes | None, *, key: bytes | None = b"Paris", sent: datetime = NOW) -> ConsumedRecord:
    return ConsumedRecord(0, 17, round(sent.timestamp() * 1000), key, value)


def reason(value: bytes | None, **given: object) -> str:
    verdict = RIDE.parse(consumed(value, **given))  # type: ignore[arg-type]
    return verdict.reason if isinstance(verdict, InvalidRecord) else "good"


def reason_of(**changes: object) -> str:
    return reason(json.dumps(event(**changes)).encode())


class Topic:
    """A topic of one partition, written batch by batch in a test."""

    def __init__(self) -> None:
        self.records: list[ConsumedRecord] = []
        self.batches: list[dict[int, tuple[int, int]]] = []

    def batch(self, *values: dict[str, object] | bytes) -> None:
        start = len(self.records)
        for value in values:
            payload = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.records.append(ConsumedRecord(0, len(self.records), ms("12:00"), b"k", payload))
        self.batches.append({0: (start, len(self.records))} if values else {})


def ride(clock: str, status: str = "completed", **changes: object) -> dict[str, object]:
    moment = datetime.fromtimestamp(ms(clock) / 1000, UTC).isoformat(timespec="milliseconds")
    return event(event_time=moment, status=status, **changes)


# ---- judging ----


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null_value"),
        (b"", "malformed_json"),
        (b"   ", "malformed_json"),
        (b"null", "malformed_json"),
        (b"42", "malformed_json"),
        (b"[]", "malformed_json"),
        (b'"text"', "malformed_json"),
        (b'{"ride_id": "r1"', "malformed_json"),
        (b'{"ride_id": NaN}', "malformed_json"),
        (b'{"ride_id": "\xff\xfe"}', "malformed_json"),
        (b"[" * 100_000, "malformed_json"),
        (b"{}", "missing:ride_id"),
        (b'{"ride_id": null}', "missing:ride_id"),
        (b'{"ride_id": "r1"}', "missing:driver_id"),
        (b'{"ride_id": 7}', "missing:driver_id"),
    ],
)
def test_a_payload_that_is_no_ride_is_invalid_with_its_reason(value: bytes | None, expected: str) -> None:
    assert reason(value) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "good"),
        ({"fare_amount": 12.5, "dropoff_lat": 1, "dropoff_lon": -2}, "good"),
        ({"fare_amount": None, "dropoff_lat": None}, "good"),
        ({"status": "requested"}, "good"),
        ({"note": {"more": [1]}}, "good"),
        ({"ride_id": 7}, "wrong_type:ride_id"),
        ({"pickup_lat": "north"}, "wrong_type:pickup_lat"),
        ({"pickup_lon": True}, "wrong_type:pickup_lon"),
        ({"dropoff_lat": "1.5"}, "wrong_type:dropoff_lat"),
        ({"fare_amount": "abc"}, "wrong_type:fare_amount"),
        ({"fare_amount": 99_999_999.99}, "good"),
        ({"fare_amount": 100_000_000}, "wrong_type:fare_amount"),
        ({"fare_amount": 99_999_999.995}, "wrong_type:fare_amount"),
        ({"event_time": 12345}, "wrong_type:event_time"),
        ({"event_time": "yesterday"}, "wrong_type:event_time"),
        ({"event_time": "2024-02-30T12:00:00Z"}, "wrong_type:event_time"),
        ({"event_time": "2024-05-06T14:00:00+02:00"}, "good"),
        ({"event_time": "2024-05-06T13:00:00.000Z"}, "good"),
        ({"event_time": "2024-05-06T13:00:00.001Z"}, "event_time_in_future"),
        ({"event_time": "2099-01-01T00:00:00Z"}, "event_time_in_future"),
        ({"status": None, "fare_amount": "abc"}, "missing:status"),
        ({"fare_amount": "abc", "event_time": "2099-01-01T00:00:00Z"}, "wrong_type:fare_amount"),
        ({"status": 1, "fare_amount": "abc"}, "wrong_type:fare_amount"),
    ],
)
def test_an_event_is_classified_by_the_first_rule_that_it_violates(changes: dict[str, object], expected: str) -> None:
    assert reason_of(**changes) == expected


def test_size_is_validated_before_the_key_and_the_key_before_the_payload() -> None:
    assert reason(b"x" * (LARGEST_VALUE + 1), key=None) == "too_large"
    assert reason(b"x" * LARGEST_VALUE, key=None) == "null_key"
    assert reason(b"x" * LARGEST_VALUE) == "malformed_json"
    assert reason(None, key=None) == "null_value"


def test_a_fare_has_two_decimals_and_a_time_is_utc() -> None:
    good = RIDE.parse(
        consumed(json.dumps(event(fare_amount=12.345, event_time="2024-05-06T14:00:00.0019+02:00")).encode())
    )
    assert isinstance(good, Ride)
    assert good.fare_amount == Decimal("12.35")
    assert good.event_time_ms == ms("12:00:00.001")


def test_every_malformed_kind_of_the_generator_is_invalid_and_everything_else_is_a_ride() -> None:
    reasons: dict[str, set[str]] = {}
    stream = RideTraffic(rate=100, malformed=0.2, oversized=True)
    for n, created in enumerate(stream.events(NOW, NOW + timedelta(seconds=30))):
        verdict = RIDE.parse(ConsumedRecord(0, n, created.arrival_ms, created.key, created.value))
        reasons.setdefault(created.kind, set()).add(verdict.reason if isinstance(verdict, InvalidRecord) else "good")
    assert reasons == {
        "ride": {"good"},
        "late": {"good"},
        "duplicate": {"good"},
        "oversized": {"too_large"},
        "truncated": {"malformed_json"},
        "fare_not_a_number": {"wrong_type:fare_amount"},
        "lat_not_a_number": {"wrong_type:pickup_lat"},
        "time_a_number": {"wrong_type:event_time"},
        "time_not_iso": {"wrong_type:event_time"},
        "no_ride_id": {"missing:ride_id"},
        "no_city": {"missing:city"},
        "no_event_time": {"missing:event_time"},
        "null_key": {"null_key"},
        "tombstone": {"null_value"},
        "empty": {"malformed_json"},
        "array": {"malformed_json"},
        "json_null": {"malformed_json"},
        "number": {"malformed_json"},
        "far_future": {"event_time_in_future"},
        "not_utf8": {"malformed_json"},
    }
    assert reasons.keys() >= MALFORMED.keys()


# ---- the flows ----


def test_city_rides_counts_by_window_and_city() -> None:
    topic = Topic()
    topic.batch(
        ride("08:00:00", fare_amount=10.00, driver_id="d1"),
        ride("08:04:59.999", fare_amount=10.01, driver_id="d2"),
        ride("08:02:00", "cancelled", driver_id="d1", fare_amount=99),
        ride("08:03:00", "in_progress", driver_id="d3"),
        ride("08:03:00", "requested", driver_id="d9"),
        ride("08:03:00", "completed", driver_id="d3"),  # no fare: counted, not averaged
        ride("08:05:00", fare_amount=3.33),
        ride("08:01:00", "in_progress", city="Berlin"),
    )
    outcome = replay(topic.records, topic.batches, CITY_RIDES)
    eight, five_past, ten_past = ms("08:00"), ms("08:05"), ms("08:10")
    assert outcome.batches == [
        [
            CityRides(eight, five_past, "Berlin", 1, 0, None, 1, 0.0),
            CityRides(eight, five_past, "Paris", 5, 3, Decimal("10.005000"), 3, 0.6),
            CityRides(five_past, ten_past, "Paris", 1, 1, Decimal("3.330000"), 1, 1.0),
        ]
    ]
    assert outcome.late == [0]
    assert outcome.invalid == []


def test_update_mode_writes_only_the_groups_that_a_batch_changed_with_their_full_history() -> None:
    topic = Topic()
    topic.batch(ride("08:01", fare_amount=4), ride("08:01", city="Berlin"))
    topic.batch(ride("08:02", "cancelled"))
    topic.batch()
    outcome = replay(topic.records, topic.batches, CITY_RIDES)
    assert outcome.batches[1] == [CityRides(ms("08:00"), ms("08:05"), "Paris", 2, 1, Decimal("4.000000"), 1, 0.5)]
    assert outcome.batches[2] == []


def test_a_row_is_late_by_the_watermark_of_the_batch_before_and_evicted_by_its_own() -> None:
    """Worked by hand, with a delay of 10 minutes and windows of 5.

    | batch | event times  | W (in force) | late if the window ends by | put out                   |
    |-------|--------------|--------------|----------------------------|---------------------------|
    | 0     | 08:20        | 0            | 0                          | 08:20                     |
    | 1     | 08:04, 08:11 | 08:10        | 0                          | 08:00 (then evicted), 08:10 |
    | 2     | 08:09, 08:14 | 08:10        | 08:10: 08:05 is late       | 08:10                     |
    | 3     | 08:25        | 08:10        | 08:10                      | 08:25                     |
    | 4     | 08:14        | 08:15        | 08:10                      | 08:10, then evicted       |
    | 5     | 08:14        | 08:15        | 08:15: 08:10 is late       | nothing                   |
    """
    topic = Topic()
    for times in (["08:20"], ["08:04", "08:11"], ["08:09", "08:14"], ["08:25"], ["08:14"], ["08:14"]):
        topic.batch(*(ride(clock) for clock in times))
    outcome = replay(topic.records, topic.batches, CITY_RIDES)
    put_out = [[(row.window_start, row.ride_count) for row in rows] for rows in outcome.batches]
    assert outcome.watermarks == [0, *(ms(c) for c in ("08:10", "08:10", "08:10", "08:15", "08:15"))]
    assert put_out == [
        [(ms("08:20"), 1)],
        [(ms("08:00"), 1), (ms("08:10"), 1)],
        [(ms("08:10"), 2)],
        [(ms("08:25"), 1)],
        [(ms("08:10"), 3)],
        [],
    ]
    assert outcome.late == [0, 0, 1, 0, 0, 1]
    assert outcome.late_at[2] == [(0, 3)]
    assert [row.window_start for row in outcome.open] == [ms("08:20"), ms("08:25")]


def test_a_window_that_ends_on_the_watermark_is_closed_and_one_millisecond_less_leaves_it_open() -> None:
    for newest, late in (("08:15", 1), ("08:14:59.999", 0)):
        topic = Topic()
        topic.batch(ride(newest))
        topic.batch()
        topic.batch(ride("08:04:59.999"))
        assert replay(topic.records, topic.batches, CITY_RIDES).late == [0, 0, late]


def test_rides_that_a_flow_filters_out_move_the_watermark_and_are_never_late() -> None:
    topic = Topic()
    topic.batch(ride("08:20"), ride("08:30", "requested"))
    topic.batch()
    topic.batch(ride("08:09"), ride("08:09", "requested"), ride("08:14"))
    outcome = replay(topic.records, topic.batches, CITY_RIDES)
    assert outcome.watermarks == [0, ms("08:20"), ms("08:20")]
    # The late request is filtered out before it could count as late.
    assert outcome.late == [0, 0, 2]


def test_invalid_records_never_move_the_watermark() -> None:
    topic = Topic()
    topic.batch(ride("08:20"))
    topic.batch(ride("11:59", fare_amount="abc"), b"not json")
    topic.batch()
    outcome = replay(topic.records, topic.batches, CITY_RIDES)
    assert outcome.watermarks == [0, ms("08:10"), ms("08:10")]
    assert outcome.invalid == [InvalidRecord(0, 1, "wrong_type:fare_amount"), InvalidRecord(0, 2, "malformed_json")]


def test_driver_metrics_appear_once_when_the_watermark_passes_their_window() -> None:
    """Worked by hand, with a delay of 30 minutes and windows of 15."""
    topic = Topic()
    topic.batch(
        ride("08:01", driver_id="d1", rider_id="u1", fare_amount=5),
        ride("08:14", driver_id="d1", rider_id="u1", fare_amount=6.01),
        ride("08:02", driver_id="d1", rider_id="u2"),
        ride("08:03", "cancelled", driver_id="d1", rider_id="u3"),
        ride("08:16", driver_id="d1"),
    )
    topic.batch(ride("08:40", driver_id="d5"), ride("08:45", "in_progress"))  # W becomes 08:15 after it
    topic.batch(ride("08:14:59", driver_id="d2", rider_id="u9", fare_amount=1))  # not late yet, and closed immediately
    topic.batch(ride("08:05", driver_id="d1"))
    outcome = replay(topic.records, topic.batches, DRIVER_METRICS)
    start, end = ms("08:00"), ms("08:15")
    assert outcome.batches == [
        [],
        [],
        [
            DriverMetrics(start, end, "d1", 3, Decimal("5.505000"), 2),
            DriverMetrics(start, end, "d2", 1, Decimal("1.000000"), 1),
        ],
        [],
    ]
    assert outcome.late == [0, 0, 0, 1]
    assert [(row.window_start, row.driver_id) for row in outcome.open] == [(end, "d1"), (ms("08:30"), "d5")]


def test_a_batch_without_data_closes_windows_that_the_batch_before_made_old() -> None:
    topic = Topic()
    topic.batch(ride("08:01"))
    topic.batch(ride("08:45"))
    topic.batch()
    outcome = replay(topic.records, topic.batches, DRIVER_METRICS)
    assert [len(rows) for rows in outcome.batches] == [0, 0, 1]


def test_surge_counts_each_available_driver_once_and_only_drivers_who_ended_a_ride() -> None:
    topic = Topic()
    topic.batch(
        *(ride("08:01", "in_progress", driver_id=f"busy{n}") for n in range(5)),
        ride("08:02", "completed", driver_id="d1"),
        ride("08:03", "cancelled", driver_id="d1"),
        ride("08:04", "completed", driver_id="d2"),
        ride("08:04", "requested", driver_id="d3"),
    )
    outcome = replay(topic.records, topic.batches, SURGE)
    assert outcome.batches == [[Surge(ms("08:00"), ms("08:05"), "Paris", 8, 5, 2, 1.5)]]


@pytest.mark.parametrize(
    ("active", "available", "multiplier"),
    [(0, 0, 1.0), (1, 0, 2.0), (0, 5, 1.0), (4, 2, 1.0), (5, 2, 1.5), (6, 2, 1.5), (7, 2, 2.0)],
)
def test_the_multiplier_steps_up_above_two_and_above_three(active: int, available: int, multiplier: float) -> None:
    assert surge_multiplier(active, available) == multiplier


def test_ties_are_rounded_up_in_fares_and_in_rates() -> None:
    topic = Topic()
    # 0.01 / 32 is 0.0003125; 32 / 1024 is 0.03125.
    topic.batch(
        *(ride("08:00", fare_amount=0.01 if n == 0 else 0) for n in range(32)),
        *(ride("08:00", "cancelled") for _ in range(992)),
    )
    ((row,),) = replay(topic.records, topic.batches, CITY_RIDES).batches
    assert (row.avg_fare, row.completion_rate) == (Decimal("0.000313"), 0.0313)


def test_offsets_that_the_topic_does_not_contain_are_skipped() -> None:
    records = [replace(consumed(json.dumps(event()).encode()), partition=p, offset=o) for p, o in ((0, 3), (1, 9))]
    outcome = replay(records, [{0: (0, 5), 1: (0, 9)}, {0: (5, 5), 1: (9, 10)}], CITY_RIDES)
    assert [[row.ride_count for row in rows] for rows in outcome.batches] == [[1], [2]]


# ---- properties ----

_CLOCKS = st.integers(0, 9 * 60 - 1).map(lambda s: f"08:{s // 60:02d}:{s % 60:02d}")
_RIDES = st.lists(
    st.builds(
        ride,
        _CLOCKS,
        st.sampled_from(["completed", "cancelled", "in_progress", "requested"]),
        city=st.sampled_from(["Paris", "Berlin"]),
        driver_id=st.sampled_from(["d1", "d2", "d3"]),
        fare_amount=st.one_of(st.none(), st.integers(0, 5000).map(lambda cents: cents / 100)),
    ),
    max_size=30,
)


_FLOWS: tuple[WindowFlow[Ride, Any], ...] = (CITY_RIDES, SURGE, DRIVER_METRICS)


@settings(deadline=None)
@given(rides=_RIDES, cuts=st.lists(st.integers(0, 30), max_size=6), order=st.randoms(use_true_random=False))
def test_any_split_and_any_order_within_the_delay_ends_in_the_same_state(
    rides: list[dict[str, object]], cuts: list[int], order: Random
) -> None:
    complete = Topic()
    complete.batch(*rides)
    shuffled = list(rides)
    order.shuffle(shuffled)
    bounds = [0, *sorted(min(cut, len(rides)) for cut in cuts), len(rides)]
    parts = Topic()
    for start, end in pairwise(bounds):
        parts.batch(*shuffled[start:end])
    for flow in _FLOWS:
        in_one_run = replay(complete.records, complete.batches, flow)
        in_parts = replay(parts.records, parts.batches, flow)
        assert in_parts.open == in_one_run.open
        assert sum(in_parts.late) == 0


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 300), max_size=8))
def test_every_counted_row_is_either_late_or_in_exactly_one_group(seed: int, cuts: list[int]) -> None:
    stream = RideTraffic(rate=0.1, late=0.2, malformed=0.1, seed=seed)
    created = list(stream.events(NOW, NOW + timedelta(minutes=50)))
    records = [ConsumedRecord(0, n, record.arrival_ms, record.key, record.value) for n, record in enumerate(created)]
    bounds = [0, *sorted(min(cut, len(created)) for cut in cuts), len(created)]
    batches = [{0: span} for span in pairwise(bounds)]
    outcome = replay(records, batches, DRIVER_METRICS)
    completed = [r for r in map(RIDE.parse, records) if isinstance(r, Ride) and r.status == "completed"]
    grouped = [row for rows in [*outcome.batches, outcome.open] for row in rows]
    assert sum(row.completed_rides for row in grouped) + sum(outcome.late) == len(completed)
    assert len({(row.window_start, row.driver_id) for row in grouped}) == len(grouped)
