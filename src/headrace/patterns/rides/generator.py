"""Ride events of a dozen cities, as a phone fleet sends them: mostly in order, some late, duplicate or malformed.

- Which city sends one follows the size of the city and its hour of the day, with
  peaks in the morning and in the evening.
- A ride is requested, starts a few minutes later, and is completed or cancelled when the trip is over. Its events
  share their ids. Rides that were under way when the stream began appear with their later events only.
- Every ten minutes new cities surge: many rides start, few finish, so that active rides per available driver pass
  2 in one city and 3 in another.
- Event times are seconds before the arrival, sometimes minutes: out of order, but within ten minutes.
- A `late` record arrives 20 to 60 minutes after its event time: late for windows of 5 minutes and a watermark of 10.

Duplicates and malformed records: see `headrace.patterns.traffic`.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar, NamedTuple

from headrace.patterns import traffic
from headrace.patterns.records import MINUTE_MS


@dataclass(frozen=True, slots=True)
class City:
    """A city: its position, how much it rides, and what a ride costs there (in one currency)."""

    name: str
    code: str
    lat: float
    lon: float
    utc_offset: float
    size: float
    base_fare: float
    fare_per_km: float


# Standard time all year: the curve of a day needs no calendar of summer times.
CITIES = (
    City("New York", "nyc", 40.7128, -74.0060, -5, 1.9, 3.20, 2.10),
    City("São Paulo", "sao", -23.5505, -46.6333, -3, 1.7, 1.10, 0.55),
    City("London", "lon", 51.5074, -0.1278, 0, 1.6, 3.60, 1.95),
    City("Mumbai", "bom", 19.0760, 72.8777, 5.5, 1.5, 0.60, 0.28),
    City("Mexico City", "mex", 19.4326, -99.1332, -6, 1.3, 1.00, 0.60),
    City("Paris", "par", 48.8566, 2.3522, 1, 1.2, 3.10, 1.75),
    City("Tokyo", "tyo", 35.6762, 139.6503, 9, 1.1, 4.10, 2.60),
    City("San Francisco", "sfo", 37.7749, -122.4194, -8, 1.0, 3.50, 2.30),
    City("Lagos", "los", 6.5244, 3.3792, 1, 0.9, 0.80, 0.35),
    City("Singapore", "sin", 1.3521, 103.8198, 8, 0.8, 2.90, 0.95),
    City("Sydney", "syd", -33.8688, 151.2093, 10, 0.7, 2.70, 1.50),
    City("Berlin", "ber", 52.5200, 13.4050, 1, 0.6, 2.90, 1.65),
)

# Rides per hour of the local day, against an average hour: commuters at 8 and 18, hardly anybody at 3.
_DAY = (
    *(0.35, 0.25, 0.18, 0.14, 0.16, 0.30, 0.60, 1.10, 1.50, 1.20, 0.85, 0.80),
    *(0.90, 0.90, 0.85, 0.95, 1.20, 1.60, 1.80, 1.50, 1.15, 1.00, 0.85, 0.60),
)

# Steps of a ride, and their weights by the state of the city. A step that no ride is ready for gives way to the one
# before it, so a calm city converges to a third each although its weights lean to the later steps.
_REQUEST, _START, _COMPLETE, _CANCEL = range(4)
_CALM = (0.30, 0.34, 0.31, 0.05)
_BUSY = (0.42, 0.42, 0.13, 0.03)  # 0.42 / 0.16: above 2 active rides per available driver
_SURGE = (0.455, 0.455, 0.07, 0.02)  # 0.455 / 0.09: above 3
_SURGE_LASTS_MS = 10 * MINUTE_MS  # two windows of five minutes

_LONGEST_WAIT_MS = 6 * MINUTE_MS
_LONGEST_TRIP_MS = 60 * MINUTE_MS
# Rides of one city that are remembered. At rates that no city has, trips get shorter instead of memory getting full.
_MOST_OPEN_RIDES = 40_000
_NO_DROPOFF = ',"dropoff_lat":null,"dropoff_lon":null,"fare_amount":null'


class _Ride(NamedTuple):
    """A ride under way. The first two fields order a heap of rides by when their next step is due."""

    due_ms: int
    number: int
    driver: str
    last_ms: int
    trip_ms: int
    head: str
    dropoff: str


class _CityFleet:
    """A city with its fleet and the rides under way in it."""

    def __init__(self, city: City, draw: Callable[[], float], bits: Callable[[int], int], start_ms: int) -> None:
        self.city, self.key = city, city.name.encode()
        self._name = json.dumps(city.name, ensure_ascii=False)
        self._random, self._bits = draw, bits
        self._waiting: list[_Ride] = []
        self._riding: list[_Ride] = []
        self._started_before, self._finished_before = start_ms + _LONGEST_WAIT_MS, start_ms + _LONGEST_TRIP_MS
        # A shift of 20, and one more whenever all are busy: the fleet grows with the rate.
        self._number, self._hired = 0, 20
        self._free = [f"d-{city.code}-{n:05d}" for n in range(self._hired)]

    def step(self, step: int, now: int, delay: int) -> tuple[str, int]:
        """Let a ride of the city take a step, or the nearest step that one is ready for: its JSON and event time."""
        if step >= _COMPLETE:
            ride = self._due(self._riding, now, self._finished_before)
            if ride is not None:
                self._free.append(ride.driver)
                event_ms = max(now - delay, ride.last_ms + 1)
                end, status = (ride.dropoff, "completed") if step == _COMPLETE else (_NO_DROPOFF, "cancelled")
                return _event(ride.head + end, status, event_ms), event_ms
        if step >= _START:
            ride = self._due(self._waiting, now, self._started_before)
            if ride is not None:
                event_ms = max(now - delay, ride.last_ms + 1)
                due_ms = now + ride.trip_ms
                heappush(self._riding, _Ride(due_ms, ride.number, ride.driver, event_ms, *ride[4:]))
                return _event(ride.head, "in_progress", event_ms), event_ms
        event_ms = now - delay
        wait_ms = 2 * MINUTE_MS + int(self._random() * (_LONGEST_WAIT_MS - 2 * MINUTE_MS))
        ride = self._new_ride(now + wait_ms, event_ms)
        heappush(self._waiting, ride)
        return _event(ride.head, "requested", event_ms), event_ms

    def lone_event(self, event_ms: int) -> str:
        """Give one event of a ride that sends no other: a phone that lost its network for the rest."""
        ride = self._new_ride(event_ms, event_ms)
        self._free.append(ride.driver)
        chance = self._random()
        if chance < 0.6:
            return _event(ride.head + ride.dropoff, "completed", event_ms)
        return _event(ride.head, "in_progress" if chance < 0.9 else "cancelled", event_ms)

    def _due(self, rides: list[_Ride], now: int, unseen_before: int) -> _Ride | None:
        if rides and (rides[0].due_ms <= now or len(rides) >= _MOST_OPEN_RIDES):
            return heappop(rides)
        # It began before the stream did.
        return self._new_ride(now, 0) if now < unseen_before else None

    def _new_ride(self, due_ms: int, last_ms: int) -> _Ride:
        draw, city = self._random, self.city
        self._number += 1
        free = self._free
        if free:
            at = int(draw() * len(free))
            driver, free[at] = free[at], free[-1]
            free.pop()
        else:
            driver = f"d-{city.code}-{self._hired:05d}"
            self._hired += 1
        # Pickups crowd in the centre (about 0.1 degree is 11 km); trips average 5 km, at 22 km/h in traffic.
        lat = city.lat + (draw() + draw() - 1) * 0.09
        lon = city.lon + (draw() + draw() - 1) * 0.09
        km = min(15.0, 1.0 - 4.2 * math.log(1.0 - draw()))
        minutes = km / 22 * 60 * (0.8 + 0.45 * draw()) + 2
        bearing = draw() * math.tau
        to_lat = lat + km * math.cos(bearing) / 111
        to_lon = lon + km * math.sin(bearing) / 85
        fare = city.base_fare + km * city.fare_per_km + minutes * city.fare_per_km * 0.12
        head = (
            f'{{"ride_id":"{self._bits(64):016x}","driver_id":"{driver}","rider_id":"u-{self._bits(20)}",'
            f'"city":{self._name},"pickup_lat":{lat:.5f},"pickup_lon":{lon:.5f}'
        )
        dropoff = f',"dropoff_lat":{to_lat:.5f},"dropoff_lon":{to_lon:.5f},"fare_amount":{fare:.2f}'
        return _Ride(due_ms, self._number, driver, last_ms, int(minutes * MINUTE_MS), head, dropoff)


class _Simulation(traffic.WeightedSimulation):
    """One stream of ride events."""

    kind = "ride"

    def __init__(self, settings: RideTraffic, start_ms: int) -> None:
        super().__init__(settings, start_ms)
        self._towns = [_CityFleet(city, self.random, self._bits, start_ms) for city in settings.cities]

    def event(self, now: int) -> traffic.GeneratedEvent:
        town, step = self._draw_step(now)
        return traffic.GeneratedEvent(town.key, *town.step(step, now, self._delay()))

    def late(self, now: int) -> traffic.GeneratedEvent:
        town, _ = self._draw_step(now)
        event_ms = now - int((20 + 40 * self.random()) * MINUTE_MS)
        return traffic.GeneratedEvent(town.key, town.lone_event(event_ms), event_ms)

    def standalone_event(self, now: int) -> traffic.GeneratedEvent:
        town, _ = self._draw_step(now)
        return traffic.GeneratedEvent(town.key, town.lone_event(now), now)

    def _draw_step(self, now: int) -> tuple[_CityFleet, int]:
        """Draw who sends next, and which step of a ride."""
        choice = self._choose(now)
        return self._towns[choice >> 2], choice & 3

    def plan(self, now: int) -> Iterator[float]:
        """Weigh every step of every city for the next minute."""
        moods = random.Random(f"{self._seed}/surge/{now // _SURGE_LASTS_MS}")  # noqa: S311
        drawn = moods.sample(self._towns, k=min(2, len(self._towns)))
        surging = drawn[0] if moods.random() < 0.8 else None
        busy = drawn[-1]
        for town in self._towns:
            steps = _SURGE if town is surging else _BUSY if town is busy else _CALM
            volume = town.city.size * _activity_by_hour(now, town.city.utc_offset)
            yield from (volume * weight for weight in steps)


def _activity_by_hour(now_ms: int, utc_offset: float) -> float:
    hour, part = divmod((now_ms / (60 * MINUTE_MS) + utc_offset) % 24, 1)
    return _DAY[int(hour)] * (1 - part) + _DAY[(int(hour) + 1) % 24] * part


def _event(fields: str, status: str, event_ms: int) -> str:
    return f'{fields},"status":"{status}","event_time":"{traffic.iso(event_ms)}"}}'


# The corruptions of a valid event, by name.
MALFORMED: dict[str, traffic.Corruption] = {
    **traffic.common_corruptions("city", "event_time"),
    "fare_not_a_number": traffic.set_fields(fare_amount="abc"),
    "lat_not_a_number": traffic.set_fields(pickup_lat="north"),
    "no_ride_id": traffic.remove_field("ride_id"),
    "no_city": traffic.remove_field("city"),
    "null_key": str.encode,
}


@dataclass(frozen=True)
class RideTraffic(traffic.Traffic):
    """How a stream of rides looks: like any traffic, in these cities."""

    pattern: ClassVar[str] = "rides"
    simulation = _Simulation
    corruptions = MALFORMED

    topic: str = "ride-events"
    cities: tuple[City, ...] = CITIES

    def __post_init__(self) -> None:
        """Refuse what no stream can be."""
        super().__post_init__()
        if not self.cities:
            raise self.invalid_settings("cities is empty", "Somebody has to ride somewhere.")


generator = RideTraffic().with_traffic
