"""The state and the timers of the current key: `ValueState`, `ListState`, `MapState` and `Timers`."""

import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar, overload

from headrace.errors import FlowError
from headrace.transforms.keyed.state_types import FieldKind, StructKind

S = TypeVar("S")
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class ListOf(Generic[T]):
    """Declares a list state, of a dataclass or of single values: appending does not read the other elements.

    `ttl` expires each element this long after it was written.
    """

    element: type[T]
    ttl: str | None = None
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        object.__setattr__(self, "name", name)


@dataclass(frozen=True)
class MapOf(Generic[K, V]):
    """Declares a map state: one entry can be read and written without the others.

    `ttl` expires each entry this long after it was written.
    """

    key: type[K]
    value: type[V]
    ttl: str | None = None
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        object.__setattr__(self, "name", name)


class KeyedStateStore(Protocol):
    """The storage of the current key's state. Values are in the form that `state_types` writes."""

    def value(self) -> Any | None:
        """Return the value, or None."""

    def put_value(self, value: Any | None) -> None:
        """Store the value; None removes it."""

    def elements(self, name: str) -> Iterable[Any]:
        """Return the elements of a list."""

    def add_element(self, name: str, element: Any) -> None:
        """Append an element to a list."""

    def put_elements(self, name: str, elements: Sequence[Any]) -> None:
        """Replace a list; no elements remove it."""

    def entry(self, name: str, key: Any) -> Any | None:
        """Return the value of a map key, or None."""

    def entries(self, name: str) -> Iterable[tuple[Any, Any]]:
        """Return the keys and values of a map."""

    def put_entry(self, name: str, key: Any, value: Any | None) -> None:
        """Store the value of a map key; None removes it."""

    def clear_entries(self, name: str) -> None:
        """Remove a map."""

    def now_ms(self) -> int:
        """Return the current time of the declared clock."""

    def timers_ms(self) -> Iterable[int]:
        """Return the registered timers."""

    def add_timer(self, at_ms: int) -> None:
        """Register a timer."""

    def cancel_timer(self, at_ms: int) -> None:
        """Delete a timer."""


# The name of the value state in Spark. List and map states have the names of their attributes.
VALUE = "value"


@dataclass(frozen=True)
class StateSchema:
    """The declared state of a `KeyedState` class, read once and sent to the workers with it."""

    state: StructKind
    out: StructKind
    lists: dict[str, tuple[FieldKind, int | None]]
    maps: dict[str, tuple[FieldKind, FieldKind, int | None]]
    ttl_ms: int | None


class ListState(Generic[T]):
    """The list state of the current key."""

    def __init__(self, store: KeyedStateStore, name: str, kind: FieldKind) -> None:
        self._store, self._name, self._kind = store, name, kind

    def __iter__(self) -> Iterator[T]:
        return (_from_stored(self._kind, element, self._name) for element in self._store.elements(self._name))

    def append(self, element: T) -> None:
        """Append an element."""
        self._store.add_element(self._name, _to_stored(self._kind, element, self._name))

    def set(self, elements: Iterable[T]) -> None:
        """Replace the list with these elements."""
        self._store.put_elements(self._name, [_to_stored(self._kind, element, self._name) for element in elements])


class MapState(Generic[K, V]):
    """The map state of the current key."""

    def __init__(self, store: KeyedStateStore, name: str, key: FieldKind, value: FieldKind) -> None:
        self._store, self._name, self._key, self._value = store, name, key, value

    def get(self, key: K) -> V | None:
        """Return the value of a map entry, or None."""
        stored = self._store.entry(self._name, _to_stored(self._key, key, self._name))
        return None if stored is None else typing.cast(V, _from_stored(self._value, stored, self._name))

    def __setitem__(self, key: K, value: V) -> None:
        written = _to_stored(self._value, value, self._name)
        self._store.put_entry(self._name, _to_stored(self._key, key, self._name), written)

    def remove(self, key: K) -> None:
        """Remove an entry, if it exists."""
        self._store.put_entry(self._name, _to_stored(self._key, key, self._name), None)

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over all entries."""
        for key, value in self._store.entries(self._name):
            yield _from_stored(self._key, key, self._name), _from_stored(self._value, value, self._name)

    def clear(self) -> None:
        """Remove all entries."""
        self._store.clear_entries(self._name)


class ValueState(Generic[S]):
    """The state of the current key. Valid only during the call of `handle_rows` or `handle_timer`.

    `value` is stored after the call, whether it was assigned or changed in place. None removes it.
    """

    def __init__(self, store: KeyedStateStore, shape: StateSchema) -> None:
        self._store, self._shape = store, shape
        self._read, self._assigned = False, False
        self._unchanged: Any = None
        self._value: S | None = None

    @property
    def value(self) -> S | None:
        """The stored value, or None."""
        if not self._read:
            before, self._read = self._store.value(), True
            if before is not None:
                self._value = self._shape.state.read(before, self._place)
                # The object may be changed in place: compare its written form later.
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

    def write_back(self) -> None:
        """Store the value if it has changed. Headrace calls it after each `handle_rows` and `handle_timer`."""
        if not self._read:
            return
        written = None if self._value is None else self._shape.state.write(self._value, self._place, named=False)
        if self._assigned or written != self._unchanged:
            self._store.put_value(written)

    @property
    def _place(self) -> str:
        return f"The state ({self._shape.state.python.__name__})"


class Timers:
    """The timers of the current key, in milliseconds, rounded up."""

    def __init__(self, store: KeyedStateStore, *, has_clock: bool) -> None:
        self._store, self._has_clock = store, has_clock

    @property
    def now(self) -> datetime:
        """The time of the declared clock: the watermark, which is before every row, or the start of the batch."""
        self._require_clock()
        return from_millis(self._store.now_ms())

    @property
    def pending(self) -> list[datetime]:
        """The registered timers, earliest first."""
        self._require_clock()
        return [from_millis(timer) for timer in sorted(self._store.timers_ms())]

    def register(self, when: datetime) -> None:
        """Register a timer: `handle_timer` is called at this time. A past time fires in this batch or the next."""
        self._require_clock()
        self._store.add_timer(to_millis(when))

    def delete(self, when: datetime) -> None:
        """Delete a timer, if it exists."""
        self._require_clock()
        self._store.cancel_timer(to_millis(when))

    def register_only(self, when: datetime) -> None:
        """Register this timer and delete all others: for example to move the end of a session."""
        self._require_clock()
        for timer in list(self._store.timers_ms()):
            self._store.cancel_timer(timer)
        self._store.add_timer(to_millis(when))

    def _require_clock(self) -> None:
        if not self._has_clock:
            raise FlowError(
                "Timers are used, and no clock is declared.",
                why="Without a clock no timer can fire.",
                state="The batch was not written; the flow is where it was.",
                remedy="Set `clock = EventTime(COLUMN)` or `clock = ProcessingTime()` in the class.",
                code="HR-236",
            )


def from_millis(ms: int) -> datetime:
    """Return epoch milliseconds as a datetime in UTC."""
    return _EPOCH + ms * _MILLISECOND


def to_millis(when: datetime) -> int:
    """Return a datetime in epoch milliseconds, rounded up: a timer never fires early."""
    if when.tzinfo is None:
        raise FlowError(
            f"A timer is registered for {when}.",
            why="A time without a zone is a different moment on every machine.",
            state="The batch was not written; the flow is where it was.",
            remedy="Use times with a zone, as rows have them.",
            code="HR-237",
        )
    return -((_EPOCH - when) // _MILLISECOND)


def _to_stored(kind: FieldKind, value: Any, place: str) -> Any:
    """Return an element as a state row: the fields of a dataclass, or a single value as the only field."""
    written = kind.write(value, place, named=False)
    return written if isinstance(kind, StructKind) else (written,)


def _from_stored(kind: FieldKind, value: Any, place: str) -> Any:
    return kind.read(value if isinstance(kind, StructKind) else value[0], place)
