"""Parse a record by a pattern's schema, in plain Python: return its fields, or the reason why it is invalid.

Every model parses records with this module, so that the expected counts, quarantine and output are computed without
Spark. All times are whole milliseconds since the epoch, UTC, unless a name says microseconds.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Generic, TypeVar, cast

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
LARGEST_VALUE = 1024 * 1024  # bytes: Kafka's own default bound of a record

# Spark divides decimals with 39 digits before it rounds to the scale of the result.
_SPARK_DIVISION = Context(prec=39, rounding=ROUND_HALF_UP)
_LARGEST_INTEGER = 2**31 - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Read = Callable[[object], object | None]
Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ConsumedRecord:
    """One record as a consumer read it; `timestamp_ms` is the timestamp of the Kafka message."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class InvalidRecord:
    """An invalid record, and the first reason that applies."""

    partition: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Event:
    """A valid record: its Kafka position and its event time. Times finer than a microsecond are cut off, as in Spark.

    A pattern adds the fields of the payload that its flows need, under their names.
    """

    partition: int
    offset: int
    event_time_us: int

    @property
    def event_time_ms(self) -> int:
        """The event time in whole milliseconds, rounded down, as the watermark sees it."""
        return self.event_time_us // 1000


Row = TypeVar("Row")


def text(value: object) -> str | None:
    """Read a text."""
    return value if isinstance(value, str) else None


def integer(value: object) -> int | None:
    """Read a whole number of 32 bits. As Spark, it reads no 3.0 into it."""
    if not isinstance(value, Decimal) or value.as_tuple().exponent != 0:
        return None
    return int(value) if -_LARGEST_INTEGER - 1 <= value <= _LARGEST_INTEGER else None


def average(values: Sequence[Decimal]) -> Decimal:
    """Average as Spark does, with six digits behind the point, rounded half up. There is at least one value."""
    mean = _SPARK_DIVISION.divide(sum(values, Decimal(0)), Decimal(len(values)))
    return mean.quantize(Decimal("0.000001"), ROUND_HALF_UP)


def number(value: object) -> Decimal | None:
    """Read a number of any size; Spark's doubles are of fewer digits than this."""
    return value if isinstance(value, Decimal) else None


def decimal(precision: int, scale: int) -> Read:
    """Return what reads a decimal: more digits behind the point are rounded half up, more before it do not fit."""
    bound, step = 10 ** (precision - scale), Decimal(1).scaleb(-scale)

    def read(value: object) -> Decimal | None:
        if not isinstance(value, Decimal) or abs(value) >= bound:
            return None
        rounded = value.quantize(step, ROUND_HALF_UP)
        return rounded if abs(rounded) < bound else None

    return read


_ISO_8601 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def instant(value: object) -> int | None:
    """Read date, `T`, time and zone into microseconds. Without a zone it is UTC, as the flows' sessions are.

    Times finer than a microsecond are cut off, as in Spark.
    """
    if not isinstance(value, str) or not _ISO_8601.fullmatch(value):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:  # a 30th of February
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def instant_ms(value: object) -> int | None:
    """Read as `instant` does, into milliseconds, rounded down."""
    microseconds = instant(value)
    return None if microseconds is None else microseconds // 1000


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the payload. `read` gives None for a value of another type."""

    name: str
    read: Read
    required: bool = True


@dataclass(frozen=True)
class RecordSchema(Generic[Row]):
    """The fields of the records of a topic, and the dataclass of a valid record, which has some of them.

    | field        | default | meaning                                                                               |
    |--------------|---------|---------------------------------------------------------------------------------------|
    | row          |         | the dataclass; an `Event` also gets its position and its event time                   |
    | fields       |         | those of the payload                                                                  |
    | time         |         | which of them is the event time, or None                                              |
    | key_required | no      | whether a record without a key is invalid                                             |
    | ahead_ms     | 1 hour  | how far an event time may be ahead of the broker's clock                              |
    """

    row: type[Row]
    fields: tuple[Field, ...]
    time: str | None
    key_required: bool = False
    ahead_ms: int = HOUR_MS

    def parse(self, record: ConsumedRecord) -> Row | InvalidRecord:
        """Return a record as a row, or an InvalidRecord with the first reason that applies."""
        values = self.values(record)
        if isinstance(values, InvalidRecord):
            return values
        time = values.get(self.time or "")
        position = {"partition": record.partition, "offset": record.offset, "event_time_us": time}
        available, row = {**position, **values}, cast("Any", self.row)
        return cast(
            "Row", row(**{field.name: available[field.name] for field in fields(row) if field.name in available})
        )

    def values(self, record: ConsumedRecord) -> Fields | InvalidRecord:
        """Return the values of a record's fields, or an InvalidRecord with the first reason that applies."""
        values = _json_object(record.value)
        reason = self._reason(record, values)
        if reason is not None:
            return InvalidRecord(record.partition, record.offset, reason)
        payload = values or {}
        return {
            field.name: None if payload.get(field.name) is None else field.read(payload[field.name])
            for field in self.fields
        }

    def _reason(self, record: ConsumedRecord, values: Fields | None) -> str | None:
        if record.value is None:
            return "null_value"
        if len(record.value) > LARGEST_VALUE:
            return "too_large"
        if self.key_required and record.key is None:
            return "null_key"
        if values is None:
            return "malformed_json"
        return self._missing(values) or self._wrong_type(values) or self._in_future(record, values)

    def _missing(self, values: Fields) -> str | None:
        absent = (field.name for field in self.fields if field.required and values.get(field.name) is None)
        name = next(absent, None)
        return None if name is None else f"missing:{name}"

    def _wrong_type(self, values: Fields) -> str | None:
        read_values = ((field, values.get(field.name)) for field in self.fields)
        wrong = (field.name for field, value in read_values if value is not None and field.read(value) is None)
        name = next(wrong, None)
        return None if name is None else f"wrong_type:{name}"

    def _in_future(self, record: ConsumedRecord, values: Fields) -> str | None:
        event_time = None if self.time is None else instant(values.get(self.time))
        latest = (record.timestamp_ms + self.ahead_ms) * 1000
        return "event_time_in_future" if event_time is not None and event_time > latest else None


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


def _no_constant(name: str) -> object:
    message = f"{name} is not JSON"
    raise ValueError(message)
