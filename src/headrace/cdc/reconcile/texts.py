"""Convert source values and mirror values to the same text, to compare them.

The conversion uses the source's own text and not the decoder of changes: an error of the decoder must be visible as a
difference. Types without a common text are not compared; a report lists their columns.
"""

import re
import struct
from collections.abc import Callable

from pyspark.sql import Column, functions as F, types as T

from headrace.cdc.capture.source_table import Family, SourceColumn
from headrace.cdc.reconcile.source_rows import Text

_LAST_DAY, _FIRST_DAY = 2**31 - 1, -(2**31)
_LAST, _FIRST = 2**63 - 1, -(2**63)
_MOMENT = re.compile(r"(\d+)-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?(?:\+00)?( BC)?")
_CLOCK = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?)?")
_INTERVAL = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?\d+(?:\.\d+)?)S)?)?"
)
_UNCOMPARED = re.compile(
    r"(point|box|lseg|line|path|polygon|circle|hstore|geometry|geography|linestring|multi\w+|inet4|inet6)\b"
)

Write = Callable[[str], str | None]


def is_compared(column: SourceColumn) -> bool:
    """Whether the values of a column have the same text on both sides."""
    return _UNCOMPARED.match(column.type.lower()) is None


def source_text(column: SourceColumn, family: Family) -> Callable[[Text], Text]:
    """Return the function that converts the source's text of a value to the mirror's text."""
    kind = " ".join(column.type.lower().split())
    write = _postgres_text_converter(kind.removesuffix("[]")) if family == "postgres" else _mysql_text_converter(kind)

    def convert(text: Text) -> Text:
        if isinstance(text, list):
            return [convert(element) for element in text]
        return None if text is None else write(text)

    return convert


def mirror_text(value: Column, kind: T.DataType) -> Column:
    """Return the expression that writes a mirror's value as the same text."""
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return F.transform(value, lambda item: mirror_text(item, element))
    if isinstance(kind, T.DateType):
        return F.unix_date(value).cast("string")
    if isinstance(kind, T.TimestampType | T.TimestampNTZType):
        return F.unix_micros(value.cast("timestamp")).cast("string")
    return F.lower(F.hex(value)) if isinstance(kind, T.BinaryType) else value.cast("string")


def typed_value(text: Column, kind: T.DataType) -> Column:
    """Return the expression that converts the text of `mirror_text` to a value of the mirror."""
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return F.transform(F.from_json(text, "array<string>"), lambda item: typed_value(item, element))
    if isinstance(kind, T.DateType):
        return F.date_from_unix_date(text.cast("int"))
    if isinstance(kind, T.TimestampType | T.TimestampNTZType):
        return F.timestamp_micros(text.cast("bigint")).cast(kind)
    return F.unhex(text) if isinstance(kind, T.BinaryType) else text.cast(kind)


def comparable_text(text: Text, kind: T.DataType) -> Text:
    """Return a text such that equal values have equal texts: a float can be written in several ways."""
    if isinstance(kind, T.ArrayType) and isinstance(text, list):
        return [comparable_text(item, kind.elementType) for item in text]
    if isinstance(text, str) and isinstance(kind, T.FloatType | T.DoubleType):
        number = float(text)
        return "NaN" if number != number else struct.pack(_PACKED[type(kind)], number).hex()  # noqa: PLR0124
    return text


_PACKED: dict[type, str] = {T.FloatType: ">f", T.DoubleType: ">d"}


def _postgres_text_converter(kind: str) -> Write:
    name = re.sub(r"\([^)]*\)", "", kind)
    if name == "character":
        length = int(re.sub(r"\D", "", kind) or 1)
        return lambda text: text.ljust(length)
    if name == "bit":
        return _bit if kind in ("bit", "bit(1)") else str
    return _POSTGRES.get(" ".join(name.split()), str)


def _mysql_text_converter(kind: str) -> Write:
    name = kind.partition("(")[0]
    if name == "bit":
        length = int(re.sub(r"\D", "", kind) or 1)
        return _bit if length == 1 else lambda text: text.zfill(length)
    return _MYSQL.get(name, str)


def _bit(text: str) -> str:
    return "true" if text == "1" else "false"


def _days_since_epoch(year: int, month: int, day: int) -> int:
    """Return the days since 1970 by the Gregorian calendar, for any year."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _day_and_microseconds(text: str) -> tuple[int, int] | None:
    """Return the day and the microseconds of the day; None for an invalid day, which MySQL may contain."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        return None
    year, month, day = (int(match[part]) for part in (1, 2, 3))
    if not (month and day):
        return None
    clock = [int(match[part] or 0) for part in (4, 5, 6)]
    seconds = clock[0] * 3600 + clock[1] * 60 + clock[2]
    return _days_since_epoch(1 - year if match[8] else year, month, day), seconds * 1_000_000 + int(
        (match[7] or "").ljust(6, "0")
    )


def _date(text: str) -> str | None:
    if text in ("infinity", "-infinity"):
        return str(_LAST_DAY if text == "infinity" else _FIRST_DAY)
    moment = _day_and_microseconds(text)
    return None if moment is None else str(moment[0])


def _time(text: str) -> str | None:
    if text in ("infinity", "-infinity"):
        return str(_LAST if text == "infinity" else _FIRST)
    moment = _day_and_microseconds(text)
    return None if moment is None else str(moment[0] * 86_400_000_000 + moment[1])


def _clock(text: str) -> str:
    match = _CLOCK.fullmatch(text)
    if match is None:
        return text
    return f"{match[1]}{int(match[2]):02d}:{match[3]}:{match[4]}.{(match[5] or '').ljust(6, '0')}"


def _normalize_time_to_utc(text: str) -> str:
    """Return a time of day in UTC: changes do not contain its own offset."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return text
    hour, minute, second = (int(match[part]) for part in (2, 3, 4))
    offset = sum(int(match[part] or 0) * unit for part, unit in ((7, 3600), (8, 60), (9, 1)))
    seconds = hour * 3600 + minute * 60 + second - (offset if match[6] == "+" else -offset)
    seconds %= 86_400
    fraction = (match[5] or "").rstrip("0")
    shown = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{shown}.{fraction}Z" if fraction else f"{shown}Z"


def _interval(text: str) -> str:
    match = _INTERVAL.fullmatch(text)
    if match is None:
        return text
    year, month, day, hour, minute, second = (match[part] or "0" for part in range(1, 7))
    return f"P{year}Y{month}M{day}DT{hour}H{minute}M{second}S"


_POSTGRES: dict[str, Write] = {
    "date": _date,
    "timestamp without time zone": _time,
    "timestamp with time zone": _time,
    "time without time zone": _clock,
    "time with time zone": _normalize_time_to_utc,
    "interval": _interval,
    "bytea": lambda text: text.removeprefix("\\x"),
    "money": lambda text: re.sub(r"[^\d.-]", "", text),
    # A cast writes the whole length of an address of one machine, the type itself does not.
    "inet": lambda text: re.sub(r"^([\d.]+)/32$|^(.*:.*)/128$", r"\1\2", text),
}
_MYSQL: dict[str, Write] = {"date": _date, "datetime": _time, "timestamp": _time, "time": _clock}
