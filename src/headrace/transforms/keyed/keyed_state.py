"""Custom state per key: handle rows and timers in plain Python.

    @dataclass
    class Visit:                                    # the state of one key
        began: datetime
        last: datetime
        pages: list[str]

    class Visits(KeyedState[Visit, Seen]):          # Seen: a dataclass too, one output row
        clock = EventTime("ts")

        def handle_rows(self, key, rows, state, timers): ...      # rows of one key, together
        def handle_timer(self, key, at, state, timers): ...      # a registered timer has fired

    per_key(clicks, Visits(), "user_id")            # a DataFrame, of a stream or of a batch

The class does not depend on Spark: `headrace.testing.KeyedStateTester` runs it in plain Python.
"""

import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

from pyspark.sql import Row

from headrace.errors import FlowError
from headrace.flow.duration import Duration
from headrace.transforms.keyed.state import (
    VALUE,
    KeyedStateStore,
    ListOf,
    MapOf,
    StateSchema,
    Timers,
    ValueState,
    from_millis,
)
from headrace.transforms.keyed.state_types import StructKind, element_kind, invalid_state, struct_kind

S = TypeVar("S")
Out = TypeVar("Out")


@dataclass(frozen=True)
class EventTime:
    """Event time: the clock is the watermark. The rows of a call are sorted by `column`.

    A stream needs a watermark on the column. Spark drops and counts rows that are older than the watermark; they never
    reach `handle_rows`.
    """

    column: str


@dataclass(frozen=True)
class ProcessingTime:
    """Processing time: the driver's clock at the start of the batch. Results depend on when the flow runs."""


class KeyedState(Generic[S, Out]):
    """Base class for custom state. Subclass it with two dataclasses: the state of a key, and the output.

    | attribute        | meaning                                                                                   |
    |------------------|-------------------------------------------------------------------------------------------|
    | clock            | the clock of timers: `EventTime(COLUMN)`, `ProcessingTime()`, or None for no timers       |
    | ttl              | the value expires this long after it was written; only with `ProcessingTime`              |
    | any other name   | `ListOf(...)` and `MapOf(...)` declare list and map states, used as `state[self.name]`    |

    One object serves many keys in many processes. Do not store anything in the object itself; use `state`.
    """

    clock: ClassVar[EventTime | ProcessingTime | None] = None
    ttl: ClassVar[str | None] = None
    shape: ClassVar[StateSchema]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if all(name.startswith("__") for name in vars(cls)):
            # Nothing declared here: the class is like its base, or a worker is unpickling it attribute by attribute.
            return
        named = [base for base in vars(cls).get("__orig_bases__", ()) if typing.get_origin(base) is KeyedState]
        if named:
            state, out = typing.get_args(named[0])
            cls.shape = _schema(cls, struct_kind(state, f"The state of {cls.__name__}"), struct_kind(out, "Its output"))
        elif hasattr(cls, "shape"):
            cls.shape = _schema(cls, cls.shape.state, cls.shape.out)
        elif cls.handle_rows is not KeyedState.handle_rows:
            raise invalid_state(
                f"{cls.__name__} does not say what it keeps and what it returns.",
                "Both are read from the class when it is declared.",
                f"Write class {cls.__name__}(KeyedState[STATE, OUTPUT]), with two dataclasses.",
            )

    def handle_rows(self, key: Row, rows: list[Row], state: ValueState[S], timers: Timers) -> Iterable[Out]:
        """Process the rows of one key and return output rows. Called once per key in a batch.

        The split of rows into batches is arbitrary: a call may get one row or all of them. Decide by the times in the
        rows, and use timers only to detect the absence of rows.
        """
        raise _missing_method(self, "handle_rows", "rows have come")

    def handle_timer(self, key: Row, at: datetime, state: ValueState[S], timers: Timers) -> Iterable[Out]:
        """Process a timer that has fired and return output rows. Called once per timer, after the rows of a batch.

        A timer that is registered here for a past time fires in the next batch.
        """
        raise _missing_method(self, "handle_timer", "a timer expires")


def _missing_method(processor: KeyedState[Any, Any], method: str, event: str) -> FlowError:
    return FlowError(
        f"{type(processor).__name__} has no `{method}`, and {event}.",
        why="Only the class can say what follows from it.",
        state="The batch was not written; the flow is where it was.",
        remedy=f"Write `{method}` in the class and start the flow again.",
        code="HR-235",
    )


def call_processor(
    processor: KeyedState[Any, Out], store: KeyedStateStore, key: Row, rows: list[Row] | None, at_ms: int | None = None
) -> Iterator[Out]:
    """Call `handle_rows` with rows, or `handle_timer` without, then store the state."""
    shape = type(processor).shape
    state: ValueState[Any] = ValueState(store, shape)
    timers = Timers(store, has_clock=type(processor).clock is not None)
    if rows is not None:
        yield from processor.handle_rows(key, rows, state, timers) or ()
    else:
        assert at_ms is not None  # noqa: S101 - either rows or a moment
        yield from processor.handle_timer(key, from_millis(at_ms), state, timers) or ()
    state.write_back()


def _schema(cls: type[KeyedState[Any, Any]], state: StructKind, out: StructKind) -> StateSchema:
    attributes = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_") and name != "shape"}
    lists = {name: declared for name, declared in attributes.items() if isinstance(declared, ListOf)}
    maps = {name: declared for name, declared in attributes.items() if isinstance(declared, MapOf)}
    ttls = {f"{cls.__name__}.{name}": declared.ttl for name, declared in (lists | maps).items()} | {
        cls.__name__: cls.ttl
    }
    for place, ttl in ttls.items():
        if ttl is not None and not isinstance(cls.clock, ProcessingTime):
            raise invalid_state(
                f"{place} has a ttl, and its clock is {cls.clock}.",
                "Spark expires state by processing time only, and not together with event-time timers.",
                "Set `clock = ProcessingTime()`, or clear the state in `handle_timer`.",
            )
        if ttl is not None and Duration.parse(ttl).ms == 0:
            raise invalid_state(
                f"{place} has a ttl of '{ttl}'.", "Nothing would be stored.", "Set a length of time, or none."
            )
    if VALUE in lists | maps:
        raise invalid_state(
            f"{cls.__name__} calls a list or a map '{VALUE}'.", "The value state has this name.", "Rename it."
        )
    if cls.clock is None and cls.handle_timer is not KeyedState.handle_timer:
        raise invalid_state(
            f"{cls.__name__} has `handle_timer` and no clock.",
            "Without a clock no timer can fire.",
            "Set `clock = EventTime(COLUMN)` or `clock = ProcessingTime()`.",
        )
    return StateSchema(
        state,
        out,
        {
            name: (element_kind(declared.element, f"{cls.__name__}.{name}"), _ms(declared.ttl))
            for name, declared in lists.items()
        },
        {
            name: (
                element_kind(declared.key, f"The key of {cls.__name__}.{name}"),
                element_kind(declared.value, f"{cls.__name__}.{name}"),
                _ms(declared.ttl),
            )
            for name, declared in maps.items()
        },
        _ms(cls.ttl),
    )


def _ms(text: str | None) -> int | None:
    return None if text is None else Duration.parse(text).ms
