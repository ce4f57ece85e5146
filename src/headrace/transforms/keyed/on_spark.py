"""Custom state on Spark: `transformWithState` for a stream, `mapInArrow` in event-time order for a batch.

It uses Spark's row interface. The pandas interface creates a DataFrame per key, which took twice as long with 40 rows
per key and batch, and converts integers to floats if some are null.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.types import StructField, StructType

from headrace.spark_plan.late_filters import STATE_INPUT, TIMED_STATE_INPUT
from headrace.transforms.dedup import require_watermark
from headrace.transforms.keyed.in_memory import process_key, sort_by_event_time
from headrace.transforms.keyed.keyed_state import EventTime, KeyedState, call_processor
from headrace.transforms.keyed.state import VALUE, StateSchema
from headrace.transforms.keyed.state_types import FieldKind, StructKind, invalid_state


def per_key(rows: DataFrame, processor: KeyedState[Any, Any], *key: str) -> DataFrame:
    """Apply a `KeyedState` class to the rows of each key, and return its output rows.

    For a batch the rows of a key are sorted by event time, with timers between them: see `in_memory.process_key`.
    Every column costs time in Python: select those that the class reads.
    """
    shape = type(processor).shape
    if not key:
        raise invalid_state(
            "No column was named as the key.", "State is stored per key.", "Name the columns of the key."
        )
    _pickle_by_value(processor)
    clock = type(processor).clock
    if not rows.isStreaming:
        order = [clock.column] if isinstance(clock, EventTime) else []
        sorted_rows = rows.repartition(*key).sortWithinPartitions(*key, *order)
        sorted_rows = sorted_rows.alias(TIMED_STATE_INPUT if order else STATE_INPUT)
        return sorted_rows.mapInArrow(
            _map_in_arrow_function(processor, key, round(time.time() * 1000)), shape.out.spark
        )
    if isinstance(clock, EventTime):
        require_watermark(rows, clock.column)
    mode = "none" if clock is None else "eventtime" if isinstance(clock, EventTime) else "processingtime"
    return rows.groupBy(*key).transformWithState(_SparkProcessor(processor, key), shape.out.spark, "append", mode)


class _SparkProcessor(StatefulProcessor):
    """Adapts a `KeyedState` to Spark, which calls it once per key of a batch and once per expired timer."""

    def __init__(self, processor: KeyedState[Any, Any], key: Sequence[str]) -> None:
        self._processor, self._key = processor, tuple(key)
        self._store: _SparkStateStore

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state. Spark also calls it on the driver, to read the schema."""
        self._store = _SparkStateStore(handle, type(self._processor).shape)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Any]:
        """Handle the rows of one key."""
        self._store.now = self._time(timerValues)
        ordered = sort_by_event_time(self._processor, rows)
        return self._columns(call_processor(self._processor, self._store, self._key_row(key), ordered))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Any]:
        """Handle an expired timer. Spark deletes it afterwards, and passes the parameters by name."""
        self._store.now = self._time(timerValues)
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        return self._columns(call_processor(self._processor, self._store, self._key_row(key), None, at_ms))

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _time(self, values: TimerValues) -> int:
        if isinstance(type(self._processor).clock, EventTime):
            return values.getCurrentWatermarkInMs()
        return values.getCurrentProcessingTimeInMs()

    def _key_row(self, key: Any) -> Row:
        return Row(*self._key)(*(value.astimezone(UTC) if isinstance(value, datetime) else value for value in key))

    def _columns(self, returned: Iterable[Any]) -> Iterator[_OutputRow]:
        out = type(self._processor).shape.out
        return (_OutputRow(out.write(row, "A row of the result", named=True)) for row in returned)


class _OutputRow(dict[str, Any]):
    """An output row: a dict with the `asDict` method that Spark calls."""

    def asDict(self, recursive: bool = False) -> dict[str, Any]:
        """Return itself."""
        return self


class _SparkStateStore:
    """The state and the timers of the current key, in Spark's state store."""

    def __init__(self, handle: StatefulProcessorHandle, shape: StateSchema) -> None:
        self._handle, self.now = handle, 0
        self._value: ValueState = handle.getValueState(VALUE, shape.state.stored_type, shape.ttl_ms)
        self._lists: dict[str, ListState] = {
            name: handle.getListState(name, _stored_type(element), ttl) for name, (element, ttl) in shape.lists.items()
        }
        self._maps: dict[str, MapState] = {
            name: handle.getMapState(name, _stored_type(key), _stored_type(value), ttl)
            for name, (key, value, ttl) in shape.maps.items()
        }

    def value(self) -> Any | None:
        """Return the value, or None."""
        return self._value.get()

    def put_value(self, value: Any | None) -> None:
        """Store the value; None removes it."""
        if value is None:
            self._value.clear()
        else:
            self._value.update(value)

    def elements(self, name: str) -> Iterable[Any]:
        """Return the elements of a list."""
        return self._lists[name].get()

    def add_element(self, name: str, element: Any) -> None:
        """Append an element to a list."""
        self._lists[name].appendValue(element)

    def put_elements(self, name: str, elements: Sequence[Any]) -> None:
        """Replace a list. Spark does not store an empty one."""
        if elements:
            self._lists[name].put(list(elements))
        else:
            self._lists[name].clear()

    def entry(self, name: str, key: Any) -> Any | None:
        """Return the value of a map key, or None."""
        return self._maps[name].getValue(key)

    def entries(self, name: str) -> Iterable[tuple[Any, Any]]:
        """Return the keys and values of a map."""
        return self._maps[name].iterator()

    def put_entry(self, name: str, key: Any, value: Any | None) -> None:
        """Store the value of a map key; None removes it."""
        if value is None:
            self._maps[name].removeKey(key)
        else:
            self._maps[name].updateValue(key, value)

    def clear_entries(self, name: str) -> None:
        """Remove a map."""
        self._maps[name].clear()

    def now_ms(self) -> int:
        """Return the time of the batch."""
        return self.now

    def timers_ms(self) -> Iterable[int]:
        """Return the registered timers."""
        return list(self._handle.listTimers())

    def add_timer(self, at_ms: int) -> None:
        """Register a timer."""
        self._handle.registerTimer(at_ms)

    def cancel_timer(self, at_ms: int) -> None:
        """Delete a timer."""
        self._handle.deleteTimer(at_ms)


def _stored_type(kind: FieldKind) -> StructType:
    return kind.stored_type if isinstance(kind, StructKind) else StructType([StructField("value", kind.spark)])


def _map_in_arrow_function(
    processor: KeyedState[Any, Any], key: Sequence[str], now_ms: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow`, which gets partitions with rows sorted by key and time."""
    out = type(processor).shape.out

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(out.spark, timezone="UTC")
        for key_values, key_rows in groupby(_rows(batches), key=lambda row: tuple(row[name] for name in key)):
            output = [
                out.write(row, "A row of the result", named=True)
                for row in process_key(processor, Row(*key)(*key_values), key_rows, now_ms)
            ]
            if output:
                yield pa.RecordBatch.from_pylist(output, schema=schema)

    return run


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        named = Row(*batch.schema.names)
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield named(*values)


def _pickle_by_value(processor: KeyedState[Any, Any]) -> None:
    """Pickle the modules in a script's folder by value, because workers cannot import them."""
    home = sys.modules[type(processor).__module__]
    if "." in home.__name__ or not getattr(home, "__file__", None):
        return
    folder = Path(str(home.__file__)).parent
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." not in name and name != "__main__" and file is not None and Path(file).parent == folder:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
