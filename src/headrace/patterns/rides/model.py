"""The expected output of ride analytics, computed in plain Python without Spark.

This module parses rides and computes the row of each group. `headrace.patterns.window_model` runs the batches, the
watermark and the late rows, as for every flow with windows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from operator import attrgetter

from headrace.patterns import records
from headrace.patterns.records import MINUTE_MS, Event, average
from headrace.patterns.window_model import Row, WindowFlow


@dataclass(frozen=True, slots=True)
class Ride(Event):
    """A ride."""

    ride_id: str
    driver_id: str
    rider_id: str
    city: str
    fare_amount: Decimal | None
    status: str


RIDE = records.RecordSchema(
    Ride,
    (
        records.Field("ride_id", records.text),
        records.Field("driver_id", records.text),
        records.Field("rider_id", records.text),
        records.Field("city", records.text),
        records.Field("pickup_lat", records.number),
        records.Field("pickup_lon", records.number),
        records.Field("dropoff_lat", records.number, required=False),
        records.Field("dropoff_lon", records.number, required=False),
        records.Field("fare_amount", records.decimal(10, 2), required=False),
        records.Field("status", records.text),
        records.Field("event_time", records.instant),
    ),
    time="event_time",
    key_required=True,
)


@dataclass(frozen=True, slots=True)
class CityRides:
    """A row of city rides; `active_drivers` is exact here, where Spark's is approximate."""

    window_start: int
    window_end: int
    city: str
    ride_count: int
    completed_rides: int
    avg_fare: Decimal | None
    active_drivers: int
    completion_rate: float


@dataclass(frozen=True, slots=True)
class Surge:
    """A row of surge; `available_drivers` finished or cancelled a ride in the window."""

    window_start: int
    window_end: int
    city: str
    total_requests: int
    active_rides: int
    available_drivers: int
    surge_multiplier: float


@dataclass(frozen=True, slots=True)
class DriverMetrics:
    """A row of driver metrics."""

    window_start: int
    window_end: int
    driver_id: str
    completed_rides: int
    avg_fare: Decimal | None
    unique_riders: int


def average_fare(rides: Sequence[Ride]) -> Decimal | None:
    """Average the fares that are given."""
    fares = [ride.fare_amount for ride in rides if ride.fare_amount is not None]
    return average(fares) if fares else None


def surge_multiplier(
    active: int,
    available: int,
    above: float = 2,
    multiplier: float = 1.5,
    high_above: float = 3,
    high_multiplier: float = 2.0,
) -> float:
    """Return the price multiplier by active rides per available driver. Rides without any driver are a high surge."""
    if available == 0:
        return high_multiplier if active > 0 else 1.0
    if active > high_above * available:
        return high_multiplier
    return multiplier if active > above * available else 1.0


def _city_rides(start: int, end: int, city: str, rides: Sequence[Ride]) -> CityRides:
    completed = list(filter(_is_completed, rides))
    rate = (Decimal(len(completed)) / len(rides)).quantize(Decimal("0.0001"), ROUND_HALF_UP)
    drivers = {ride.driver_id for ride in rides}
    return CityRides(start, end, city, len(rides), len(completed), average_fare(completed), len(drivers), float(rate))


def _driver_metrics(start: int, end: int, driver: str, rides: Sequence[Ride]) -> DriverMetrics:
    riders = {ride.rider_id for ride in rides}
    return DriverMetrics(start, end, driver, len(rides), average_fare(rides), len(riders))


def _is_completed(ride: Ride) -> bool:
    return ride.status == "completed"


STATUSES = ("completed", "cancelled", "in_progress")


def city_rides(statuses: Iterable[str] = STATUSES) -> WindowFlow[Ride, CityRides]:
    """Return the flow of city rides over rides with one of these statuses."""
    return _by_city(statuses, _city_rides)


def surge(
    statuses: Iterable[str] = STATUSES, multiplier: Callable[[int, int], float] = surge_multiplier
) -> WindowFlow[Ride, Surge]:
    """Return the flow of surge over rides with one of these statuses.

    `multiplier` gives the price for active rides and available drivers.
    """

    def row(start: int, end: int, city: str, rides: Sequence[Ride]) -> Surge:
        active = sum(ride.status == "in_progress" for ride in rides)
        available = len({ride.driver_id for ride in rides if ride.status != "in_progress"})
        return Surge(start, end, city, len(rides), active, available, multiplier(active, available))

    return _by_city(statuses, row)


def _by_city(statuses: Iterable[str], row: Callable[[int, int, str, Sequence[Ride]], Row]) -> WindowFlow[Ride, Row]:
    counted = frozenset(statuses)
    return WindowFlow(
        5 * MINUTE_MS, 10 * MINUTE_MS, RIDE.parse, attrgetter("city"), row, counts=lambda ride: ride.status in counted
    )


DRIVER_METRICS = WindowFlow(
    15 * MINUTE_MS,
    30 * MINUTE_MS,
    RIDE.parse,
    attrgetter("driver_id"),
    _driver_metrics,
    append=True,
    counts=_is_completed,
)
