"""Convert the texts of Debezium's JSON to values exactly, or to null if a text does not fit.

Spark's casts round, truncate and guess: `1.239` becomes 1.24 as decimal(12,2), `1e400` becomes infinity, `2024` becomes
the first of January, `12.7` becomes 12. So a text must match the format of its type before it is cast, and a value that
does not fit the type is null. Each function converts the text of a value; null stays null.

Times without a zone are sent as numbers since 1970 (`time.precision.mode=adaptive`). The time zone of the session must
be UTC, as in every session of Headrace. Debezium's other formats lose values: `isostring` writes 24:00 as 00:00.
"""

from collections.abc import Callable

from pyspark.sql import Column, functions as F
from pyspark.sql.types import DataType

Read = Callable[[Column], Column]

# The limits of Spark's types represent `infinity` and `-infinity`. No finite value is decoded to them: the last finite
# date of Postgres is below the limit, and a timestamp at the limit does not fit.
LAST_DAY, FIRST_DAY = 2**31 - 1, -(2**31)
LAST_MICROSECOND, FIRST_MICROSECOND = 2**63 - 1, -(2**63)

# The earliest time of Postgres: 24 November 4714 BC of the Gregorian calendar.
_OLDEST_DAY = -2_440_588
_OLDEST_MICROSECOND = _OLDEST_DAY * 86_400_000_000

# The infinities of Postgres as Debezium sends them, from queries (snapshot, arrays) and from the log. Those of dates
# are numbers of the driver truncated to 32 bits.
_INFINITE_DAYS, _MINUS_INFINITE_DAYS = ("-622191234", "-2147472692"), ("-625821272", "-2147472691")
_INFINITE, _MINUS_INFINITE = 9_223_372_036_825_200_000, -9_223_372_036_832_400_000
# The text for `-infinity` in an array: a year outside of the range of timestamps.
_MINUS_INFINITE_ELEMENT = "+292269055-12-02T23:00:00"

# The milliseconds of 292 years, which are the microseconds of 107 days, and those of a day.
_CENTURIES, _DAY = 9_223_372_036_854, 86_400_000

_INTEGER = r"^-?\d+$"
_FLOAT = r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$"
_MOMENT = r"^[+-]?\d{4,6}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?Z$"
_HEX = r"^([0-9a-fA-F]{2})*$"
_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_SPECIAL = {"NAN": "NaN", "POSITIVE_INFINITY": "Infinity", "NEGATIVE_INFINITY": "-Infinity"}


def as_text(text: Column) -> Column:
    """Every text is one."""
    return text


def enum_label(text: Column) -> Column:
    """A label of an enum with commas in labels: the connector escapes a comma in changes, but not in a snapshot."""
    return F.replace(text, F.lit("\\,"), F.lit(","))


def boolean(text: Column) -> Column:
    """`true` and `false`."""
    return F.when(text == "true", True).when(text == "false", False)


def integer(spark: DataType) -> Read:
    """Digits that fit the type."""
    return lambda text: F.when(text.rlike(_INTEGER), text.try_cast(spark))


def floating(spark: DataType) -> Read:
    """A number in the range of the type, NaN, or an infinity by name. A number that overflows is null."""

    def read(text: Column) -> Column:
        number = text.try_cast(spark)
        finite = F.when(text.rlike(_FLOAT) & (F.abs(number) < float("inf")), number)
        return F.coalesce(finite, F.when(text.isin("NaN", "Infinity", "-Infinity"), number))

    return read


def decimal(spark: DataType, scale: int) -> Read:
    """Digits with at most `scale` after the point: nothing is rounded."""
    form = rf"^-?\d+(\.\d{{0,{scale}}}0*)?$"
    return lambda text: F.when(text.rlike(form), text.try_cast(spark))


def digits(text: Column) -> Column:
    """A number of any length as text; NaN and infinities as the source writes them."""
    result = F.when(text.rlike(_FLOAT), text)
    for word, written in _SPECIAL.items():
        result = result.when(text == word, written)
    return result


def binary(text: Column) -> Column:
    """Hexadecimal digits."""
    return F.when(text.rlike(_HEX), F.unhex(text))


def bits(length: int) -> Read:
    """Bytes in base 64, the lowest first, as a text of `length` zeros and ones."""

    def read(text: Column) -> Column:
        hexadecimal = F.hex(F.unbase64(text))
        count = (F.length(hexadecimal) / 2).cast("int")
        groups = F.transform(
            F.sequence(count - 1, F.lit(0)),
            lambda n: F.lpad(F.conv(F.substring(hexadecimal, n * 2 + 1, F.lit(2)), 16, 2), 8, "0"),
        )
        # A value of zeros only arrives as an empty text.
        shown = F.ltrim(F.when(count > 0, F.array_join(groups, "")).otherwise(F.lit("")), F.lit("0"))
        return F.when(text.rlike(_BASE64) & (F.length(shown) <= length), F.lpad(shown, length, "0"))

    return read


def unknown(text: Column) -> Column:
    """The text of a type that the connector does not know: it sends the bytes as hexadecimal digits."""
    return F.when(text.rlike(_HEX), F.decode(F.unhex(text), "UTF-8"))


def uuid(text: Column) -> Column:
    """A UUID, in lower case."""
    return F.when(text.rlike(_UUID), F.lower(text))


def date(text: Column) -> Column:
    """Days since 1970, or an infinity."""
    number = F.when(text.rlike(_INTEGER), text.try_cast("int"))
    return (
        F.when(text.isin(*_INFINITE_DAYS), F.date_from_unix_date(F.lit(LAST_DAY)))
        .when(text.isin(*_MINUS_INFINITE_DAYS), F.date_from_unix_date(F.lit(FIRST_DAY)))
        .when((number >= _OLDEST_DAY) & (number < LAST_DAY), F.date_from_unix_date(number))
    )


def zoned_timestamp(text: Column) -> Column:
    """A point in time as ISO 8601 in UTC, or an infinity."""
    last, first = (F.timestamp_micros(F.lit(end)) for end in (LAST_MICROSECOND, FIRST_MICROSECOND))
    read = text.try_cast("timestamp")
    return (
        F.when(text == "infinity", last)
        .when((text == "-infinity") | text.startswith(_MINUS_INFINITE_ELEMENT), first)
        .when(text.rlike(_MOMENT) & (read < last), read)
    )


def local_timestamp(per_second: int) -> Read:
    """Milliseconds or microseconds since 1970 by a clock without a zone, or an infinity."""
    unit = 1_000_000 // per_second

    def read(text: Column) -> Column:
        number = F.when(text.rlike(_INTEGER), text.try_cast("bigint"))
        # Compared before they are multiplied: a number beyond the range would overflow.
        fits = (number >= _OLDEST_MICROSECOND // unit) & (number < LAST_MICROSECOND // unit)
        micros = (
            F.when(number == _INFINITE // unit, LAST_MICROSECOND)
            .when(number == _MINUS_INFINITE // unit, FIRST_MICROSECOND)
            .when(fits, number * unit)
        )
        return F.timestamp_micros(micros).cast("timestamp_ntz")

    return read


def time_of_day(per_second: int) -> Read:
    """Milliseconds or microseconds of a day, or of a span of hours, as `12:34:56.123456`."""
    unit = 1_000_000 // per_second

    def read(text: Column) -> Column:
        number = F.when(text.rlike(r"^-?\d{1,15}$"), text.try_cast("bigint")) * unit
        rest = F.abs(number)
        seconds = F.floor(rest / 1_000_000)
        shown = F.format_string(
            "%s%02d:%02d:%02d.%06d",
            F.when(number < 0, F.lit("-")).otherwise(F.lit("")),
            F.floor(seconds / 3600),
            F.floor(seconds / 60) % 60,
            seconds % 60,
            rest % 1_000_000,
        )
        return F.when(number.isNotNull(), shown)

    return read


def has_ambiguous_timestamp_unit(per_second: int) -> Read:
    """Whether a number may have the other unit: a time has a thousand times as many microseconds as milliseconds.

    Milliseconds are ambiguous more than 292 years from 1970, microseconds within 107 days of it: as the other unit,
    the number would be a plausible time.
    """

    def read(text: Column) -> Column:
        number = text.try_cast("bigint")
        if per_second == 1_000_000:
            return (F.abs(number) <= _CENTURIES) & (number != 0)
        return (F.abs(number) > _CENTURIES) & ~number.isin(_INFINITE // 1_000, _MINUS_INFINITE // 1_000)

    return read


def has_ambiguous_time_unit(per_second: int) -> Read:
    """Whether a time of day may have the other unit: more than a day, or within its first minute and a half."""

    def read(text: Column) -> Column:
        number = text.try_cast("bigint")
        if per_second == 1_000_000:
            return (number <= _DAY) & (number != 0)
        return number > _DAY

    return read


def any_element(is_ambiguous: Read) -> Read:
    """Whether an element of an array is ambiguous."""
    return lambda text: F.exists(F.from_json(text, "array<string>"), is_ambiguous)


def array(element: Read) -> Read:
    """A JSON array, decoded by element: null if one element does not fit."""

    def read(text: Column) -> Column:
        elements = F.from_json(text, "array<string>")
        unfit = F.exists(elements, lambda item: item.isNotNull() & element(item).isNull())
        return F.when(~unfit, F.transform(elements, element))

    return read
