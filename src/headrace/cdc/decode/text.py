"""Convert the texts of Debezium's JSON to values exactly, or to null if a text does not fit.

Spark's own casts round, cut and guess: `1.239` becomes 1.24 as decimal(12,2), `1e400` infinity, `2024` the first of
January, `12.7` the number 12. So a text has to have the form of its type before it is cast, and what the type cannot
hold is null. Each function takes a text and returns the value; null for null.

Times without a zone come as numbers since 1970 (`time.precision.mode=adaptive`); the session's zone has to be UTC, as
it is in every session of Headrace. Debezium's other forms lose something: `isostring` writes 24:00 as 00:00.
"""

from collections.abc import Callable

from pyspark.sql import Column, functions as F
from pyspark.sql.types import DataType

Read = Callable[[Column], Column]

# The ends of what Spark's types hold stand for `infinity` and `-infinity`. No finite value is taken for one of them:
# the last finite date of Postgres is below, and a timestamp at the very end does not fit.
LAST_DAY, FIRST_DAY = 2**31 - 1, -(2**31)
LAST_MICROSECOND, FIRST_MICROSECOND = 2**63 - 1, -(2**63)

# Nothing in Postgres is older: 24 November 4714 BC of the Gregorian calendar.
_OLDEST_DAY = -2_440_588
_OLDEST_MICROSECOND = _OLDEST_DAY * 86_400_000_000

# How the infinities of Postgres arrive, from rows that were selected (snapshot, arrays) and from the log. A day's are
# what is left of its driver's numbers in 32 bits.
_INFINITE_DAYS, _MINUS_INFINITE_DAYS = ("-622191234", "-2147472692"), ("-625821272", "-2147472691")
_INFINITE, _MINUS_INFINITE = 9_223_372_036_825_200_000, -9_223_372_036_832_400_000
# What an array holds in the place of `-infinity`: a year that no timestamp has.
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
    """A label of an enum with a comma in one label: the connector escapes it in changes, but not in a snapshot."""
    return F.replace(text, F.lit("\\,"), F.lit(","))


def boolean(text: Column) -> Column:
    """`true` and `false`."""
    return F.when(text == "true", True).when(text == "false", False)


def integer(spark: DataType) -> Read:
    """Digits that fit the type."""
    return lambda text: F.when(text.rlike(_INTEGER), text.try_cast(spark))


def floating(spark: DataType) -> Read:
    """A number that the type can hold, NaN and the infinities by name. Digits that overflow are no infinity."""

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
        # No byte at all is what is left of a value without a one.
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


def ambiguous_local_timestamp(per_second: int) -> Read:
    """Whether a number may be of the other unit: microseconds are a thousand times as many.

    Milliseconds are ambiguous more than 292 years from 1970, microseconds within 107 days of it: the other unit
    is possible, unless its time is just as far from where times are.
    """

    def read(text: Column) -> Column:
        number = text.try_cast("bigint")
        if per_second == 1_000_000:
            return (F.abs(number) <= _CENTURIES) & (number != 0)
        return (F.abs(number) > _CENTURIES) & ~number.isin(_INFINITE // 1_000, _MINUS_INFINITE // 1_000)

    return read


def ambiguous_time_of_day(per_second: int) -> Read:
    """Whether a time of day may be of the other unit: more than a day, or within its first minute and a half."""

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
    """A JSON array, read element by element: one that does not fit leaves no value at all."""

    def read(text: Column) -> Column:
        elements = F.from_json(text, "array<string>")
        unfit = F.exists(elements, lambda item: item.isNotNull() & element(item).isNull())
        return F.when(~unfit, F.transform(elements, element))

    return read
