"""What the fields of a dataclass are to Spark, read from their annotations.

| annotation                          | Spark        |                                                                |
|-------------------------------------|--------------|----------------------------------------------------------------|
| `str`, `bytes`, `bool`              | the same     |                                                                |
| `int`, `float`                      | long, double |                                                                |
| `Annotated[Decimal, Digits(12, 2)]` | decimal      | digits in all, and after the point                             |
| `datetime`                          | timestamp    | with a zone; comes back in UTC                                 |
| `date`                              | date         |                                                                |
| `list[T]`, `dict[K, V]`             | array, map   |                                                                |
| a dataclass                         | struct       |                                                                |
| `T` or None                         | nullable     | everything else is refused when it is None                     |

Values are looked at when they are written: a None in a field that has none, a time without a zone or a decimal with too
many digits is an error (HR-233). Spark would keep another value than the one that was meant, and say nothing.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Protocol

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.errors import FlowError

_PLAIN: dict[object, DataType] = {
    str: StringType(),
    bytes: BinaryType(),
    bool: BooleanType(),
    int: LongType(),
    float: DoubleType(),
    date: DateType(),
}


@dataclass(frozen=True)
class Digits:
    """The size of a decimal: digits in all, and how many of them are after the point."""

    total: int
    after_point: int


class Kind(Protocol):
    """One annotation: its type, and how a value of it is written and read. Data, so that it travels to the workers."""

    @property
    def spark(self) -> DataType:
        """The type of the column."""
        ...

    def write(self, value: Any, place: str, *, named: bool) -> Any:
        """Return the value as Spark takes it, with structs as dicts if `named`, else as tuples. Raises HR-233."""
        ...

    def read(self, value: Any, place: str) -> Any:
        """Return what was written, from a value that is not None."""
        ...


@dataclass(frozen=True)
class Plain:
    """A value that is the same in Python and in Spark."""

    python: type
    spark: DataType

    def write(self, value: Any, place: str, *, named: bool) -> Any:
        """Return the value."""
        # A bool is an int to Python and a datetime is a date, and neither is meant.
        if type(value) is self.python:
            return value
        if self.python is float and type(value) is int:
            return float(value)
        raise _unwritable(place, f"It is {value!r}, and {self.python.__name__} is declared.")

    def read(self, value: Any, place: str) -> Any:
        """Return the value."""
        return value


@dataclass(frozen=True)
class Moment:
    """A time with a zone."""

    @property
    def spark(self) -> DataType:
        """A timestamp."""
        return TimestampType()

    def write(self, value: Any, place: str, *, named: bool) -> Any:
        """Return the time."""
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise _unwritable(place, f"{value!r} is not a time with a zone.")
        return value

    def read(self, value: Any, place: str) -> Any:
        """Return the time in UTC. Spark hands times of the state out without a zone, in that of the machine."""
        return value.astimezone(UTC)


@dataclass(frozen=True)
class Exact:
    """A decimal of a declared size."""

    spark: DecimalType

    def write(self, value: Any, place: str, *, named: bool) -> Any:
        """Return the decimal, written out to the declared digits after the point."""
        if not isinstance(value, Decimal) or not value.is_finite():
            raise _unwritable(place, f"It is {value!r}, and Decimal is declared.")
        digits = value.quantize(Decimal(1).scaleb(-self.spark.scale))
        if digits != value or len(digits.as_tuple().digits) > self.spark.precision:
            raise _unwritable(place, f"{value} does not fit into {self.spark.simpleString()}.")
        return digits

    def read(self, value: Any, place: str) -> Any:
        """Return the decimal."""
        return value


@dataclass(frozen=True)
class Maybe:
    """A value that may be None."""

    inner: Kind

    @property
    def spark(self) -> DataType:
        """The type of the value."""
        return self.inner.spark

    def write(self, value: Any, place: str, *, named: bool) -> Any:
        """Return None, or the value as it is written."""
        return None if value is None else self.inner.write(value, place, named=named)

    def read(self, value: Any, place: str) -> Any:
        """Return None, or the value as it is read."""
        return None if value is None else self.inner.read(value, place)


@dataclass(frozen=True)
class Listed:
    """A list of values of one kind."""

    element: Kind

    @property
    def spark(self) -> DataType:
        """An array."""
        return ArrayType(self.element.spark, containsNull=isinstance(self.element, Maybe))

    def write(self, value: Any, place: str, *, named: bool) -> Any:
        """Return the list of what its values are written as."""
        if not isinstance(value, list):
            raise _unwritable(place, f"It is {value!r}, and a list is declared.")
        return [_written(self.element, each, f"{place}[]", named=named) for each in value]

    def read(self, value: Any, place: str) -> Any:
        """Return the list."""
        return [self.element.read(each, place) for each in value]


@dataclass(frozen=True)
class Mapped:
    """A dict."""

    key: Kind
    value: Kind

    @property
    def spark(self) -> DataType:
        """A map."""
        return MapType(self.key.spark, self.value.spark, valueContainsNull=isinstance(self.value, Maybe))

    def write(self, value: Any, place: str, *, named: bool) -> Any:
        """Return the dict of what its keys and values are written as."""
        if not isinstance(value, dict):
            raise _unwritable(place, f"It is {value!r}, and a dict is declared.")
        return {
            _written(self.key, key, f"{place}[]", named=named): _written(self.value, each, f"{place}[]", named=named)
            for key, each in value.items()
        }

    def read(self, value: Any, place: str) -> Any:
        """Return the dict."""
        return {self.key.read(key, place): self.value.read(each, place) for key, each in value.items()}


@dataclass(frozen=True)
class Record:
    """A dataclass, field by field."""

    of: type
    fields: tuple[tuple[str, Kind], ...]
    # Read where the class is declared: the mark of a field without a default does not survive the way to a worker.
    defaults: Mapping[str, Any]
    factories: Mapping[str, Callable[[], Any]]

    @property
    def spark(self) -> StructType:
        """A struct; a field is nullable that may be None."""
        return StructType([StructField(name, kind.spark, isinstance(kind, Maybe)) for name, kind in self.fields])

    @property
    def kept(self) -> StructType:
        """The struct as the state keeps it, all of it nullable: what an earlier version wrote lacks newer fields."""
        return typing.cast(StructType, _nullable(self.spark))

    def write(self, value: Any, place: str, *, named: bool) -> Any:
        """Return the fields, by name or in order."""
        if not isinstance(value, self.of):
            raise _unwritable(place, f"It is {value!r}, and {self.of.__name__} is declared.")
        fields = {
            name: _written(kind, getattr(value, name), f"{place}.{name}", named=named) for name, kind in self.fields
        }
        return fields if named else tuple(fields.values())

    def read(self, value: Any, place: str) -> Any:
        """Return the object. A field that was not there when it was written gets its default. Raises HR-234."""
        return self.of(
            **{
                name: self._default(name, kind, place) if each is None else kind.read(each, f"{place}.{name}")
                for (name, kind), each in zip(self.fields, value, strict=True)
            }
        )

    def _default(self, name: str, kind: Kind, place: str) -> Any:
        if isinstance(kind, Maybe):
            return None
        if name in self.defaults:
            return self.defaults[name]
        if name in self.factories:
            return self.factories[name]()
        raise FlowError(
            f"{place} has no '{name}'.",
            why="It was kept before the field was added, and the field has neither a default nor None.",
            state="The batch was not written; the flow is where it was.",
            remedy=f"Give {self.of.__name__}.{name} a default, or let it be None.",
            code="HR-234",
        )


def record(of: object, place: str) -> Record:
    """Return what a dataclass is to Spark. Raises HR-232 for an annotation that it cannot be read from."""
    if not (isinstance(of, type) and dataclasses.is_dataclass(of)):
        raise undeclarable(f"{place} is {of!r}.", "It has to be a dataclass.", "Declare it with @dataclass.")
    try:
        hints = typing.get_type_hints(of, include_extras=True)
    except NameError as error:
        raise undeclarable(
            f"The annotations of {of.__name__} cannot be read: {error}.",
            "They are read when the class is declared, from the top of its module.",
            "Declare the classes that they name there.",
        ) from error
    fields = [(each.name, _kind(hints[each.name], f"{of.__name__}.{each.name}")) for each in dataclasses.fields(of)]
    if not fields:
        raise undeclarable(f"{of.__name__} has no fields.", "There is nothing to keep.", "Give it one.")
    declared = dataclasses.fields(of)
    defaults = {each.name: each.default for each in declared if each.default is not MISSING}
    factories = {each.name: each.default_factory for each in declared if each.default_factory is not MISSING}
    return Record(of, tuple(fields), defaults, factories)


def value_or_record(of: object, place: str) -> Record | Plain | Moment | Exact:
    """Return the kind of one element of a list or a map in the state. Raises HR-232."""
    kind = _kind(of, place)
    if not isinstance(kind, Record | Plain | Moment | Exact):
        raise undeclarable(
            f"{place} is {of}.", "An element is a dataclass or a single value.", "Wrap it in a dataclass."
        )
    return kind


def undeclarable(what: str, why: str, remedy: str) -> FlowError:
    """Return the error of a custom state that is declared in a way that cannot run."""
    return FlowError(what, why=why, state="Nothing was started.", remedy=remedy, code="HR-232")


def _kind(annotation: Any, place: str) -> Kind:
    kind = _single(annotation) or _composed(annotation, place)
    if kind is not None:
        return kind
    if annotation is Decimal:
        raise undeclarable(
            f"{place} is a Decimal of no declared size.",
            "Spark keeps decimals of a fixed number of digits.",
            "Write Annotated[Decimal, Digits(12, 2)].",
        )
    raise undeclarable(
        f"{place} is annotated as {annotation}.",
        "A field is str, bytes, bool, int, float, date, datetime, Annotated[Decimal, Digits(...)], list[...], "
        "dict[..., ...], a dataclass, or one of these or None.",
        "Use one of them.",
    )


def _single(annotation: Any) -> Kind | None:
    inside = typing.get_args(annotation)
    if annotation is datetime:
        return Moment()
    if typing.get_origin(annotation) is typing.Annotated and inside[0] is Decimal and isinstance(inside[1], Digits):
        return Exact(DecimalType(inside[1].total, inside[1].after_point))
    spark = _PLAIN.get(annotation) if isinstance(annotation, type) else None
    return None if spark is None else Plain(annotation, spark)


def _composed(annotation: Any, place: str) -> Kind | None:
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType) and len(inside) == 2 and types.NoneType in inside:
        return Maybe(_kind(next(each for each in inside if each is not types.NoneType), place))
    if origin is list:
        return Listed(_kind(inside[0], f"{place}[]"))
    if origin is dict:
        return Mapped(_kind(inside[0], f"{place}[]"), _kind(inside[1], f"{place}[]"))
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return record(annotation, place)
    return None


def _written(kind: Kind, value: Any, place: str, *, named: bool) -> Any:
    if value is None and not isinstance(kind, Maybe):
        raise _unwritable(place, "It is None, and None is not declared.")
    return kind.write(value, place, named=named)


def _nullable(given: DataType) -> DataType:
    if isinstance(given, StructType):
        return StructType([StructField(each.name, _nullable(each.dataType)) for each in given])
    if isinstance(given, ArrayType):
        return ArrayType(_nullable(given.elementType))
    if isinstance(given, MapType):
        return MapType(_nullable(given.keyType), _nullable(given.valueType))
    return given


def _unwritable(place: str, why: str) -> FlowError:
    return FlowError(
        f"{place} cannot be kept or handed on.",
        why=why,
        state="The batch was not written; the flow is where it was.",
        remedy="Correct the value, or the annotation.",
        code="HR-233",
    )
