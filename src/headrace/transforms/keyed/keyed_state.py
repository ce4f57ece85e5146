"""Custom state: what is kept per key, and what follows from rows and from time that passes.

    @dataclass
    class Visit:                                    # what is kept for one key
        began: datetime
        last: datetime
        pages: list[str]

    class Visits(KeyedState[Visit, Seen]):          # Seen: a dataclass too, one row of the result
        clock = EventTime("ts")

        def handle(self, key, rows, state, timers): ...      # rows of one key, together
        def on_timer(self, key, at, state, timers): ...      # a moment that was asked for has come

    per_key(clicks, Visits(), "user_id")            # a DataFrame, of a stream or of a batch

The class knows nothing of Spark: `headrace.testing.Drive` runs it in plain Python.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

from headrace.errors import FlowError
from headrace.flow.duration import Duration
from headrace.transforms.keyed.state import VALUE, ListOf, MapOf, Shape, Store, Timers, ValueState, moment
from headrace.transforms.keyed.state_types import Record, record, undeclarable, value_or_record

if typing.TYPE_CHECKING:
    from pyspark.sql import Row

S = TypeVar("S")
Out = TypeVar("Out")


@dataclass(frozen=True)
class EventTime:
    """Time as the rows tell it: it is where the watermark is. Rows of a call come in the order of `column`.

    A stream needs a watermark on the column. A row that is older than the watermark never reaches `handle`: Spark drops
    it, and counts it.
    """

    column: str


@dataclass(frozen=True)
class ProcessingTime:
    """Time as the driver's clock shows it when a batch starts. Results depend on when the flow runs."""


class KeyedState(Generic[S, Out]):
    """State per key, and the rows that follow from it. Subclass it with two dataclasses: what is kept, and the output.

    | attribute        | meaning                                                                                   |
    |------------------|-------------------------------------------------------------------------------------------|
    | clock            | what timers go by: `EventTime(COLUMN)`, `ProcessingTime()`, or None: there are no timers  |
    | ttl              | the value goes this long after it was written; only with `ProcessingTime`                 |
    | any other name   | `ListOf(...)` and `MapOf(...)` for what grows: `state[self.name]` reads and writes them    |

    One object serves many keys in many processes. It keeps nothing in itself: what is to be kept goes into `state`.
    """

    clock: ClassVar[EventTime | ProcessingTime | None] = None
    ttl: ClassVar[str | None] = None
    shape: ClassVar[Shape]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if all(name.startswith("__") for name in vars(cls)):
            # Nothing of its own: it is as its base, or a worker is about to put it together again, piece by piece.
            return
        named = [base for base in vars(cls).get("__orig_bases__", ()) if typing.get_origin(base) is KeyedState]
        if named:
            state, out = typing.get_args(named[0])
            cls.shape = _shape(cls, record(state, f"The state of {cls.__name__}"), record(out, "Its output"))
        elif hasattr(cls, "shape"):
            cls.shape = _shape(cls, cls.shape.state, cls.shape.out)
        elif cls.handle is not KeyedState.handle:
            raise undeclarable(
                f"{cls.__name__} does not say what it keeps and what it returns.",
                "Both are read from the class when it is declared.",
                f"Write class {cls.__name__}(KeyedState[STATE, OUTPUT]), with two dataclasses.",
            )

    def handle(self, key: Row, rows: list[Row], state: ValueState[S], timers: Timers) -> Iterable[Out]:
        """Return what follows from the rows of one key. Called once per key that a batch has rows of.

        How rows are spread over batches is chance: a call may have one row or all of them. Decide by the times in the
        rows, and use timers only for what no row will tell.
        """
        raise _lacks(self, "handle", "rows have come")

    def on_timer(self, key: Row, at: datetime, state: ValueState[S], timers: Timers) -> Iterable[Out]:
        """Return what follows from a moment that has come. Called once per moment, after the rows of a batch.

        A moment that is asked for here, and has passed already, comes with the next batch.
        """
        raise _lacks(self, "on_timer", "a moment that it asked for has come")


def _lacks(processor: KeyedState[Any, Any], method: str, event: str) -> FlowError:
    return FlowError(
        f"{type(processor).__name__} has no `{method}`, and {event}.",
        why="Only the class can say what follows from it.",
        state="The batch was not written; the flow is where it was.",
        remedy=f"Write `{method}` in the class and start the flow again.",
        code="HR-235",
    )


def called(
    processor: KeyedState[Any, Out], store: Store, key: Row, rows: list[Row] | None, at_ms: int | None = None
) -> Iterator[Out]:
    """Call `handle` with rows, or `on_timer` without, and keep the state afterwards."""
    shape = type(processor).shape
    state: ValueState[Any] = ValueState(store, shape)
    timers = Timers(store, ticking=type(processor).clock is not None)
    if rows is not None:
        yield from processor.handle(key, rows, state, timers) or ()
    else:
        assert at_ms is not None  # noqa: S101 - either rows or a moment
        yield from processor.on_timer(key, moment(at_ms), state, timers) or ()
    state.keep()


def _shape(cls: type[KeyedState[Any, Any]], state: Record, out: Record) -> Shape:
    attributes = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_") and name != "shape"}
    lists = {name: each for name, each in attributes.items() if isinstance(each, ListOf)}
    maps = {name: each for name, each in attributes.items() if isinstance(each, MapOf)}
    ttls = {f"{cls.__name__}.{name}": each.ttl for name, each in (lists | maps).items()} | {cls.__name__: cls.ttl}
    for place, ttl in ttls.items():
        if ttl is not None and not isinstance(cls.clock, ProcessingTime):
            raise undeclarable(
                f"{place} has a ttl, and its clock is {cls.clock}.",
                "Spark lets state go by processing time only, and not beside timers in event time.",
                "Set `clock = ProcessingTime()`, or clear the state in `on_timer`.",
            )
        if ttl is not None and Duration.parse(ttl).ms == 0:
            raise undeclarable(
                f"{place} has a ttl of '{ttl}'.", "Nothing would be kept.", "Set a length of time, or none."
            )
    if VALUE in lists | maps:
        raise undeclarable(
            f"{cls.__name__} calls a list or a map '{VALUE}'.", "The value itself is kept under it.", "Rename it."
        )
    if cls.clock is None and cls.on_timer is not KeyedState.on_timer:
        raise undeclarable(
            f"{cls.__name__} has `on_timer` and no clock.",
            "Without one nothing tells that a moment has come.",
            "Set `clock = EventTime(COLUMN)` or `clock = ProcessingTime()`.",
        )
    return Shape(
        state,
        out,
        {
            name: (value_or_record(each.element, f"{cls.__name__}.{name}"), _ms(each.ttl))
            for name, each in lists.items()
        },
        {
            name: (
                value_or_record(each.key, f"The key of {cls.__name__}.{name}"),
                value_or_record(each.value, f"{cls.__name__}.{name}"),
                _ms(each.ttl),
            )
            for name, each in maps.items()
        },
        _ms(cls.ttl),
    )


def _ms(text: str | None) -> int | None:
    return None if text is None else Duration.parse(text).ms
