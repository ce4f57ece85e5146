"""The IoT pattern without Spark: the model against tables worked out by hand, silences in every split, the readings."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from headrace.errors import ConfigError
from headrace.flow.duration import Duration
from headrace.flow.levers import Every
from headrace.patterns.iot.flows import IotSettings, Silence, flows
from headrace.patterns.iot.generator import MALFORMED, IotTraffic
from headrace.patterns.iot.model import READING, DeviceMetrics, DeviceStatusRow, replay_silences
from headrace.patterns.records import ConsumedRecord, InvalidRecord
from headrace.patterns.window_model import replay
from headrace.runtime.guards.guard import InputProgress
from headrace.runtime.guards.idle_inputs import IdleTimer
from headrace.sinks.delta.policy import TablePolicy
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sinks.fan_out import FanOut
from headrace.sources.kafka.source import KafkaSource
from headrace.testing import KeyedStateTester
from model_examples import DEVICE_METRICS, recompute

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)
QUARTER, MONTH = timedelta(minutes=15), timedelta(days=30)


def ms(minute: float) -> int:
    return round((NOON + timedelta(minutes=minute)).timestamp() * 1000)


def reading(minute: float, temperature: float = 20, humidity: float = 50, device: str = "d1") -> dict[str, object]:
    at = NOON + timedelta(minutes=minute)
    fields = {"device_id": device, "temperature": temperature, "humidity": humidity}
    return {**fields, "ts": at.isoformat(timespec="milliseconds")}


class Topic:
    """A topic of one partition, written batch by batch in a test. The broker's clock is four hours ahead of noon."""

    def __init__(self) -> None:
        self.records: list[ConsumedRecord] = []
        self.batches: list[dict[int, tuple[int, int]]] = []

    def batch(self, *values: dict[str, object] | bytes) -> None:
        start = len(self.records)
        for value in values:
            payload = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.records.append(ConsumedRecord(0, len(self.records), ms(240), b"k", payload))
        self.batches.append({0: (start, len(self.records))} if values else {})


# ---- what is declared ----


def test_the_pattern_has_the_numbers_that_it_is_known_by() -> None:
    metrics, silent = flows()
    assert [flow.trigger for flow in (metrics, silent)] == [Every("30 seconds")] * 2
    for item in (*metrics.named_inputs.values(), *silent.named_inputs.values()):
        assert isinstance(item.source, KafkaSource)
        assert (item.source.topics, item.source.max_offsets_per_trigger) == ("iot-telemetry", 100_000)
        assert item.watermark is not None
        assert (item.watermark.column, item.watermark.delay) == ("ts", "2 minutes")
    usual = IotSettings()
    assert (usual.window, usual.high_temp, usual.high_humidity) == ("5 minutes", 80, 90)
    assert (usual.silence, usual.idle_timeout, usual.forget) == ("15 minutes", "5 minutes", "30 days")


def test_the_gold_table_is_compacted_and_its_old_files_stay() -> None:
    sink = flows()[0].sink
    assert isinstance(sink, FanOut)
    gold = sink.sinks[0]
    assert isinstance(gold, DeltaUpsert)
    assert (gold.path, gold.policy) == ("gold/device_metrics", TablePolicy())
    assert (gold.cluster_by, gold.prune_by) == (("window_start",), "window_start")


# ---- figures and alerts ----


def test_figures_of_a_window_are_exact_and_heat_goes_before_humidity() -> None:
    topic = Topic()
    topic.batch(
        reading(0, 20.05, 90),
        reading(1, 20.06, 90.01),
        reading(4.9, 20.06, 90),
        reading(2, 80, 50, "at the limit"),
        reading(2, 80.01, 99, "hot and damp"),
        reading(5, 10, 10),
    )

    rows = replay(topic.records, topic.batches, DEVICE_METRICS).batches[0]

    def row(device: str, *figures: object, start: float = 0) -> DeviceMetrics:
        return DeviceMetrics(ms(start), ms(start + 5), device, *figures)  # type: ignore[arg-type]

    assert rows == [
        row("at the limit", Decimal(80), Decimal(80), Decimal(50), 1, None),
        # (20.05 + 20.06 + 20.06) / 3 and (90 + 90.01 + 90) / 3, half up in the sixth digit
        row("d1", Decimal("20.056667"), Decimal("20.06"), Decimal("90.003333"), 3, "HIGH_HUMIDITY"),
        row("hot and damp", Decimal("80.01"), Decimal("80.01"), Decimal(99), 1, "HIGH_TEMP"),
        row("d1", Decimal(10), Decimal(10), Decimal(10), 1, None, start=5),
    ]


def test_a_batch_of_everything_counts_what_the_stream_left_out_as_late() -> None:
    topic = Topic()
    topic.batch(reading(1), reading(20))
    topic.batch(reading(21))
    topic.batch(reading(2, 90), b"no reading")

    outcome = replay(topic.records, topic.batches, DEVICE_METRICS)
    complete = recompute(topic.records, DEVICE_METRICS)

    assert outcome.late == [0, 0, 1]
    assert [(row.reading_count, row.max_temp, row.alert) for row in complete] == [
        (2, Decimal(90), "HIGH_TEMP"),
        (2, Decimal(20), None),
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"temperature": 9999.994}, "good"),
        ({"temperature": 9999.995}, "wrong_type:temperature"),
        ({"temperature": 99999}, "wrong_type:temperature"),
        ({"humidity": None}, "missing:humidity"),
        ({"ts": "2024-05-06T14:00:00.001Z"}, "event_time_in_future"),
    ],
)
def test_a_record_that_is_no_reading_is_invalid_with_its_reason(changes: dict[str, object], reason: str) -> None:
    verdict = READING.parse(ConsumedRecord(0, 0, ms(60), b"k", json.dumps({**reading(0), **changes}).encode()))
    assert (verdict.reason if isinstance(verdict, InvalidRecord) else "good") == reason


# ---- silences ----


def test_a_silence_is_reported_once_when_the_watermark_has_passed_it_and_the_return_too() -> None:
    topic = Topic()
    topic.batch(reading(0), reading(0, device="d2"))
    topic.batch(reading(17, device="d2"))  # the watermark is 12:15 from the next batch on
    assert replay_silences(topic.records, topic.batches).statuses == []
    topic.batch(reading(18, device="d2"))

    silent = DeviceStatusRow("d1", "SILENT", ms(0), ms(15), 900)
    assert replay_silences(topic.records, topic.batches).statuses == [
        silent,
        # Of d2 it is not known before 12:17 that nothing came between.
        DeviceStatusRow("d2", "SILENT", ms(0), ms(15), 900),
    ]

    # d1 is back at 12:40, and what it buffered until then is late.
    topic.batch(reading(40), reading(41, device="d2"), reading(14))
    topic.batch(reading(45, device="d2"))
    topic.batch()
    actual = replay_silences(topic.records, topic.batches)
    assert [statuse for statuse in actual.statuses if statuse.device_id == "d1"] == [
        silent,
        DeviceStatusRow("d1", "BACK", ms(0), ms(40), 2400),
    ]
    assert actual.late == [0, 0, 0, 1, 0, 0]


def test_a_gap_of_exactly_the_silence_is_none() -> None:
    topic = Topic()
    topic.batch(reading(0), reading(15), reading(30.001), reading(60, device="d2"))
    topic.batch()
    assert [(statuse.status, statuse.at) for statuse in replay_silences(topic.records, topic.batches).statuses] == [
        ("SILENT", ms(30)),
        ("BACK", ms(30.001)),
        ("SILENT", ms(45.001)),
    ]


@settings(deadline=None)
@given(
    minutes=st.lists(st.integers(0, 120), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=4),
    watermarks=st.booleans(),
)
def test_any_split_into_batches_reports_the_same_silences(
    minutes: list[int], cuts: list[int], watermarks: bool
) -> None:
    """Rows come in order of time here, so none is late; time passes between the batches, or only at the end."""
    rows = [{"device_id": "d1", "ts": NOON + timedelta(minutes=minute)} for minute in sorted(minutes)]
    end = NOON + timedelta(hours=3)
    drive, reported, begin = KeyedStateTester(Silence(QUARTER, MONTH), "device_id"), [], 0
    for cut in sorted({*cuts, len(rows)}):
        batch = rows[begin:cut]
        reported += drive.arrive(*batch)
        if watermarks and batch and cut < len(rows):
            reported += drive.advance_to(batch[-1]["ts"] - timedelta(milliseconds=1))
        begin = max(begin, cut)
    reported += drive.advance_to(end)

    topic = Topic()
    topic.batch(*(reading(minute) for minute in minutes), reading(182, device="d2"))
    topic.batch()
    expected = [
        statuse for statuse in replay_silences(topic.records, topic.batches).statuses if statuse.device_id == "d1"
    ]
    assert [{**asdict(item), "last_seen": _in_ms(item.last_seen), "at": _in_ms(item.at)} for item in reported] == [
        asdict(item) for item in expected
    ]
    assert drive.late == []


def _in_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def test_a_delayed_reading_closes_a_gap_before_a_silence_is_reported() -> None:
    def received(minute: float) -> dict[str, object]:
        return {"device_id": "d1", "ts": NOON + timedelta(minutes=minute)}

    drive = KeyedStateTester(Silence(QUARTER, MONTH), "device_id")
    assert drive.arrive(received(0), received(20)) == []
    assert drive.arrive(received(10)) == []
    assert drive.advance_to(NOON + timedelta(minutes=34)) == []
    (silent,) = drive.advance_to(NOON + timedelta(minutes=35))
    assert (silent.status, silent.at) == ("SILENT", NOON + timedelta(minutes=35))
    # A silence of days is reported once, and stored in one value, until it expires.
    last = NOON + timedelta(minutes=20)
    assert drive.timers("d1") == [last + MONTH]
    assert drive.advance_to(NOON + timedelta(days=30)) == []
    assert drive.state("d1") is not None
    assert drive.advance_to(last + MONTH) == []
    assert drive.state("d1") is None
    assert drive.timers("d1") == []


@pytest.mark.parametrize(("days", "reported"), [(29, ["SILENT", "BACK"]), (31, ["SILENT"])])
@pytest.mark.parametrize("together", [True, False])
def test_a_device_whose_state_expired_is_new_when_it_sends_again(
    days: int, reported: list[str], together: bool
) -> None:
    """Whether the watermark or the reading itself comes first makes no difference."""
    again = NOON + timedelta(days=days)
    drive, actual = KeyedStateTester(Silence(QUARTER, MONTH), "device_id"), []
    actual += drive.arrive({"device_id": "d1", "ts": NOON})
    actual += drive.advance_to(NOON + QUARTER if together else again - timedelta(minutes=2))
    actual += drive.arrive({"device_id": "d1", "ts": again})
    actual += drive.advance_to(again + timedelta(minutes=1))
    assert [item.status for item in actual] == reported

    topic = Topic()
    topic.records = [
        ConsumedRecord(0, offset, ms(minute + 1), b"k", json.dumps(reading(minute)).encode())
        for offset, minute in enumerate((0, days * 24 * 60, days * 24 * 60 + 3))
    ]
    assert [statuse.status for statuse in replay_silences(topic.records, [{0: (0, 3)}, {}]).statuses] == reported


def test_a_plant_that_falls_silent_completely_is_reported_within_25_minutes() -> None:
    """By idle ticks alone: 15 minutes of silence, 2 of the watermark, 5 of `idle_timeout`, and up to the next tick."""
    (rows,) = flows()[1].named_inputs.values()
    assert rows.watermark is not None
    assert rows.watermark.idle_timeout is not None
    now = ms(0)
    timer = IdleTimer({"rows": Duration.parse(rows.watermark.idle_timeout).ms}, lambda: now)
    drive = KeyedStateTester(Silence(QUARTER, MONTH), "device_id")
    drive.arrive({"device_id": "d1", "ts": NOON})
    timer.on_batch({"rows": InputProgress(1)}, state_rows=1)
    reported: list[tuple[float, str]] = []
    for half_minute in range(1, 120):
        now = ms(half_minute / 2)
        for beat in timer.on_empty_trigger().values():
            watermark = datetime.fromtimestamp(beat / 1000, UTC) - timedelta(minutes=2)
            reported += [(half_minute / 2, item.status) for item in drive.advance_to(watermark)]
    assert reported == [(22.5, "SILENT")]


# ---- the readings ----


def test_the_same_seed_results_in_the_same_readings_with_a_share_per_device_and_silences() -> None:
    traffic = IotTraffic(rate=20, late=0.02, duplicates=0.01, malformed=0.01, busiest=0.3)
    created = list(traffic.events(NOON, NOON + timedelta(hours=1.5)))
    assert created == list(traffic.events(NOON, NOON + timedelta(hours=1.5)))

    devices = Counter(record.key for record in created)
    assert devices[b"dev-0000"] / len(created) == pytest.approx(0.3, abs=0.02)
    kinds = Counter(record.kind for record in created)
    assert {kind for kind in kinds if kind not in MALFORMED} == {"reading", "late", "duplicate"}
    assert set(MALFORMED) <= set(kinds)
    in_time = [record for record in created if record.kind == "reading" and record.event_time_ms is not None]
    gaps = [
        later - earlier > QUARTER / timedelta(milliseconds=1)
        for device in devices
        for times in [sorted(int(str(item.event_time_ms)) for item in in_time if item.key == device)]
        for earlier, later in pairwise(times)
    ]
    assert sum(gaps) >= 2
    late = [record.arrival_ms - (record.event_time_ms or 0) for record in created if record.kind == "late"]
    assert min(late) >= 10 * 60_000
    assert max(late) > 5 * 3_600_000


@pytest.mark.parametrize("changes", [{"devices": 1}, {"busiest": 1.0}, {"busiest": 0.0}])
def test_a_stream_that_cannot_be_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError) as refused:
        IotTraffic(**changes)  # type: ignore[arg-type]
    assert refused.value.code == "HR-121"
