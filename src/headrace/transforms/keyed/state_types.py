"""Map the fields of a dataclass to Spark types, by their annotations.

| annotation                          | Spark        |                                                                |
|-------------------------------------|--------------|----------------------------------------------------------------|
| `str`, `bytes`, `bool`              | the same     |                                                                |
| `int`, `float`                      | long, double |                                                                |
| `Annotated[Decimal, Precision(12, 2)]` | decimal   | precision and scale                                            |
| `datetime`                          | timestamp    | with a zone; returned in UTC                                   |
| `date`                              | date         |                                                                |
| `list[T]`, `dict[K, V]`             | array, map   |                                                                |
| a dataclass                         | struct       |                                                                |
| `T` or None                         | nullable     | everything else is refused when it is None                     |

Values are checked when they are written: None in a field that does not allow it, a time without a zone or a decimal
with too many digits is an error (HR-233). Spark would silently store another value.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Protocol

from pyspark.sql import types as T

from headrace.errors import FlowError

_PRIMITIVES: dict[object, T.DataType] = {
    str: T.StringType(),
    bytes: T.BinaryType(),
    bool: T.BooleanType(),
    int: T.LongType(),
    float: T.DoubleType(),
    date: T.DateType(),
}


@dataclass(frozen=True)
class Precision:
    """The precision and scale of a decimal: its digits in total, and those after the decimal point."""

    precision: int
    scale: int


class FieldKind(Protocol):
    """The type of one annotation, and how its values are written and read. Serializable, for the workers."""

    @property
    def spark(self) -> T.DataType:
        """The type of the column."""

    def write(self, value: Any, place: str, *, named: bool) -> Any:
        """Return the value in Spark's form, with structs as dicts if `named`, else as tuples. Raises HR-233."""

    def read(self, value: Any, place: str) -> Any:
        """Return the Python value of a written value that is not None."""


@dataclass(frozen=True)
class PrimitiveKind:
    """A type with the same values in Python and in Spark."""

    python: type
    spark: T.DataType

    def write(self, value: Any, place: str, *, named: bool) -> Any:
        """Return the value."""
        # In Python a bool is an int and a datetime is a date; reject both.
        if type(value) is self.python:
            return value
        if self.python is float and type(value) is int:
            return float(value)
        raise _invalid_value(place, f"It is {value!r}, and {self.python.__name__} is declared.")

    def read(self, value: Any, place: str) -> Any:
        """Return the value."""
        return value


@dataclass(frozen=True)
class TimestampKind:
    """A time with a zone."""

    @property
    def spark(self) -> T.DataType:
        """A timestamp."""
        return T.TimestampType()

    def write(self, value: Any, place: str, *, named: bool) -> Any:
        """Return the time."""
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise _invalid_value(place, f"{value!r} is not a time with a zone.")
        return value

    def read(self, value: Any, place: str) -> Any:
        """Return the time in UTC. Spark returns state timestamps as naive datetimes in local time."""
        return value.astimezone(UTC)


@dataclass(frozen=True)
class DecimalKind:
    """A decimal of a declared size."""

    spark: T.DecimalType

    def write(self, value: Any, place: str, *, named: bool) -> Any:
        """Return the decimal with the declared scale."""
        if not isinstance(value, Decimal) or not value.is_finite():
            raise _invalid_value(place, f"It is {value!r}, and Decimal is declared.")
        digits = value.quantize(Decimal(1).scaleb(-self.spark.scale))
        if digits != value or len(digits.as_tuple().digits) > self.spark.precision:
            raise _invalid_value(place, f"{value} does not fit into {self.spark.simpleString()}.")
        return digits

    def read(self, value: Any, place: str) -> Any:
        """Return the decimal."""
        return value


@dataclass(frozen=True)
class NullableKind:
    """A nullable value."""

    inner: FieldKind

    @property
    def spark(self) -> T.DataType:
        """The type of the value."""
        return self.inner.spark

    def write(self, value: Any, place: str, *, named: bool) -> Any:
        """Return None, or the value as it is written."""
        return None if value is None else self.inner.write(value, place, named=named)

    def read(self, value: Any, place: str) -> Any:
        """Return None, or the value as it is read."""
        return None if value is None else self.inner.read(value, place)


@dataclass(frozen=True)
class ListKind:
    """A list of values of one kind."""

    element: FieldKind

    @property
    def spark(self) -> T.DataType:
        """An array."""
        return T.ArrayType(self.element.spark, containsNull=isinstance(self.element, NullableKind))

    def write(self, value: Any, place: str, *, named: bool) -> Any:
        """Return the list of what its values are written as."""
        if not isinstance(value, list):
            raise _invalid_value(place, f"It is {value!r}, and a list is declared.")
        return [_write(self.element, element, f"{place}[]", named=named) for element in value]

    def read(self, value: Any, place: str) -> Any:
        """Return the list."""
        return [self.element.read(element, place) for element in value]


@dataclass(frozen=True)
class MapKind:
    """A dict."""

    key: FieldKind
    value: FieldKind

    @property
    def spark(self) -> T.DataType:
        """A map."""
        return T.MapType(self.key.spark, self.value.spark, valueContainsNull=isinstance(self.value, NullableKind))

    def write(self, value: Any, place: str, *, named: bool) -> Any:
        """Return the dict of what its keys and values are written as."""
        if not isinstance(value, dict):
            raise _invalid_value(place, f"It is {value!r}, and a dict is declared.")
        return {
            _write(self.key, key, f"{place}[]", named=named): _write(self.value, item, f"{place}[]", named=named)
            for key, item in value.items()
        }

    def read(self, value: Any, place: str) -> Any:
        """Return the dict."""
        return {self.key.read(key, place): self.value.read(item, place) for key, item in value.items()}


@dataclass(frozen=True)
class StructKind:
    """A dataclass, field by field."""

    python: type
    fields: tuple[tuple[str, FieldKind], ...]
    # Read where the class is declared: dataclasses.MISSING does not survive pickling to a worker.
    defaults: Mapping[str, Any]
    factories: Mapping[str, Callable[[], Any]]

    @property
    def spark(self) -> T.StructType:
        """A struct; fields that may be None are nullable."""
        return T.StructType(
            [T.StructField(name, kind.spark, isinstance(kind, NullableKind)) for name, kind in self.fields]
        )

    @property
    def stored_type(self) -> T.StructType:
        """The struct in the state store, all fields nullable: state of an earlier version lacks newer fields."""
        return typing.cast(T.StructType, _nullable(self.spark))

    def write(self, value: Any, place: str, *, named: bool) -> Any:
        """Return the fields, by name or in order."""
        if not isinstance(value, self.python):
            raise _invalid_value(place, f"It is {value!r}, and {self.python.__name__} is declared.")
        fields = {
            name: _write(kind, getattr(value, name), f"{place}.{name}", named=named) for name, kind in self.fields
        }
        return fields if named else tuple(fields.values())

    def read(self, value: Any, place: str) -> Any:
        """Return the object. A field that was added after it was written gets its default. Raises HR-234."""
        return self.python(
            **{
                name: self._default(name, kind, place) if stored is None else kind.read(stored, f"{place}.{name}")
                for (name, kind), stored in zip(self.fields, value, strict=True)
            }
        )

    def _default(self, name: str, kind: FieldKind, place: str) -> Any:
        if isinstance(kind, NullableKind):
            return None
        if name in self.defaults:
            return self.defaults[name]
        if name in self.factories:
            return self.factories[name]()
        raise FlowError(
            f"{place} has no '{name}'.",
            why="It was stored before the field was added, and the field has neither a default nor None.",
            state="The batch was not written; the flow is where it was.",
            remedy=f"Give {self.python.__name__}.{name} a default, or let it be None.",
            code="HR-234",
        )


def struct_kind(annotation: object, place: str) -> StructKind:
    """Return the struct type of a dataclass. Raises HR-232 for an annotation that is not supported."""
    if not (isinstance(annotation, type) and dataclasses.is_dataclass(annotation)):
        raise invalid_state(f"{place} is {annotation!r}.", "It has to be a dataclass.", "Declare it with @dataclass.")
    try:
        hints = typing.get_type_hints(annotation, include_extras=True)
    except NameError as error:
        raise invalid_state(
            f"The annotations of {annotation.__name__} cannot be read: {error}.",
            "They are read when the class is declared, from the top of its module.",
            "Declare the classes that they name there.",
        ) from error
    fields = [
        (field.name, _kind(hints[field.name], f"{annotation.__name__}.{field.name}"))
        for field in dataclasses.fields(annotation)
    ]
    if not fields:
        raise invalid_state(f"{annotation.__name__} has no fields.", "There is nothing to keep.", "Give it one.")
    declared = dataclasses.fields(annotation)
    defaults = {field.name: field.default for field in declared if field.default is not MISSING}
    factories = {field.name: field.default_factory for field in declared if field.default_factory is not MISSING}
    return StructKind(annotation, tuple(fields), defaults, factories)


def element_kind(annotation: object, place: str) -> StructKind | PrimitiveKind | TimestampKind | DecimalKind:
    """Return the kind of an element of a list or map state. Raises HR-232."""
    kind = _kind(annotation, place)
    if not isinstance(kind, StructKind | PrimitiveKind | TimestampKind | DecimalKind):
        raise invalid_state(
            f"{place} is {annotation}.", "An element is a dataclass or a single value.", "Wrap it in a dataclass."
        )
    return kind


def invalid_state(what: str, why: str, remedy: str) -> FlowError:
    """Return HR-232: the declaration of the custom state is invalid."""
    return FlowError(what, why=why, remedy=remedy, code="HR-232")


def _kind(annotation: Any, place: str) -> FieldKind:
    kind = _single(annotation) or _composed(annotation, place)
    if kind is not None:
        return kind
    if annotation is Decimal:
        raise invalid_state(
            f"{place} is a Decimal of no declared size.",
            "Spark keeps decimals of a fixed number of digits.",
            "Write Annotated[Decimal, Precision(12, 2)].",
        )
    raise invalid_state(
        f"{place} is annotated as {annotation}.",
        "A field is str, bytes, bool, int, float, date, datetime, Annotated[Decimal, Precision(...)], list[...], "
        "dict[..., ...], a dataclass, or one of these or None.",
        "Use one of them.",
    )


def _single(annotation: Any) -> FieldKind | None:
    args = typing.get_args(annotation)
    if annotation is datetime:
        return TimestampKind()
    if typing.get_origin(annotation) is typing.Annotated and args[0] is Decimal and isinstance(args[1], Precision):
        return DecimalKind(T.DecimalType(args[1].precision, args[1].scale))
    spark = _PRIMITIVES.get(annotation) if isinstance(annotation, type) else None
    return None if spark is None else PrimitiveKind(annotation, spark)


def _composed(annotation: Any, place: str) -> FieldKind | None:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType) and len(args) == 2 and types.NoneType in args:
        return NullableKind(_kind(next(arg for arg in args if arg is not types.NoneType), place))
    if origin is list:
        return ListKind(_kind(args[0], f"{place}[]"))
    if origin is dict:
        return MapKind(_kind(args[0], f"{place}[]"), _kind(args[1], f"{place}[]"))
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return struct_kind(annotation, place)
    return None


def _write(kind: FieldKind, value: Any, place: str, *, named: bool) -> Any:
    if value is None and not isinstance(kind, NullableKind):
        raise _invalid_value(place, "It is None, and None is not declared.")
    return kind.write(value, place, named=named)


def _nullable(data_type: T.DataType) -> T.DataType:
    if isinstance(data_type, T.StructType):
        return T.StructType([T.StructField(field.name, _nullable(field.dataType)) for field in data_type])
    if isinstance(data_type, T.ArrayType):
        return T.ArrayType(_nullable(data_type.elementType))
    if isinstance(data_type, T.MapType):
        return T.MapType(_nullable(data_type.keyType), _nullable(data_type.valueType))
    return data_type


def _invalid_value(place: str, why: str) -> FlowError:
    return FlowError(
        f"{place} cannot be stored or returned.",
        why=why,
        state="The batch was not written; the flow is where it was.",
        remedy="Correct the value, or the annotation.",
        code="HR-233",
    )
