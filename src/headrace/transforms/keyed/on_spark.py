"""Custom state on Spark: over a stream by `transformWithState`, over a batch row by row in order of time.

Of Spark's two interfaces for Python it is the one of rows. That of pandas makes a frame per key, which with 40 rows per
key and batch took twice as long here, and turns whole numbers into floats where some are null.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Row
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
from headrace.transforms.keyed.in_memory import in_time_order, replayed
from headrace.transforms.keyed.keyed_state import EventTime, KeyedState, called
from headrace.transforms.keyed.state import VALUE, Shape
from headrace.transforms.keyed.state_types import Kind, Record, undeclarable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def per_key(rows: DataFrame, processor: KeyedState[Any, Any], *key: str) -> DataFrame:
    """Run a class of custom state over the rows of each key, and return what it returns.

    Over a batch the rows of a key come in order of event time, and timers between them: see `in_memory.replayed`.
    Each column costs time in Python for every row: select those that the class reads.
    """
    shape = type(processor).shape
    if not key:
        raise undeclarable("No column was named as the key.", "State is kept per key.", "Name the columns of the key.")
    _travel(processor)
    clock = type(processor).clock
    if not rows.isStreaming:
        order = [clock.column] if isinstance(clock, EventTime) else []
        sorted_rows = rows.repartition(*key).sortWithinPartitions(*key, *order)
        sorted_rows = sorted_rows.alias(TIMED_STATE_INPUT if order else STATE_INPUT)
        return sorted_rows.mapInArrow(_over_batches(processor, key, round(time.time() * 1000)), shape.out.spark)
    if isinstance(clock, EventTime):
        require_watermark(rows, clock.column)
    mode = "none" if clock is None else "eventtime" if isinstance(clock, EventTime) else "processingtime"
    return rows.groupBy(*key).transformWithState(_OnSpark(processor, key), shape.out.spark, "append", mode)


class _OnSpark(StatefulProcessor):
    """What Spark calls: once per key of a batch, once per timer that has come, in a Python worker per partition."""

    def __init__(self, processor: KeyedState[Any, Any], key: Sequence[str]) -> None:
        self._processor, self._key = processor, tuple(key)
        self._store: _SparkStore

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state. Spark calls it on the driver too, to learn its schema."""
        self._store = _SparkStore(handle, type(self._processor).shape)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Any]:
        """Handle the rows of one key."""
        self._store.now = self._time(timerValues)
        ordered = in_time_order(self._processor, rows)
        return self._columns(called(self._processor, self._store, self._named(key), ordered))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Any]:
        """Handle a moment that has come. Spark removes it afterwards, and calls by the names of the parameters."""
        self._store.now = self._time(timerValues)
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        return self._columns(called(self._processor, self._store, self._named(key), None, at_ms))

    def close(self) -> None:
        """Nothing is held open."""

    def _time(self, values: TimerValues) -> int:
        if isinstance(type(self._processor).clock, EventTime):
            return values.getCurrentWatermarkInMs()
        return values.getCurrentProcessingTimeInMs()

    def _named(self, key: Any) -> Row:
        return Row(*self._key)(*(each.astimezone(UTC) if isinstance(each, datetime) else each for each in key))

    def _columns(self, returned: Iterable[Any]) -> Iterator[_Columns]:
        out = type(self._processor).shape.out
        return (_Columns(out.write(each, "A row of the result", named=True)) for each in returned)


class _Columns(dict[str, Any]):
    """A row of the result. Spark asks each for its columns as a dict, which it is."""

    def asDict(self, recursive: bool = False) -> dict[str, Any]:
        """Return itself."""
        return self


class _SparkStore:
    """The state and the timers of the key that Spark is at, in the state store of its partition."""

    def __init__(self, handle: StatefulProcessorHandle, shape: Shape) -> None:
        self._handle, self.now = handle, 0
        self._value: ValueState = handle.getValueState(VALUE, shape.state.kept, shape.ttl_ms)
        self._lists: dict[str, ListState] = {
            name: handle.getListState(name, _kept(element), ttl) for name, (element, ttl) in shape.lists.items()
        }
        self._maps: dict[str, MapState] = {
            name: handle.getMapState(name, _kept(of), _kept(value), ttl)
            for name, (of, value, ttl) in shape.maps.items()
        }

    def value(self) -> Any | None:
        """Return the value, or None."""
        return self._value.get()

    def put_value(self, value: Any | None) -> None:
        """Keep the value, or nothing."""
        if value is None:
            self._value.clear()
        else:
            self._value.update(value)

    def elements(self, name: str) -> Iterable[Any]:
        """Return the elements of a list."""
        return self._lists[name].get()

    def add_element(self, name: str, element: Any) -> None:
        """Put an element at the end of a list."""
        self._lists[name].appendValue(element)

    def put_elements(self, name: str, elements: Sequence[Any]) -> None:
        """Make a list of these elements. Spark refuses to keep an empty one."""
        if elements:
            self._lists[name].put(list(elements))
        else:
            self._lists[name].clear()

    def entry(self, name: str, key: Any) -> Any | None:
        """Return the value of a key of a map, or None."""
        return self._maps[name].getValue(key)

    def entries(self, name: str) -> Iterable[tuple[Any, Any]]:
        """Return the keys of a map and their values."""
        return self._maps[name].iterator()

    def put_entry(self, name: str, key: Any, value: Any | None) -> None:
        """Keep a value under a key of a map, or nothing."""
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
        """Return the moments that are asked for."""
        return list(self._handle.listTimers())

    def add_timer(self, at_ms: int) -> None:
        """Ask for a moment."""
        self._handle.registerTimer(at_ms)

    def cancel_timer(self, at_ms: int) -> None:
        """Ask for a moment no longer."""
        self._handle.deleteTimer(at_ms)


def _kept(kind: Kind) -> StructType:
    return kind.kept if isinstance(kind, Record) else StructType([StructField("value", kind.spark)])


def _over_batches(
    processor: KeyedState[Any, Any], key: Sequence[str], now_ms: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark calls once per partition, whose rows are sorted by key and time."""
    out = type(processor).shape.out

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(out.spark, timezone="UTC")
        for of, same in groupby(_rows(batches), key=lambda row: tuple(row[name] for name in key)):
            found = [
                out.write(each, "A row of the result", named=True)
                for each in replayed(processor, Row(*key)(*of), same, now_ms)
            ]
            if found:
                yield pa.RecordBatch.from_pylist(found, schema=schema)

    return run


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        named = Row(*batch.schema.names)
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield named(*values)


def _travel(processor: KeyedState[Any, Any]) -> None:
    """Send the classes of a project's files to the workers by value: they cannot import what lies beside a script."""
    home = sys.modules[type(processor).__module__]
    if "." in home.__name__ or not getattr(home, "__file__", None):
        return
    folder = Path(str(home.__file__)).parent
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." not in name and name != "__main__" and file is not None and Path(file).parent == folder:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
