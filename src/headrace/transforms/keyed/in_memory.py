"""Custom state without Spark: the state in dicts, and time that somebody sets.

Batches run on it (`replayed`), and so do tests in plain Python (`headrace.testing.Drive`). It keeps values as they are
written for Spark, so that what Spark could not keep fails here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.transforms.keyed.keyed_state import EventTime, KeyedState, called
from headrace.transforms.keyed.state import VALUE, in_ms

if TYPE_CHECKING:
    from pyspark.sql import Row

Out = TypeVar("Out")


class MemoryStore:
    """The state and the timers of one key."""

    def __init__(self, processor: KeyedState[Any, Any], now_ms: int = 0) -> None:
        shape = type(processor).shape
        self._ttls = {name: ttl for name, (_, ttl) in shape.lists.items()}
        self._ttls |= {name: ttl for name, (_, _, ttl) in shape.maps.items()}
        self._ttls[VALUE] = shape.ttl_ms
        self._now = now_ms
        # What is kept, with the moment at which it goes: under a name and a key of a map, or the number of an element.
        self._kept: dict[str, dict[Any, tuple[Any, float]]] = {}
        self._timers: set[int] = set()

    def move_to(self, now_ms: int) -> None:
        """Set the time. It never goes back."""
        self._now = max(self._now, now_ms)

    def due(self) -> list[int]:
        """Return the moments that have come, earliest first."""
        return sorted(each for each in self._timers if each <= self._now)

    def is_empty(self) -> bool:
        """Whether nothing is kept and no moment is asked for."""
        return not self._timers and not any(self._living(name) for name in self._kept)

    def value(self) -> Any | None:
        """Return the value, or None."""
        return self._living(VALUE).get(None)

    def put_value(self, value: Any | None) -> None:
        """Keep the value, or nothing."""
        self._put(VALUE, None, value)

    def elements(self, name: str) -> Iterable[Any]:
        """Return the elements of a list."""
        return list(self._living(name).values())

    def add_element(self, name: str, element: Any) -> None:
        """Put an element at the end of a list."""
        self._put(name, max(self._kept.get(name, {}), default=-1) + 1, element)

    def put_elements(self, name: str, elements: Sequence[Any]) -> None:
        """Make a list of these elements."""
        self._kept.pop(name, None)
        for number, element in enumerate(elements):
            self._put(name, number, element)

    def entry(self, name: str, key: Any) -> Any | None:
        """Return the value of a key of a map, or None."""
        return self._living(name).get(key)

    def entries(self, name: str) -> Iterable[tuple[Any, Any]]:
        """Return the keys of a map and their values."""
        return list(self._living(name).items())

    def put_entry(self, name: str, key: Any, value: Any | None) -> None:
        """Keep a value under a key of a map, or nothing."""
        self._put(name, key, value)

    def clear_entries(self, name: str) -> None:
        """Remove a map."""
        self._kept.pop(name, None)

    def now_ms(self) -> int:
        """Return the time that was set."""
        return self._now

    def timers_ms(self) -> Iterable[int]:
        """Return the moments that are asked for."""
        return list(self._timers)

    def add_timer(self, at_ms: int) -> None:
        """Ask for a moment."""
        self._timers.add(at_ms)

    def cancel_timer(self, at_ms: int) -> None:
        """Ask for a moment no longer."""
        self._timers.discard(at_ms)

    def _living(self, name: str) -> dict[Any, Any]:
        return {key: value for key, (value, until) in self._kept.get(name, {}).items() if until > self._now}

    def _put(self, name: str, key: Any, value: Any | None) -> None:
        kept, ttl = self._kept.setdefault(name, {}), self._ttls[name]
        kept.pop(key, None)
        if value is not None:
            kept[key] = (value, float("inf") if ttl is None else self._now + ttl)


def fired(processor: KeyedState[Any, Out], store: MemoryStore, key: Row, moments: Iterable[int]) -> Iterator[Out]:
    """Let moments come, each once. A moment that is asked for meanwhile is not among them."""
    for at_ms in moments:
        if at_ms in store.timers_ms():
            yield from called(processor, store, key, None, at_ms)
            store.cancel_timer(at_ms)


def in_time_order(processor: KeyedState[Any, Any], rows: Iterable[Row]) -> list[Row]:
    """Return the rows in the order of their event time, if the class goes by it. Rows without one come last."""
    clock = type(processor).clock
    if not isinstance(clock, EventTime):
        return list(rows)
    given = list(rows)
    timed = [row for row in given if row[clock.column] is not None]
    return sorted(timed, key=lambda row: row[clock.column]) + [row for row in given if row[clock.column] is None]


def replayed(processor: KeyedState[Any, Out], key: Row, rows: Iterable[Row], now_ms: int) -> Iterator[Out]:
    """Return what follows from all rows of a key, as from a stream in which they arrive in order, one moment at a time.

    In event time: rows of one moment come together, and timers before a moment come before its rows. With another
    clock or none time stands still, and all rows come together. A batch has an end: there each timer that is left
    comes once, in order.
    """
    clock = type(processor).clock
    store = MemoryStore(processor, now_ms)
    if isinstance(clock, EventTime):
        store = MemoryStore(processor)
        for at, together in groupby(rows, key=lambda row: row[clock.column]):
            # The watermark is before every row that is not late. Rows without a time come last, and move nothing.
            if at is not None:
                yield from _passing(processor, store, key, in_ms(at) - 1)
            yield from called(processor, store, key, list(together))
    else:
        yield from called(processor, store, key, list(rows))
    for at_ms in sorted(store.timers_ms()):
        store.move_to(at_ms)
        yield from fired(processor, store, key, [at_ms])


def _passing(processor: KeyedState[Any, Out], store: MemoryStore, key: Row, until_ms: int) -> Iterator[Out]:
    """Let time pass to a moment. Timers asked for on the way come too, if they are later than the one before."""
    last: float = float("-inf")
    while moments := [each for each in store.timers_ms() if last < each <= until_ms]:
        last = min(moments)
        store.move_to(int(last))
        yield from fired(processor, store, key, [int(last)])
    store.move_to(until_ms)
