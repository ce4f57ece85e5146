"""Custom state in plain Python: rows and times go in, outputs come out. No Spark, no session, milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

from pyspark.sql import Row

from headrace.errors import FlowError
from headrace.transforms.keyed.in_memory import InMemoryStateStore, fire_timers, sort_by_event_time
from headrace.transforms.keyed.keyed_state import EventTime, KeyedState, call_processor
from headrace.transforms.keyed.state import ValueState, from_millis, to_millis

S = TypeVar("S")
Out = TypeVar("Out")


class Drive(Generic[S, Out]):
    """Drives one class of custom state as a stream does, batch by batch, with the time that the test sets.

    | call                    | is                                                                                    |
    |-------------------------|---------------------------------------------------------------------------------------|
    | `arrive(row, ...)`      | one batch: `handle_rows` per key, then the timers that have come; returns the outputs |
    | `pass_to(time)`         | time goes on (the watermark, or the clock); returns what the timers give              |
    | `state(*key)`           | what is kept for a key, or None                                                       |
    | `timers(*key)`          | the moments that a key has asked for                                                  |
    | `late`                  | rows that were older than the watermark: dropped by Spark, not seen by `handle_rows` |

    A row is a mapping. What is kept goes through the same types as on Spark: what Spark could not keep fails here too.
    What is not played: how rows are spread over partitions, and in which order the keys of a batch come.
    """

    def __init__(self, processor: KeyedState[S, Out], *key: str) -> None:
        self._processor, self._key = processor, key
        self._stores: dict[Row, InMemoryStateStore] = {}
        self._now_ms = 0
        self.late: list[Row] = []

    def arrive(self, *rows: Mapping[str, object]) -> list[Out]:
        """Let rows arrive together, in one batch."""
        by_key: dict[Row, list[Row]] = {}
        for row in rows:
            given = Row(*row)(*row.values())
            if self._is_late(given):
                self.late.append(given)
            else:
                by_key.setdefault(self._named(given[name] for name in self._key), []).append(given)
        found: list[Out] = []
        for key, of_key in by_key.items():
            store = self._stores.setdefault(key, InMemoryStateStore(self._processor, self._now_ms))
            found += call_processor(self._processor, store, key, sort_by_event_time(self._processor, of_key))
        return found + self._fire()

    def pass_to(self, when: datetime) -> list[Out]:
        """Let time go on: the watermark, or with `ProcessingTime` the clock."""
        if to_millis(when) < self._now_ms:
            raise FlowError(
                f"Time is to go to {when}, and it is {from_millis(self._now_ms)}.",
                why="Neither a watermark nor a clock goes back.",
                state="Nothing was run.",
                remedy="Correct the test.",
                code="HR-220",
            )
        self._now_ms = to_millis(when)
        for store in self._stores.values():
            store.advance_to(self._now_ms)
        return self._fire()

    def state(self, *key: object) -> S | None:
        """Return what is kept for a key, or None."""
        store = self._stores.get(self._named(key))
        return None if store is None else ValueState[S](store, type(self._processor).shape).value

    def timers(self, *key: object) -> list[datetime]:
        """Return the moments that a key has asked for, earliest first."""
        store = self._stores.get(self._named(key))
        return [] if store is None else [from_millis(each) for each in sorted(store.timers_ms())]

    def _fire(self) -> list[Out]:
        """Let the moments that have come be called, earliest first, as Spark does after the rows of a batch."""
        due = sorted(
            ((at, number, key) for number, key in enumerate(self._stores) for at in self._stores[key].due_timers()),
            key=lambda each: each[:2],
        )
        return [out for at, _, key in due for out in fire_timers(self._processor, self._stores[key], key, [at])]

    def _is_late(self, row: Row) -> bool:
        clock = type(self._processor).clock
        if not isinstance(clock, EventTime) or row[clock.column] is None:
            return False
        # Spark compares to the microsecond, and its watermark is in whole milliseconds.
        return bool(row[clock.column] <= from_millis(self._now_ms)) if self._now_ms else False

    def _named(self, values: Iterable[Any]) -> Row:
        return Row(*self._key)(*values)
