"""Test custom state in plain Python: rows and times in, outputs out. Needs no Spark and takes milliseconds."""

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


class KeyedStateTester(Generic[S, Out]):
    """Runs one `KeyedState` class as a stream does, batch by batch, with the time that the test sets.

    | call                    | is                                                                                    |
    |-------------------------|---------------------------------------------------------------------------------------|
    | `arrive(row, ...)`      | one batch: calls `handle_rows` per key, then the due timers; returns the outputs |
    | `advance_to(time)`      | moves the watermark or the clock; returns the outputs of the timers                   |
    | `state(*key)`           | the state of a key, or None                                                           |
    | `timers(*key)`          | the registered timers of a key                                                        |
    | `late`                  | rows older than the watermark: Spark drops them, so `handle_rows` never gets them |

    A row is a mapping. State goes through the same types as on Spark: what Spark could not store fails here too.
    Not simulated: the distribution of rows over partitions, and the order of keys within a batch.
    """

    def __init__(self, processor: KeyedState[S, Out], *key: str) -> None:
        self._processor, self._key = processor, key
        self._stores: dict[Row, InMemoryStateStore] = {}
        self._now_ms = 0
        self.late: list[Row] = []

    def arrive(self, *rows: Mapping[str, object]) -> list[Out]:
        """Process rows as one batch, and return the outputs."""
        by_key: dict[Row, list[Row]] = {}
        for row in rows:
            record = Row(*row)(*row.values())
            if self._is_late(record):
                self.late.append(record)
            else:
                by_key.setdefault(self._key_row(record[name] for name in self._key), []).append(record)
        outputs: list[Out] = []
        for key, key_rows in by_key.items():
            store = self._stores.setdefault(key, InMemoryStateStore(self._processor, self._now_ms))
            outputs += call_processor(self._processor, store, key, sort_by_event_time(self._processor, key_rows))
        return outputs + self._fire()

    def advance_to(self, when: datetime) -> list[Out]:
        """Move the watermark, or with `ProcessingTime` the clock, and return the outputs of the timers."""
        if to_millis(when) < self._now_ms:
            raise FlowError(
                f"Time cannot move back to {when}: it is {from_millis(self._now_ms)}.",
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
        """Return the state of a key, or None."""
        store = self._stores.get(self._key_row(key))
        return None if store is None else ValueState[S](store, type(self._processor).shape).value

    def timers(self, *key: object) -> list[datetime]:
        """Return the registered timers of a key, earliest first."""
        store = self._stores.get(self._key_row(key))
        return [] if store is None else [from_millis(timer) for timer in sorted(store.timers_ms())]

    def _fire(self) -> list[Out]:
        """Fire the timers that are due, earliest first, as Spark does after the rows of a batch."""
        due = sorted(
            ((at, number, key) for number, key in enumerate(self._stores) for at in self._stores[key].due_timers()),
            key=lambda timer: timer[:2],
        )
        return [out for at, _, key in due for out in fire_timers(self._processor, self._stores[key], key, [at])]

    def _is_late(self, row: Row) -> bool:
        clock = type(self._processor).clock
        if not isinstance(clock, EventTime) or row[clock.column] is None:
            return False
        # Spark compares to the microsecond, and its watermark is in whole milliseconds.
        return bool(row[clock.column] <= from_millis(self._now_ms)) if self._now_ms else False

    def _key_row(self, values: Iterable[Any]) -> Row:
        return Row(*self._key)(*values)
