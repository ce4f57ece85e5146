"""The expected output of the IoT pattern, computed in plain Python without Spark.

What a reading is, what is made of the readings of a device and a window, and which devices were silent. The course of
the batches, the watermark and what is late for a window are those of every flow with windows:
`headrace.patterns.window_model`. A silence goes by the same watermark; there a reading is late by its own time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from operator import attrgetter

from headrace.patterns import records
from headrace.patterns.records import HOUR_MS, MINUTE_MS, ConsumedRecord, Event, InvalidRecord, average
from headrace.patterns.window_model import BatchOffsets, WindowFlow, batch_records

DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True, slots=True)
class Reading(Event):
    """A reading."""

    device_id: str
    temperature: Decimal
    humidity: Decimal


READING = records.RecordSchema(
    Reading,
    (
        records.Field("device_id", records.text),
        records.Field("temperature", records.decimal(6, 2)),
        records.Field("humidity", records.decimal(5, 2)),
        records.Field("ts", records.instant),
    ),
    time="ts",
    key_required=True,
)


@dataclass(frozen=True, slots=True)
class DeviceMetrics:
    """A row of the gold table."""

    window_start: int
    window_end: int
    device_id: str
    avg_temp: Decimal
    max_temp: Decimal
    avg_humidity: Decimal
    reading_count: int
    alert: str | None


@dataclass(frozen=True, slots=True)
class DeviceStatusRow:
    """A device that fell silent, or is back."""

    device_id: str
    status: str
    last_seen: int
    at: int
    silent_seconds: int


def alert(max_temp: Decimal, avg_humidity: Decimal, high_temp: Decimal, high_humidity: Decimal) -> str | None:
    """Say what is wrong with a device: heat goes before humidity."""
    if max_temp > high_temp:
        return "HIGH_TEMP"
    return "HIGH_HUMIDITY" if avg_humidity > high_humidity else None


def device_metrics(
    high_temp: Decimal = Decimal(80), high_humidity: Decimal = Decimal(90)
) -> WindowFlow[Reading, DeviceMetrics]:
    """Return the flow of the gold table, with these limits."""

    def row(start: int, end: int, device: str, readings: Sequence[Reading]) -> DeviceMetrics:
        hottest, damp = (
            max(reading.temperature for reading in readings),
            average([reading.humidity for reading in readings]),
        )
        return DeviceMetrics(
            start,
            end,
            device,
            average([reading.temperature for reading in readings]),
            hottest,
            damp,
            len(readings),
            alert(hottest, damp, high_temp, high_humidity),
        )

    return WindowFlow(5 * MINUTE_MS, 2 * MINUTE_MS, READING.parse, attrgetter("device_id"), row)


@dataclass(frozen=True)
class SilenceOutcome:
    """The expected statuses, late rows (per batch) and invalid records of the flow of silent devices."""

    statuses: list[DeviceStatusRow]
    late: list[int]
    invalid: list[InvalidRecord]


def replay_silences(
    records: Iterable[ConsumedRecord],
    batches: Iterable[BatchOffsets],
    *,
    silence_ms: int = 15 * MINUTE_MS,
    forget_ms: int = 30 * DAY_MS,
    delay_ms: int = 2 * MINUTE_MS,
) -> SilenceOutcome:
    """Run the flow over its batches. W[N] is the watermark in force, as in `window_model`.

    1. A reading is late if it is not after W[N-1].
    2. The statuses after the last batch N are those that are final at W[N]: a device was silent if it sent nothing for
       more than `silence_ms` between two readings or after the last one. It is back with the next reading, unless that
       comes more than `forget_ms` later.
    """
    log = {(record.partition, record.offset): record for record in records}
    readings_of: dict[str, list[int]] = {}
    result = SilenceOutcome([], [], [])
    watermark_before, watermark, upcoming = 0, 0, 0
    for batch in batches:
        watermark_before, watermark = watermark, upcoming
        parsed = [READING.parse(record) for record in batch_records(log, batch)]
        result.invalid.extend(reading for reading in parsed if isinstance(reading, InvalidRecord))
        readings = [reading for reading in parsed if not isinstance(reading, InvalidRecord)]
        on_time = [reading for reading in readings if reading.event_time_us > watermark_before * 1000]
        result.late.append(len(readings) - len(on_time))
        for reading in on_time:
            readings_of.setdefault(reading.device_id, []).append(reading.event_time_ms)
        upcoming = max([watermark, *(reading.event_time_ms - delay_ms for reading in readings)])
    for device, times in sorted(readings_of.items()):
        result.statuses.extend(
            reading for reading in _statuses(device, sorted(times), silence_ms, forget_ms) if reading.at <= watermark
        )
    return result


def _statuses(device: str, times: Sequence[int], silence_ms: int, forget_ms: int) -> Iterator[DeviceStatusRow]:
    for last, following in pairwise([*times, None]):
        assert last is not None  # noqa: S101 - only the end is
        if following is None or following - last > silence_ms:
            yield DeviceStatusRow(device, "SILENT", last, last + silence_ms, silence_ms // 1000)
            if following is not None and following - last <= forget_ms:
                yield DeviceStatusRow(device, "BACK", last, following, (following - last) // 1000)
