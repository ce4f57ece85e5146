"""What a class of custom state sees of the key that is being handled: its value, its lists and maps, its timers."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar, overload

from headrace.errors import FlowError
from headrace.transforms.keyed.state_types import Kind, Record

S = TypeVar("S")
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class ListOf(Generic[T]):
    """A list per key beside the value, of a dataclass or of single values: one can be added without reading the rest.

    `ttl` lets each element go that long after it was written.
    """

    element: type[T]
    ttl: str | None = None
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        object.__setattr__(self, "name", name)


@dataclass(frozen=True)
class MapOf(Generic[K, V]):
    """A map per key beside the value: one entry can be read and written without the others.

    `ttl` lets each entry go that long after it was written.
    """

    key: type[K]
    value: type[V]
    ttl: str | None = None
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        object.__setattr__(self, "name", name)


class Store(Protocol):
    """Where the state of the key that is being handled lies. Values are as `state_types` writes them."""

    def value(self) -> Any | None:
        """Return the value, or None."""
        ...

    def put_value(self, value: Any | None) -> None:
        """Keep the value, or nothing."""
        ...

    def elements(self, name: str) -> Iterable[Any]:
        """Return the elements of a list."""
        ...

    def add_element(self, name: str, element: Any) -> None:
        """Put an element at the end of a list."""
        ...

    def put_elements(self, name: str, elements: Sequence[Any]) -> None:
        """Make a list of these elements, or remove it when there are none."""
        ...

    def entry(self, name: str, key: Any) -> Any | None:
        """Return the value of a key of a map, or None."""
        ...

    def entries(self, name: str) -> Iterable[tuple[Any, Any]]:
        """Return the keys of a map and their values."""
        ...

    def put_entry(self, name: str, key: Any, value: Any | None) -> None:
        """Keep a value under a key of a map, or nothing."""
        ...

    def clear_entries(self, name: str) -> None:
        """Remove a map."""
        ...

    def now_ms(self) -> int:
        """Return the time of the declared clock."""
        ...

    def timers_ms(self) -> Iterable[int]:
        """Return the moments that are asked for."""
        ...

    def add_timer(self, at_ms: int) -> None:
        """Ask for a moment."""
        ...

    def cancel_timer(self, at_ms: int) -> None:
        """Ask for a moment no longer."""
        ...


# The name under which Spark keeps the value. Lists and maps have the names of their attributes.
VALUE = "value"


@dataclass(frozen=True)
class Shape:
    """What a class declares, read once, and sent to the workers with it."""

    state: Record
    out: Record
    lists: dict[str, tuple[Kind, int | None]]
    maps: dict[str, tuple[Kind, Kind, int | None]]
    ttl_ms: int | None


class ListState(Generic[T]):
    """A list of one key."""

    def __init__(self, store: Store, name: str, kind: Kind) -> None:
        self._store, self._name, self._kind = store, name, kind

    def __iter__(self) -> Iterator[T]:
        return (_unwrapped(self._kind, each, self._name) for each in self._store.elements(self._name))

    def append(self, element: T) -> None:
        """Put an element at the end."""
        self._store.add_element(self._name, _wrapped(self._kind, element, self._name))

    def set(self, elements: Iterable[T]) -> None:
        """Keep exactly these elements."""
        self._store.put_elements(self._name, [_wrapped(self._kind, each, self._name) for each in elements])


class MapState(Generic[K, V]):
    """A map of one key."""

    def __init__(self, store: Store, name: str, key: Kind, value: Kind) -> None:
        self._store, self._name, self._key, self._value = store, name, key, value

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        found = self._store.entry(self._name, _wrapped(self._key, key, self._name))
        return None if found is None else typing.cast(V, _unwrapped(self._value, found, self._name))

    def __setitem__(self, key: K, value: V) -> None:
        written = _wrapped(self._value, value, self._name)
        self._store.put_entry(self._name, _wrapped(self._key, key, self._name), written)

    def remove(self, key: K) -> None:
        """Remove a key, if it is there."""
        self._store.put_entry(self._name, _wrapped(self._key, key, self._name), None)

    def items(self) -> Iterator[tuple[K, V]]:
        """Return all keys and values."""
        for key, value in self._store.entries(self._name):
            yield _unwrapped(self._key, key, self._name), _unwrapped(self._value, value, self._name)

    def clear(self) -> None:
        """Remove all of it."""
        self._store.clear_entries(self._name)


class ValueState(Generic[S]):
    """What is kept for the key that is being handled. Handed to `handle` and `on_timer`, and of no use after them.

    What `value` holds when the call is over is kept, whether it was assigned or changed in place. None removes it.
    """

    def __init__(self, store: Store, shape: Shape) -> None:
        self._store, self._shape = store, shape
        self._read, self._assigned = False, False
        self._unchanged: Any = None
        self._value: S | None = None

    @property
    def value(self) -> S | None:
        """What is kept, or None."""
        if not self._read:
            before, self._read = self._store.value(), True
            if before is not None:
                self._value = self._shape.state.read(before, self._place)
                # The object may be changed in place; what it is written as now tells that later.
                self._unchanged = self._shape.state.write(self._value, self._place, named=False)
        return self._value

    @value.setter
    def value(self, value: S | None) -> None:
        self._value, self._read, self._assigned = value, True, True

    @overload
    def __getitem__(self, declared: ListOf[T]) -> ListState[T]: ...
    @overload
    def __getitem__(self, declared: MapOf[K, V]) -> MapState[K, V]: ...
    def __getitem__(self, declared: ListOf[T] | MapOf[K, V]) -> ListState[T] | MapState[K, V]:
        if isinstance(declared, ListOf):
            return ListState(self._store, declared.name, self._shape.lists[declared.name][0])
        key, value, _ = self._shape.maps[declared.name]
        return MapState(self._store, declared.name, key, value)

    def clear(self) -> None:
        """Remove the value, the lists and the maps. Timers stay."""
        self.value = None
        for name in self._shape.lists:
            self._store.put_elements(name, [])
        for name in self._shape.maps:
            self._store.clear_entries(name)

    def keep(self) -> None:
        """Write the value if it has changed. Called once after each `handle` and `on_timer`, and not by them."""
        if not self._read:
            return
        written = None if self._value is None else self._shape.state.write(self._value, self._place, named=False)
        if self._assigned or written != self._unchanged:
            self._store.put_value(written)

    @property
    def _place(self) -> str:
        return f"The state ({self._shape.state.of.__name__})"


class Timers:
    """Moments to be called again, of the key that is being handled. They are kept in whole milliseconds, rounded up."""

    def __init__(self, store: Store, *, ticking: bool) -> None:
        self._store, self._ticking = store, ticking

    @property
    def now(self) -> datetime:
        """The time by the declared clock: the watermark, which is before every row, or the start of the batch."""
        self._require_clock()
        return moment(self._store.now_ms())

    @property
    def pending(self) -> list[datetime]:
        """The moments that are asked for, earliest first."""
        self._require_clock()
        return [moment(each) for each in sorted(self._store.timers_ms())]

    def at(self, when: datetime) -> None:
        """Ask for a call of `on_timer` at a moment. One that has passed comes with this batch or the next."""
        self._require_clock()
        self._store.add_timer(in_ms(when))

    def cancel(self, when: datetime) -> None:
        """Ask for it no longer. It need not be there."""
        self._require_clock()
        self._store.cancel_timer(in_ms(when))

    def only(self, when: datetime) -> None:
        """Ask for this moment and for no other: what moves the end of a session."""
        self._require_clock()
        for each in list(self._store.timers_ms()):
            self._store.cancel_timer(each)
        self._store.add_timer(in_ms(when))

    def _require_clock(self) -> None:
        if not self._ticking:
            raise FlowError(
                "Timers are used, and no clock is declared.",
                why="Without one nothing tells that a moment has come.",
                state="The batch was not written; the flow is where it was.",
                remedy="Set `clock = EventTime(COLUMN)` or `clock = ProcessingTime()` in the class.",
                code="HR-235",
            )


def moment(ms: int) -> datetime:
    """Return milliseconds since 1970 as a time in UTC."""
    return _EPOCH + ms * _MILLISECOND


def in_ms(when: datetime) -> int:
    """Return a moment in milliseconds, rounded up: a timer never comes early."""
    if when.tzinfo is None:
        raise FlowError(
            f"A timer is asked for at {when}.",
            why="A time without a zone is a different moment on every machine.",
            state="The batch was not written; the flow is where it was.",
            remedy="Use times with a zone, as rows have them.",
            code="HR-235",
        )
    return -((_EPOCH - when) // _MILLISECOND)


def _wrapped(kind: Kind, value: Any, place: str) -> Any:
    """Return an element as a row of the state: a dataclass as its fields, a single value as the only one."""
    written = kind.write(value, place, named=False)
    return written if isinstance(kind, Record) else (written,)


def _unwrapped(kind: Kind, value: Any, place: str) -> Any:
    return kind.read(value if isinstance(kind, Record) else value[0], place)
