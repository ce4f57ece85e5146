"""Map the types of a source database to Spark types, and decode their texts.

Nothing is lost: a number with more digits than Spark's decimal stays text. A time of day, an interval and every type
without a Spark type stay the text that the connector writes. `infinity` of dates and
timestamps is the last value of Spark's type, `-infinity` the first. The page docs/cdc/types.md lists the rules.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import md5
from uuid import UUID

from pyspark.sql import types as T

from headrace.cdc.capture.source_table import Family
from headrace.cdc.decode import text as texts

# The format of values that stay text.
_TEXT = "text"
# The precision of Spark's decimal.
_MAX_PRECISION = 38

# Unchanged large arrays of these elements arrive as a placeholder, others as null.
_WITH_PLACEHOLDER = ("text", "character varying", "json", "jsonb", "integer", "bigint", "date", "uuid")
# Arrays of these elements arrive without loss.
_ELEMENTS = (
    *_WITH_PLACEHOLDER,
    *("boolean", "smallint", "real", "double precision", "numeric", "character", "bytea", "enum", "inet", "cidr"),
    *("macaddr", "macaddr8", "int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange", "oid"),
    *("timestamp without time zone", "timestamp with time zone"),
)


@dataclass(frozen=True)
class TypeDecoder:
    """The Spark type of a column and the expression that decodes its text: null if the text does not fit."""

    spark: T.DataType
    read: texts.Read
    # Whether the connector sends its bytes as hexadecimal digits.
    hexadecimal: bool = False
    # The format of the text, if another column of the same Spark type may use another one.
    text_format: str = ""
    # Whether a text may be from before a change of the column type, and would then be decoded to a wrong value.
    is_ambiguous: texts.Read | None = None

    def placeholders(self, placeholder: str) -> tuple[str, ...]:
        """Return the placeholders of a value that is not in the log."""
        if isinstance(self.spark, T.ArrayType):
            # By the type of its elements: the text, its bytes as numbers, or a UUID made of it.
            numbers = ",".join(str(byte) for byte in placeholder.encode())
            uuid_ = UUID(bytes=md5(placeholder.encode(), usedforsecurity=False).digest(), version=3)
            return f'["{placeholder}"]', f"[{numbers}]", f'["{uuid_}"]'
        if self.hexadecimal:
            return placeholder, placeholder.encode().hex()
        return (placeholder,)


@dataclass(frozen=True)
class TypeMapping:
    """The decoder of some source types. `shown` and `note` are for docs/cdc/types.md."""

    names: tuple[str, ...]
    shown: str
    note: str
    decoder: Callable[[tuple[int, ...]], TypeDecoder]


def decoder_for(source: str, family: Family) -> TypeDecoder:
    """Return the decoder of a source type, as the source catalogue writes it in full."""
    source = " ".join(source.lower().split())
    if source.endswith("[]"):
        element = decoder_for(source.removesuffix("[]"), family)
        is_ambiguous = texts.any_element(element.is_ambiguous) if element.is_ambiguous else None
        return TypeDecoder(
            T.ArrayType(element.spark),
            texts.array(element.read),
            text_format=element.text_format,
            is_ambiguous=is_ambiguous,
        )
    name, arguments = _name_and_arguments(source)
    named = {name_: rule for rule in type_mappings(family) for name_ in rule.names}
    if name == "enum" and "," in source.replace("','", ""):
        return TypeDecoder(T.StringType(), texts.enum_label, text_format=_TEXT)
    return named[name].decoder(arguments) if name in named else _UNKNOWN[family]


def type_mappings(family: Family) -> tuple[TypeMapping, ...]:
    """Return the mappings in the order of the page. A type without a mapping is text."""
    return _POSTGRES if family == "postgres" else _MYSQL


def describe_value_loss(source: str, family: Family, identity: str) -> str | None:
    """Return which values of a type the connector loses, or None if it loses none."""
    name, _ = _name_and_arguments(" ".join(source.lower().split()))
    if family != "postgres":
        return None
    if name == "bit varying":
        return "the zeros in front of its values are lost"
    if not name.endswith("[]"):
        return None
    if name.removesuffix("[]") not in _ELEMENTS:
        return "the connector sends arrays of this type incompletely, or not at all"
    if name.removesuffix("[]") not in _WITH_PLACEHOLDER and identity != "full":
        return "a large value that an update leaves alone arrives as null, unless the replica identity is full"
    return None


def _name_and_arguments(source: str) -> tuple[str, tuple[int, ...]]:
    """Return the name without its numbers, and the numbers: `timestamp(3) with time zone` has one."""
    if source.startswith(("enum(", "set(")):
        return source.partition("(")[0], ()
    match = re.search(r"\(([\d,\- ]+)\)", source)
    if match is None:
        return source.replace(" zerofill", ""), ()
    name = " ".join((source[: match.start()] + source[match.end() :]).replace(" zerofill", "").split())
    return name, tuple(int(digit_group) for digit_group in match[1].split(","))


def _plain(spark: T.DataType, read: texts.Read) -> Callable[[tuple[int, ...]], TypeDecoder]:
    return lambda _: TypeDecoder(spark, read)


def _integer(spark: T.DataType) -> Callable[[tuple[int, ...]], TypeDecoder]:
    return _plain(spark, texts.integer(spark))


def _numeric(arguments: tuple[int, ...]) -> TypeDecoder:
    """Return a decimal of Spark for a precision that it holds, and text for all others."""
    if not arguments:
        return TypeDecoder(T.StringType(), texts.digits, text_format=_TEXT)
    precision, scale = (*arguments, 0)[:2]
    # A negative scale of Postgres counts zeros before the point; one above the precision, zeros behind it.
    integer_digits, scale = max(precision - scale, 0), max(scale, 0)
    if integer_digits + scale > _MAX_PRECISION:
        return TypeDecoder(T.StringType(), texts.digits, text_format=_TEXT)
    spark = T.DecimalType(integer_digits + scale, scale)
    return TypeDecoder(spark, texts.decimal(spark, scale))


def _units_per_second(arguments: tuple[int, ...], without: int) -> int:
    """Return the unit in which the connector counts a time of this precision: milliseconds up to three digits."""
    precision = arguments[0] if arguments else without
    return 1_000 if precision <= 3 else 1_000_000


def _unit(per_second: int) -> str:
    return "milliseconds" if per_second == 1_000 else "microseconds"


def _local_timestamp(without: int) -> Callable[[tuple[int, ...]], TypeDecoder]:
    def read(arguments: tuple[int, ...]) -> TypeDecoder:
        unit = _units_per_second(arguments, without)
        return TypeDecoder(
            T.TimestampNTZType(),
            texts.local_timestamp(unit),
            text_format=_unit(unit),
            is_ambiguous=texts.has_ambiguous_timestamp_unit(unit),
        )

    return read


def _time_of_day(arguments: tuple[int, ...]) -> TypeDecoder:
    unit = _units_per_second(arguments, 6)
    return TypeDecoder(
        T.StringType(),
        texts.time_of_day(unit),
        text_format=_unit(unit),
        is_ambiguous=texts.has_ambiguous_time_unit(unit),
    )


def _bits(arguments: tuple[int, ...]) -> TypeDecoder:
    length = arguments[0] if arguments else 1
    if length == 1:
        return TypeDecoder(T.BooleanType(), texts.boolean)
    return TypeDecoder(T.StringType(), texts.bits(length), text_format=f"{length} bits")


_UNKNOWN: dict[Family, TypeDecoder] = {
    "postgres": TypeDecoder(T.StringType(), texts.unknown, hexadecimal=True, text_format="bytes"),
    "mysql": TypeDecoder(T.StringType(), texts.as_text, text_format=_TEXT),
}
_AS_TEXT = lambda _: TypeDecoder(T.StringType(), texts.as_text, text_format=_TEXT)  # noqa: E731
_FLOAT, _DOUBLE = (_plain(kind, texts.floating(kind)) for kind in (T.FloatType(), T.DoubleType()))
_DATE, _MOMENT = _plain(T.DateType(), texts.date), _plain(T.TimestampType(), texts.zoned_timestamp)
_BINARY = lambda _: TypeDecoder(T.BinaryType(), texts.binary, hexadecimal=True)  # noqa: E731
_ENDS = "`infinity` and `-infinity` are the ends of Spark's type"

_POSTGRES = (
    TypeMapping(("boolean",), "boolean", "", _plain(T.BooleanType(), texts.boolean)),
    TypeMapping(("smallint",), "smallint", "", _integer(T.ShortType())),
    TypeMapping(("integer",), "int", "", _integer(T.IntegerType())),
    TypeMapping(("bigint", "oid"), "bigint", "", _integer(T.LongType())),
    TypeMapping(("real",), "float", "NaN and infinities are kept", _FLOAT),
    TypeMapping(("double precision",), "double", "NaN and infinities are kept", _DOUBLE),
    TypeMapping(
        ("numeric",),
        "decimal(p,s)",
        "exact; NaN does not fit; without a precision, or beyond 38 digits: string, with `NaN` and `Infinity`",
        _numeric,
    ),
    TypeMapping(("money",), "decimal(19,2)", "", lambda _: _numeric((19, 2))),
    TypeMapping(("date",), "date", _ENDS, _DATE),
    TypeMapping(("timestamp without time zone",), "timestamp_ntz", f"microseconds; {_ENDS}", _local_timestamp(6)),
    TypeMapping(("timestamp with time zone",), "timestamp", f"UTC, microseconds; {_ENDS}", _MOMENT),
    TypeMapping(("time without time zone",), "string", "`12:34:56.123456`, `24:00:00.000000` included", _time_of_day),
    TypeMapping(("time with time zone",), "string", "`12:34:56.123456Z`: in UTC, its own offset is lost", _AS_TEXT),
    TypeMapping(("interval",), "string", "`P1Y2M3DT4H5M6.789012S`", _AS_TEXT),
    TypeMapping(("bytea",), "binary", "", _BINARY),
    TypeMapping(
        ("uuid",), "string", "lower case", lambda _: TypeDecoder(T.StringType(), texts.uuid, text_format=_TEXT)
    ),
    TypeMapping(("bit",), "boolean, string", "`bit(1)`: boolean; else zeros and ones", _bits),
    TypeMapping(("json", "jsonb"), "string", "the text of the document", _AS_TEXT),
    TypeMapping(("text", "character varying", "character", "name", "enum", "xml"), "string", "", _AS_TEXT),
    TypeMapping(("inet", "cidr", "macaddr", "macaddr8"), "string", "as Postgres writes it", _AS_TEXT),
    TypeMapping(
        ("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange"),
        "string",
        "as Postgres writes it",
        _AS_TEXT,
    ),
    TypeMapping(("tsvector", "citext", "ltree", "hstore"), "string", "`hstore` as a JSON object", _AS_TEXT),
    TypeMapping(("point",), "string", "a JSON object of x, y, wkb and srid", _AS_TEXT),
)

_MYSQL = (
    TypeMapping(
        ("tinyint",),
        "tinyint",
        "`tinyint(1)` and `boolean` too: any number of a byte can be in it",
        _integer(T.ByteType()),
    ),
    TypeMapping(("tinyint unsigned", "smallint", "year"), "smallint", "", _integer(T.ShortType())),
    TypeMapping(("smallint unsigned", "mediumint", "mediumint unsigned", "int"), "int", "", _integer(T.IntegerType())),
    TypeMapping(("int unsigned", "bigint"), "bigint", "", _integer(T.LongType())),
    TypeMapping(("bigint unsigned",), "decimal(20,0)", "", lambda _: _numeric((20, 0))),
    TypeMapping(("float", "float unsigned"), "float", "", _FLOAT),
    TypeMapping(("double", "double unsigned"), "double", "", _DOUBLE),
    TypeMapping(("decimal", "decimal unsigned"), "decimal(p,s)", "exact; beyond 38 digits: string", _numeric),
    TypeMapping(("date",), "date", "`0000-00-00` arrives as null", _DATE),
    TypeMapping(("datetime",), "timestamp_ntz", "microseconds; `0000-00-00` arrives as null", _local_timestamp(0)),
    TypeMapping(("timestamp",), "timestamp", "UTC, microseconds; `0000-00-00` arrives as null or 1970", _MOMENT),
    TypeMapping(
        ("time",),
        "string",
        "`12:34:56.123456`, from `-838:59:59.000000` to `838:59:59.000000`",
        # Always in microseconds, whatever its digits.
        lambda _: TypeDecoder(T.StringType(), texts.time_of_day(1_000_000), text_format=_unit(1_000_000)),
    ),
    TypeMapping(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "binary", "", _BINARY),
    TypeMapping(("bit",), "boolean, string", "`bit(1)`: boolean; else zeros and ones", _bits),
    TypeMapping(("enum",), "string", "", _AS_TEXT),
    TypeMapping(("set",), "string", "labels with commas between them", _AS_TEXT),
    TypeMapping(("json",), "string", "the text of the document", _AS_TEXT),
    TypeMapping(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "uuid"), "string", "", _AS_TEXT),
    TypeMapping(("point",), "string", "a JSON object of x, y, wkb and srid", _AS_TEXT),
)
