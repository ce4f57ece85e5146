"""Custom state without Spark: state in dicts, and a clock that the caller sets.

Batch DataFrames use it (`process_key`), and tests in plain Python (`headrace.testing.KeyedStateTester`). It stores
values in the form that is written for Spark, so that values that Spark cannot store fail here too.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar

from pyspark.sql import Row

from headrace.transforms.keyed.keyed_state import EventTime, KeyedState, call_processor
from headrace.transforms.keyed.state import VALUE, to_millis

Out = TypeVar("Out")


class InMemoryStateStore:
    """The state and the timers of one key."""

    def __init__(self, processor: KeyedState[Any, Any], now_ms: int = 0) -> None:
        shape = type(processor).shape
        self._ttls = {name: ttl for name, (_, ttl) in shape.lists.items()}
        self._ttls |= {name: ttl for name, (_, _, ttl) in shape.maps.items()}
        self._ttls[VALUE] = shape.ttl_ms
        self._now = now_ms
        # Values with their expiry time, by state name and by map key or element number.
        self._entries: dict[str, dict[Any, tuple[Any, float]]] = {}
        self._timers: set[int] = set()

    def advance_to(self, now_ms: int) -> None:
        """Advance the clock. It never goes back."""
        self._now = max(self._now, now_ms)

    def due_timers(self) -> list[int]:
        """Return the timers that are due, earliest first."""
        return sorted(timer for timer in self._timers if timer <= self._now)

    def is_empty(self) -> bool:
        """Whether there is no state and no timer."""
        return not self._timers and not any(self._unexpired(name) for name in self._entries)

    def value(self) -> Any | None:
        """Return the value, or None."""
        return self._unexpired(VALUE).get(None)

    def put_value(self, value: Any | None) -> None:
        """Store the value; None removes it."""
        self.put_entry(VALUE, None, value)

    def elements(self, name: str) -> Iterable[Any]:
        """Return the elements of a list."""
        return list(self._unexpired(name).values())

    def add_element(self, name: str, element: Any) -> None:
        """Append an element to a list."""
        self.put_entry(name, max(self._entries.get(name, {}), default=-1) + 1, element)

    def put_elements(self, name: str, elements: Sequence[Any]) -> None:
        """Replace a list."""
        self._entries.pop(name, None)
        for number, element in enumerate(elements):
            self.put_entry(name, number, element)

    def entry(self, name: str, key: Any) -> Any | None:
        """Return the value of a map key, or None."""
        return self._unexpired(name).get(key)

    def entries(self, name: str) -> Iterable[tuple[Any, Any]]:
        """Return the keys and values of a map."""
        return list(self._unexpired(name).items())

    def put_entry(self, name: str, key: Any, value: Any | None) -> None:
        """Store the value of a map key; None removes it."""
        entries, ttl = self._entries.setdefault(name, {}), self._ttls[name]
        entries.pop(key, None)
        if value is not None:
            entries[key] = (value, float("inf") if ttl is None else self._now + ttl)

    def clear_entries(self, name: str) -> None:
        """Remove a map."""
        self._entries.pop(name, None)

    def now_ms(self) -> int:
        """Return the current time of the clock."""
        return self._now

    def timers_ms(self) -> Iterable[int]:
        """Return the registered timers."""
        return list(self._timers)

    def add_timer(self, at_ms: int) -> None:
        """Register a timer."""
        self._timers.add(at_ms)

    def cancel_timer(self, at_ms: int) -> None:
        """Delete a timer."""
        self._timers.discard(at_ms)

    def _unexpired(self, name: str) -> dict[Any, Any]:
        return {key: value for key, (value, until) in self._entries.get(name, {}).items() if until > self._now}


def fire_timers(
    processor: KeyedState[Any, Out], store: InMemoryStateStore, key: Row, moments: Iterable[int]
) -> Iterator[Out]:
    """Fire timers once each. Timers that are registered during these calls do not fire."""
    for at_ms in moments:
        if at_ms in store.timers_ms():
            yield from call_processor(processor, store, key, None, at_ms)
            store.cancel_timer(at_ms)


def sort_by_event_time(processor: KeyedState[Any, Any], rows: Iterable[Row]) -> list[Row]:
    """Sort rows by event time if the class uses an event-time clock. Rows with a null event time come last."""
    clock = type(processor).clock
    if not isinstance(clock, EventTime):
        return list(rows)
    all_rows = list(rows)
    timed = [row for row in all_rows if row[clock.column] is not None]
    return sorted(timed, key=lambda row: row[clock.column]) + [row for row in all_rows if row[clock.column] is None]


def process_key(processor: KeyedState[Any, Out], key: Row, rows: Iterable[Row], now_ms: int) -> Iterator[Out]:
    """Process all rows of a key like a stream in which they arrive in order, one event time at a time.

    With an event-time clock, rows of the same time are handled together, after the timers before that time. With
    another clock or none, time does not pass and all rows are handled together. At the end of the batch each remaining
    timer fires once, in order.
    """
    clock = type(processor).clock
    store = InMemoryStateStore(processor, now_ms)
    if isinstance(clock, EventTime):
        store = InMemoryStateStore(processor)
        for at, same_time in groupby(rows, key=lambda row: row[clock.column]):
            # The watermark is before every row that is not late. Rows with a null time come last and do not advance it.
            if at is not None:
                yield from _advance_time(processor, store, key, to_millis(at) - 1)
            yield from call_processor(processor, store, key, list(same_time))
    else:
        yield from call_processor(processor, store, key, list(rows))
    for at_ms in sorted(store.timers_ms()):
        store.advance_to(at_ms)
        yield from fire_timers(processor, store, key, [at_ms])


def _advance_time(processor: KeyedState[Any, Out], store: InMemoryStateStore, key: Row, until_ms: int) -> Iterator[Out]:
    """Advance the clock and fire timers, including timers that are registered on the way and later than the last."""
    current: float = float("-inf")
    while due := [timer for timer in store.timers_ms() if current < timer <= until_ms]:
        current = min(due)
        store.advance_to(int(current))
        yield from fire_timers(processor, store, key, [int(current)])
    store.advance_to(until_ms)
