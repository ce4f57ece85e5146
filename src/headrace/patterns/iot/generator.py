"""Readings of a plant's sensors: one of them talks far too much, some fall silent, some come back after hours.

- Temperatures follow the time of day, humidity goes the other way; both have noise.
- The first device is the busiest: it sends a fixed share of all readings, whatever the others do.
- Every ten minutes another device overheats, and another one is damp: the alerts.
- Now and then a device says nothing for 20 to 50 minutes: the silences.
- A `late` record is one that a device stored while it was offline, for ten minutes up to six hours.
- Other readings arrive seconds late, sometimes minutes.

Duplicates and malformed records: see `headrace.patterns.traffic`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from headrace.patterns import traffic
from headrace.patterns.records import MINUTE_MS

DAY_MS = 24 * 60 * MINUTE_MS

_TROUBLE_LASTS_MS = 10 * MINUTE_MS  # two windows of five minutes
_ROUND_MS = 90 * MINUTE_MS  # a device is silent at most once in it
_SILENT_SHARE = 0.15
_SHORTEST_SILENCE_MS, _LONGEST_SILENCE_MS = 20 * MINUTE_MS, 50 * MINUTE_MS
_SHORTEST_OFFLINE_MS, _LONGEST_OFFLINE_MS = 10 * MINUTE_MS, 6 * 60 * MINUTE_MS


class _Simulation(traffic.WeightedSimulation):
    """One stream of readings."""

    kind = "reading"

    def __init__(self, settings: IotTraffic, start_ms: int) -> None:
        super().__init__(settings, start_ms)
        self._names = [f"dev-{number:04d}" for number in range(settings.devices)]
        self._keys = [name.encode() for name in self._names]
        self._busiest = settings.busiest
        self._overheated, self._damp = -1, -1

    def event(self, now: int) -> traffic.GeneratedEvent:
        return self._event(self._choose(now), now - self._delay())

    def late(self, now: int) -> traffic.GeneratedEvent:
        offline = _SHORTEST_OFFLINE_MS + int(self.random() * (_LONGEST_OFFLINE_MS - _SHORTEST_OFFLINE_MS))
        return self._event(self._choose(now), now - offline)

    def standalone_event(self, now: int) -> traffic.GeneratedEvent:
        return self._event(self._choose(now), now)

    def _event(self, device: int, ts: int) -> traffic.GeneratedEvent:
        of_day = math.sin(ts % DAY_MS / DAY_MS * math.tau)
        temperature = 45 + device % 20 + 8 * of_day + 4 * (self.random() - 0.5)
        humidity = 55 - device % 10 - 15 * of_day + 6 * (self.random() - 0.5)
        if device == self._overheated:
            temperature = 78 + 12 * self.random()
        if device == self._damp:
            humidity = 91 + 8 * self.random()
        text = (
            f'{{"device_id":"{self._names[device]}","temperature":{temperature:.2f},"humidity":{humidity:.2f},'
            f'"ts":"{traffic.iso(ts)}"}}'
        )
        return traffic.GeneratedEvent(self._keys[device], text, ts)

    def plan(self, now: int) -> Iterator[float]:
        """Weigh every device for the next minute, and draw which ones are in trouble."""
        trouble = random.Random(f"{self._seed}/trouble/{now // _TROUBLE_LASTS_MS}")  # noqa: S311
        self._overheated, self._damp = trouble.sample(range(len(self._names)), k=2)
        others = [0.0 if self._is_silent(device, now) else 1.0 for device in range(1, len(self._names))]
        # All the others together make up the rest, also when some of them say nothing.
        yield self._busiest / (1 - self._busiest) * (sum(others) or 1.0)
        yield from others

    def _is_silent(self, device: int, now: int) -> bool:
        this = now // _ROUND_MS
        return any(start <= now < end for period in (this - 1, this) for start, end in self._silence(device, period))

    def _silence(self, device: int, turn: int) -> Iterator[tuple[int, int]]:
        chance = random.Random(f"{self._seed}/silence/{device}/{turn}")  # noqa: S311
        if chance.random() < _SILENT_SHARE:
            start = turn * _ROUND_MS + int(chance.random() * (_ROUND_MS - _LONGEST_SILENCE_MS))
            yield start, start + chance.randint(_SHORTEST_SILENCE_MS, _LONGEST_SILENCE_MS)


# The corruptions of a valid event, by name.
MALFORMED: dict[str, traffic.Corruption] = {
    **traffic.common_corruptions("device_id", "ts"),
    "temperature_not_a_number": traffic.set_fields(temperature="hot"),
    "sensor_broken": traffic.set_fields(temperature=99999),
    "no_device_id": traffic.remove_field("device_id"),
    "no_humidity": traffic.remove_field("humidity"),
    "null_key": str.encode,
}


@dataclass(frozen=True)
class IotTraffic(traffic.Traffic):
    """How a stream of readings looks: any traffic, of some devices. The first device sends a fixed share of it."""

    pattern: ClassVar[str] = "iot"
    simulation = _Simulation
    corruptions = MALFORMED

    topic: str = "iot-telemetry"
    devices: int = 40
    busiest: float = 0.2

    def __post_init__(self) -> None:
        """Refuse what no stream can be."""
        super().__post_init__()
        if self.devices < 2:
            raise self.invalid_settings(
                f"devices is {self.devices}", "One of them is the busiest, so there are two at the least."
            )
        if not 0 < self.busiest < 1:
            raise self.invalid_settings(
                f"busiest is {self.busiest}", "It is a share of all readings, and not all of them."
            )


generator = IotTraffic().with_traffic
