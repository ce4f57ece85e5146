"""The right answer of ride analytics, in plain Python: what Spark must give, worked out without Spark.

The model is handed what Kafka held and where Spark cut its batches, and nothing else from the system under test.
All times are whole milliseconds since the epoch, UTC. A replay takes these steps for batch N:

1. Take the records between the batch's offsets, and judge each: a `Ride`, or `Bad` with the first reason that holds.
2. W[N] is the watermark in force: W[0] is 0, later ones are step 7 of the batch before.
3. Keep the rides that the flow counts, and put each into its window, aligned to the epoch.
4. A ride whose window ends at or before W[N-1] is late: counted, and dropped. (Spark filters with the watermark
   of the batch before, and evicts with the one of this batch. W[-1] is 0.)
5. Add the others to the group of their window and key.
6. Update mode puts out every group that step 5 touched. Append mode puts out every group whose window ends at or
   before W[N]. Both then forget the groups whose window ends at or before W[N].
7. W[N+1] is the highest event time of the batch's rides, also of those that step 3 left out, less the delay, or W[N]
   if that is higher. Bad records never count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Generic, TypeVar

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
LARGEST_VALUE = 1024 * 1024  # bytes: Kafka's own default bound of a record

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Spark divides decimals with 39 digits before it rounds to the scale of the result.
_SPARK_DIVISION = Context(prec=39, rounding=ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class Consumed:
    """One record as a consumer read it; `timestamp_ms` is the timestamp of the Kafka message."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Ride:
    """A valid record. Times finer than a microsecond are cut off, as in Spark."""

    partition: int
    offset: int
    ride_id: str
    driver_id: str
    rider_id: str
    city: str
    fare_amount: Decimal | None
    status: str
    event_time_us: int

    @property
    def event_time_ms(self) -> int:
        """The event time in whole milliseconds, rounded down, as the watermark sees it."""
        return self.event_time_us // 1000


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that no flow may count, and the first reason for it."""

    partition: int
    offset: int
    reason: str


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> Decimal | None:
    return value if isinstance(value, Decimal) else None


def _money(value: object) -> Decimal | None:
    """Read a decimal(10,2): more decimals are rounded half up, more than eight digits before the point do not fit."""
    if not isinstance(value, Decimal) or abs(value) >= 10**8:
        return None
    rounded = value.quantize(Decimal("0.01"), ROUND_HALF_UP)
    return rounded if abs(rounded) < 10**8 else None


_ISO_8601 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def _instant(value: object) -> int | None:
    """Read date, `T`, time and zone into microseconds. Without a zone it is UTC, as the flows' sessions are."""
    if not isinstance(value, str) or not _ISO_8601.fullmatch(value):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:  # a 30th of February
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of the schema. `read` gives None for a value of another type."""

    name: str
    read: Callable[[object], object | None]
    required: bool = True


SCHEMA = (
    _Field("ride_id", _text),
    _Field("driver_id", _text),
    _Field("rider_id", _text),
    _Field("city", _text),
    _Field("pickup_lat", _number),
    _Field("pickup_lon", _number),
    _Field("dropoff_lat", _number, required=False),
    _Field("dropoff_lon", _number, required=False),
    _Field("fare_amount", _money, required=False),
    _Field("status", _text),
    _Field("event_time", _instant),
)


def _no_constant(name: str) -> object:
    message = f"{name} is not JSON"
    raise ValueError(message)


def _json_object(value: bytes | None) -> dict[str, object] | None:
    """Parse strictly: UTF-8, one JSON object, no NaN. Every number becomes a Decimal, so nothing is rounded."""
    if value is None:
        return None
    try:
        parsed: object = json.loads(
            value.decode("utf-8"), parse_float=Decimal, parse_int=Decimal, parse_constant=_no_constant
        )
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


_Fields = Mapping[str, object]


def _null_value(record: Consumed, _: _Fields | None) -> str | None:
    return "null_value" if record.value is None else None


def _too_large(record: Consumed, _: _Fields | None) -> str | None:
    return "too_large" if len(record.value or b"") > LARGEST_VALUE else None


def _null_key(record: Consumed, _: _Fields | None) -> str | None:
    return "null_key" if record.key is None else None


def _malformed_json(_: Consumed, fields: _Fields | None) -> str | None:
    return "malformed_json" if fields is None else None


def _missing(_: Consumed, fields: _Fields | None) -> str | None:
    absent = (f.name for f in SCHEMA if f.required and (fields or {}).get(f.name) is None)
    name = next(absent, None)
    return None if name is None else f"missing:{name}"


def _wrong_type(_: Consumed, fields: _Fields | None) -> str | None:
    given = ((f, (fields or {}).get(f.name)) for f in SCHEMA)
    wrong = (f.name for f, value in given if value is not None and f.read(value) is None)
    name = next(wrong, None)
    return None if name is None else f"wrong_type:{name}"


def _event_time_in_future(record: Consumed, fields: _Fields | None) -> str | None:
    event_time = _instant((fields or {}).get("event_time"))
    latest = (record.timestamp_ms + HOUR_MS) * 1000
    return "event_time_in_future" if event_time is not None and event_time > latest else None


# The first rule that gives a reason decides.
RULES: tuple[Callable[[Consumed, _Fields | None], str | None], ...] = (
    _null_value,
    _too_large,
    _null_key,
    _malformed_json,
    _missing,
    _wrong_type,
    _event_time_in_future,
)


def judge(record: Consumed) -> Ride | Bad:
    """Say what a record is: a ride, or bad for the first reason of `RULES` that holds."""
    fields = _json_object(record.value)
    for rule in RULES:
        reason = rule(record, fields)
        if reason is not None:
            return Bad(record.partition, record.offset, reason)
    given = fields or {}
    return Ride(
        record.partition,
        record.offset,
        ride_id=str(given["ride_id"]),
        driver_id=str(given["driver_id"]),
        rider_id=str(given["rider_id"]),
        city=str(given["city"]),
        fare_amount=_money(given.get("fare_amount")),
        status=str(given["status"]),
        event_time_us=_instant(given["event_time"]) or 0,
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
    """Average the fares that are given, as Spark does: decimal(10,2) gives decimal(14,6), rounded half up."""
    fares = [ride.fare_amount for ride in rides if ride.fare_amount is not None]
    if not fares:
        return None
    mean = _SPARK_DIVISION.divide(sum(fares, Decimal(0)), Decimal(len(fares)))
    return mean.quantize(Decimal("0.000001"), ROUND_HALF_UP)


def surge_multiplier(active: int, available: int) -> float:
    """Price by active rides per available driver. Rides without any driver are the worst shortage."""
    if available == 0:
        return 2.0 if active > 0 else 1.0
    if active > 3 * available:
        return 2.0
    return 1.5 if active > 2 * available else 1.0


def _completed(rides: Iterable[Ride]) -> list[Ride]:
    return [ride for ride in rides if ride.status == "completed"]


def _city_rides(start: int, end: int, city: str, rides: Sequence[Ride]) -> CityRides:
    completed = _completed(rides)
    rate = (Decimal(len(completed)) / len(rides)).quantize(Decimal("0.0001"), ROUND_HALF_UP)
    drivers = {ride.driver_id for ride in rides}
    return CityRides(start, end, city, len(rides), len(completed), average_fare(completed), len(drivers), float(rate))


def _surge(start: int, end: int, city: str, rides: Sequence[Ride]) -> Surge:
    active = sum(ride.status == "in_progress" for ride in rides)
    available = len({ride.driver_id for ride in rides if ride.status != "in_progress"})
    return Surge(start, end, city, len(rides), active, available, surge_multiplier(active, available))


def _driver_metrics(start: int, end: int, driver: str, rides: Sequence[Ride]) -> DriverMetrics:
    riders = {ride.rider_id for ride in rides}
    return DriverMetrics(start, end, driver, len(rides), average_fare(rides), len(riders))


Row = TypeVar("Row")


@dataclass(frozen=True)
class RideFlow(Generic[Row]):
    """One flow of the pattern. `dataclasses.replace` gives it another window or delay."""

    window_ms: int
    delay_ms: int
    statuses: frozenset[str]
    key: Callable[[Ride], str]
    row: Callable[[int, int, str, Sequence[Ride]], Row]
    append: bool


_COUNTED = frozenset({"completed", "cancelled", "in_progress"})

CITY_RIDES = RideFlow(5 * MINUTE_MS, 10 * MINUTE_MS, _COUNTED, lambda r: r.city, _city_rides, append=False)
SURGE = RideFlow(5 * MINUTE_MS, 10 * MINUTE_MS, _COUNTED, lambda r: r.city, _surge, append=False)
DRIVER_METRICS = RideFlow(
    15 * MINUTE_MS, 30 * MINUTE_MS, frozenset({"completed"}), lambda r: r.driver_id, _driver_metrics, append=True
)


Batch = Mapping[int, tuple[int, int]]
"""Partition -> (first offset, offset after the last). Empty is Spark's batch without data."""


@dataclass(frozen=True)
class Outcome(Generic[Row]):
    """What a flow must have done; every list but `bad` and `open` has one entry per batch."""

    batches: list[list[Row]]
    """The rows put out, by window and key."""
    late_at: list[list[tuple[int, int]]]
    """Where the late rows lie, as (partition, offset)."""
    watermarks: list[int]
    """W[N], the `batchWatermarkMs` of Spark's offset log."""
    bad: list[Bad]
    """Every bad record, in the order of the batches."""
    open: list[Row]
    """The groups that the state still holds after the last batch, as they stand."""

    @property
    def late(self) -> list[int]:
        """How many late rows each batch dropped."""
        return [len(rows) for rows in self.late_at]


def replay(records: Iterable[Consumed], batches: Iterable[Batch], flow: RideFlow[Row]) -> Outcome[Row]:
    """Run a flow over its batches, in the steps that the module's docstring numbers."""
    log = {(record.partition, record.offset): record for record in records}
    groups: dict[tuple[int, str], list[Ride]] = {}
    outcome: Outcome[Row] = Outcome([], [], [], [], [])
    watermark_before, watermark = 0, 0

    def rows(keys: Iterable[tuple[int, str]]) -> list[Row]:
        return [flow.row(start, start + flow.window_ms, key, groups[start, key]) for start, key in sorted(keys)]

    for batch in batches:
        # 1. the records, judged
        offsets = ((partition, n) for partition, span in sorted(batch.items()) for n in range(*span))
        judged = [judge(log[at]) for at in offsets if at in log]
        rides = [ride for ride in judged if isinstance(ride, Ride)]
        outcome.bad.extend(bad for bad in judged if isinstance(bad, Bad))

        # 2. the watermark in force
        outcome.watermarks.append(watermark)

        # 3.-5. into windows, late ones apart
        late: list[tuple[int, int]] = []
        touched: set[tuple[int, str]] = set()
        counted = [ride for ride in rides if ride.status in flow.statuses]
        for ride in counted:
            start = ride.event_time_ms // flow.window_ms * flow.window_ms
            if start + flow.window_ms <= watermark_before:
                late.append((ride.partition, ride.offset))
                continue
            group = (start, flow.key(ride))
            groups.setdefault(group, []).append(ride)
            touched.add(group)
        outcome.late_at.append(late)

        # 6. put out, then forget
        closed = {group for group in groups if group[0] + flow.window_ms <= watermark}
        outcome.batches.append(rows(closed if flow.append else touched))
        for group in closed:
            del groups[group]

        # 7. the next watermark
        highest = max((ride.event_time_ms for ride in rides), default=0)
        watermark_before, watermark = watermark, max(watermark, highest - flow.delay_ms)

    outcome.open.extend(rows(groups))
    return outcome
