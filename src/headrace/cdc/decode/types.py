"""Which Spark type a source's type becomes, and how its text is read: one rule per type.

Nothing is lost on the way: a number of more digits than Spark's decimal holds stays text, a time of day, an interval
and everything without a type of Spark's own stay the text that the source's connector writes. `infinity` of dates and
timestamps is the last value of Spark's type, `-infinity` the first. The page docs/cdc/types.md lists the rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import md5
from uuid import UUID

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from headrace.cdc.capture.source_table import Family
from headrace.cdc.decode import text as texts

# What is told as itself.
_TEXT = "text"
# What Spark's decimal holds.
_MOST_DIGITS = 38

# Arrays of these elements arrive marked when an update leaves a large one alone; others arrive as null.
_MARKED = ("text", "character varying", "json", "jsonb", "integer", "bigint", "date", "uuid")
# And arrays of these arrive with all that their elements hold.
_ELEMENTS = (
    *_MARKED,
    *("boolean", "smallint", "real", "double precision", "numeric", "character", "bytea", "enum", "inet", "cidr"),
    *("macaddr", "macaddr8", "int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange", "oid"),
    *("timestamp without time zone", "timestamp with time zone"),
)


@dataclass(frozen=True)
class Reading:
    """The Spark type of a column, and the expression that makes a value of its text, or null if it does not fit."""

    spark: DataType
    read: texts.Read
    # Whether the connector tells its bytes.
    hexadecimal: bool = False
    # What a text means, where a text of another column of the same Spark type may mean something else.
    told: str = ""
    # Whether a text may have been written when the type was another one, and would then be read as a wrong value.
    doubted: texts.Read | None = None

    def placeholders(self, placeholder: str) -> tuple[str, ...]:
        """Return the texts that stand for a value which is not in the log."""
        if isinstance(self.spark, ArrayType):
            # By the type of its elements: the text, its bytes as numbers, or a UUID made of it.
            numbers = ",".join(str(byte) for byte in placeholder.encode())
            made = UUID(bytes=md5(placeholder.encode(), usedforsecurity=False).digest(), version=3)
            return f'["{placeholder}"]', f"[{numbers}]", f'["{made}"]'
        if self.hexadecimal:
            return placeholder, placeholder.encode().hex()
        return (placeholder,)


@dataclass(frozen=True)
class Rule:
    """How types of some names are read. `shown` and `note` are for the page of types."""

    names: tuple[str, ...]
    shown: str
    note: str
    reading: Callable[[tuple[int, ...]], Reading]


def reading(source: str, family: Family) -> Reading:
    """Return how a type, as the source's catalogue writes it in full, is read."""
    return _reading(" ".join(source.lower().split()), family)


def rules(family: Family) -> tuple[Rule, ...]:
    """Return the rules in the order of the page; a type that none of them names is text."""
    return _POSTGRES if family == "postgres" else _MYSQL


def lost(source: str, family: Family, identity: str) -> str | None:
    """Return what the connector loses of a type's values, or None for the types that arrive whole."""
    name, _ = _parts(" ".join(source.lower().split()))
    if family != "postgres":
        return None
    if name == "bit varying":
        return "the zeros in front of its values are lost"
    if not name.endswith("[]"):
        return None
    if name.removesuffix("[]") not in _ELEMENTS:
        return "of arrays of this type the connector tells less than there is, or nothing"
    if name.removesuffix("[]") not in _MARKED and identity != "full":
        return "a large value that an update leaves alone arrives as null, unless the replica identity is full"
    return None


@cache
def _reading(source: str, family: Family) -> Reading:
    if source.endswith("[]"):
        element = _reading(source.removesuffix("[]"), family)
        doubted = texts.any_element(element.doubted) if element.doubted else None
        return Reading(ArrayType(element.spark), texts.array(element.read), told=element.told, doubted=doubted)
    name, arguments = _parts(source)
    named = {each: rule for rule in rules(family) for each in rule.names}
    if name == "enum" and "," in source.replace("','", ""):
        return Reading(StringType(), texts.label, told=_TEXT)
    return named[name].reading(arguments) if name in named else _UNKNOWN[family]


def _parts(source: str) -> tuple[str, tuple[int, ...]]:
    """Return the name without its numbers, and the numbers: `timestamp(3) with time zone` has one."""
    if source.startswith(("enum(", "set(")):
        return source.partition("(")[0], ()
    found = re.search(r"\(([\d,\- ]+)\)", source)
    if found is None:
        return source.replace(" zerofill", ""), ()
    name = " ".join((source[: found.start()] + source[found.end() :]).replace(" zerofill", "").split())
    return name, tuple(int(each) for each in found[1].split(","))


def _plain(spark: DataType, read: texts.Read) -> Callable[[tuple[int, ...]], Reading]:
    return lambda _: Reading(spark, read)


def _whole(spark: DataType) -> Callable[[tuple[int, ...]], Reading]:
    return _plain(spark, texts.integer(spark))


def _numeric(arguments: tuple[int, ...]) -> Reading:
    """Return a decimal of Spark for a precision that it holds, and text for all others."""
    if not arguments:
        return Reading(StringType(), texts.digits, told=_TEXT)
    precision, scale = (*arguments, 0)[:2]
    # A negative scale of Postgres counts zeros before the point; one above the precision, zeros behind it.
    whole, scale = max(precision - scale, 0), max(scale, 0)
    if whole + scale > _MOST_DIGITS:
        return Reading(StringType(), texts.digits, told=_TEXT)
    spark = DecimalType(whole + scale, scale)
    return Reading(spark, texts.decimal(spark, scale))


def _per_second(arguments: tuple[int, ...], without: int) -> int:
    """Return the unit in which the connector counts a time of this precision: milliseconds up to three digits."""
    precision = arguments[0] if arguments else without
    return 1_000 if precision <= 3 else 1_000_000


def _unit(per_second: int) -> str:
    return "milliseconds" if per_second == 1_000 else "microseconds"


def _local(without: int) -> Callable[[tuple[int, ...]], Reading]:
    def read(arguments: tuple[int, ...]) -> Reading:
        unit = _per_second(arguments, without)
        return Reading(TimestampNTZType(), texts.local(unit), told=_unit(unit), doubted=texts.doubted_local(unit))

    return read


def _clock(arguments: tuple[int, ...]) -> Reading:
    unit = _per_second(arguments, 6)
    return Reading(StringType(), texts.clock(unit), told=_unit(unit), doubted=texts.doubted_clock(unit))


def _bits(arguments: tuple[int, ...]) -> Reading:
    length = arguments[0] if arguments else 1
    if length == 1:
        return Reading(BooleanType(), texts.boolean)
    return Reading(StringType(), texts.bits(length), told=f"{length} bits")


_UNKNOWN: dict[Family, Reading] = {
    "postgres": Reading(StringType(), texts.unknown, hexadecimal=True, told="bytes"),
    "mysql": Reading(StringType(), texts.as_text, told=_TEXT),
}
_AS_TEXT = lambda _: Reading(StringType(), texts.as_text, told=_TEXT)  # noqa: E731
_FLOAT, _DOUBLE = (_plain(kind, texts.floating(kind)) for kind in (FloatType(), DoubleType()))
_DATE, _MOMENT = _plain(DateType(), texts.date), _plain(TimestampType(), texts.moment)
_BINARY = lambda _: Reading(BinaryType(), texts.binary, hexadecimal=True)  # noqa: E731
_ENDS = "`infinity` and `-infinity` are the ends of Spark's type"

_POSTGRES = (
    Rule(("boolean",), "boolean", "", _plain(BooleanType(), texts.boolean)),
    Rule(("smallint",), "smallint", "", _whole(ShortType())),
    Rule(("integer",), "int", "", _whole(IntegerType())),
    Rule(("bigint", "oid"), "bigint", "", _whole(LongType())),
    Rule(("real",), "float", "NaN and infinities are kept", _FLOAT),
    Rule(("double precision",), "double", "NaN and infinities are kept", _DOUBLE),
    Rule(
        ("numeric",),
        "decimal(p,s)",
        "exact; NaN does not fit; without a precision, or beyond 38 digits: string, with `NaN` and `Infinity`",
        _numeric,
    ),
    Rule(("money",), "decimal(19,2)", "", lambda _: _numeric((19, 2))),
    Rule(("date",), "date", _ENDS, _DATE),
    Rule(("timestamp without time zone",), "timestamp_ntz", f"microseconds; {_ENDS}", _local(6)),
    Rule(("timestamp with time zone",), "timestamp", f"UTC, microseconds; {_ENDS}", _MOMENT),
    Rule(
        ("time without time zone",),
        "string",
        "`12:34:56.123456`, `24:00:00.000000` included",
        _clock,
    ),
    Rule(("time with time zone",), "string", "`12:34:56.123456Z`: in UTC, its own offset is lost", _AS_TEXT),
    Rule(("interval",), "string", "`P1Y2M3DT4H5M6.789012S`", _AS_TEXT),
    Rule(("bytea",), "binary", "", _BINARY),
    Rule(("uuid",), "string", "lower case", lambda _: Reading(StringType(), texts.uuid, told=_TEXT)),
    Rule(("bit",), "boolean, string", "`bit(1)`: boolean; else zeros and ones", _bits),
    Rule(("json", "jsonb"), "string", "the text of the document", _AS_TEXT),
    Rule(("text", "character varying", "character", "name", "enum", "xml"), "string", "", _AS_TEXT),
    Rule(("inet", "cidr", "macaddr", "macaddr8"), "string", "as Postgres writes it", _AS_TEXT),
    Rule(
        ("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange"),
        "string",
        "as Postgres writes it",
        _AS_TEXT,
    ),
    Rule(("tsvector", "citext", "ltree", "hstore"), "string", "`hstore` as a JSON object", _AS_TEXT),
    Rule(("point",), "string", "a JSON object of x, y, wkb and srid", _AS_TEXT),
)

_MYSQL = (
    Rule(
        ("tinyint",), "tinyint", "`tinyint(1)` and `boolean` too: any number of a byte can be in it", _whole(ByteType())
    ),
    Rule(("tinyint unsigned", "smallint", "year"), "smallint", "", _whole(ShortType())),
    Rule(("smallint unsigned", "mediumint", "mediumint unsigned", "int"), "int", "", _whole(IntegerType())),
    Rule(("int unsigned", "bigint"), "bigint", "", _whole(LongType())),
    Rule(("bigint unsigned",), "decimal(20,0)", "", lambda _: _numeric((20, 0))),
    Rule(("float", "float unsigned"), "float", "", _FLOAT),
    Rule(("double", "double unsigned"), "double", "", _DOUBLE),
    Rule(("decimal", "decimal unsigned"), "decimal(p,s)", "exact; beyond 38 digits: string", _numeric),
    Rule(("date",), "date", "`0000-00-00` arrives as null", _DATE),
    Rule(("datetime",), "timestamp_ntz", "microseconds; `0000-00-00` arrives as null", _local(0)),
    Rule(("timestamp",), "timestamp", "UTC, microseconds; `0000-00-00` arrives as null or 1970", _MOMENT),
    Rule(
        ("time",),
        "string",
        "`12:34:56.123456`, from `-838:59:59.000000` to `838:59:59.000000`",
        # Always in microseconds, whatever its digits.
        lambda _: Reading(StringType(), texts.clock(1_000_000), told=_unit(1_000_000)),
    ),
    Rule(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "binary", "", _BINARY),
    Rule(("bit",), "boolean, string", "`bit(1)`: boolean; else zeros and ones", _bits),
    Rule(("enum",), "string", "", _AS_TEXT),
    Rule(("set",), "string", "labels with commas between them", _AS_TEXT),
    Rule(("json",), "string", "the text of the document", _AS_TEXT),
    Rule(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "uuid"), "string", "", _AS_TEXT),
    Rule(("point",), "string", "a JSON object of x, y, wkb and srid", _AS_TEXT),
)
