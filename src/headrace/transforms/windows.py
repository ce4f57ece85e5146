"""Event-time windows as columns for `groupBy`, and an exact distinct count.

    rides.groupBy(tumbling("event_time", "5 minutes"), "city").agg(exact_distinct("driver_id").alias("drivers"))

| window               | a row is in                          | ends                                                  |
|----------------------|--------------------------------------|-------------------------------------------------------|
| `tumbling(t, size)`  | one window                           | at multiples of `size`                                |
| `sliding(t, size, every=...)` | `size / every` windows      | one of them after each `every`                        |
| `sessions(t, gap=...)`| one window, together with its neighbours | after `gap` without a row                         |

They are Spark's own windows, but their lengths are parsed when the transform is declared: a typo fails at its own line
and not in the query. All three are named `window`, so `window_bounds` works with each of them. A batch and a stream
give the same rows, except for late rows, which only a stream drops.
"""

from pyspark.sql import Column, functions as F

from headrace.errors import FlowError
from headrace.flow.duration import Duration

WINDOW = "window"


def tumbling(column: str | Column, size: str, *, offset: str = "0s") -> Column:
    """Return consecutive windows without gaps: from 12:00 to 12:05, from 12:05 to 12:10.

    They are aligned to midnight UTC. `offset` shifts them: for days from 06:00, `tumbling(t, "1 day", offset="6h")`.
    """
    length = _length("size", size)
    return _window(column, length, length, _offset(offset, length))


def sliding(column: str | Column, size: str, *, every: str, offset: str = "0s") -> Column:
    """Return overlapping windows: ten minutes every two minutes are five windows per row, and five times the state."""
    length, step = _length("size", size), _length("every", every)
    if step > length:
        raise _no_window(
            f"A window of {size} every {every} leaves gaps.", "A row between two windows would be in none.",
            "Set every to at most the size.",
        )  # fmt: skip
    return _window(column, length, step, _offset(offset, step))


def sessions(column: str | Column, *, gap: str | Column) -> Column:
    """Return session windows, which start with a row and end after `gap` without another row.

    A row exactly `gap` after the last one belongs to the same window. `gap` may be a column, so that it varies by row.
    """
    length = gap if isinstance(gap, Column) else _length("gap", gap).as_interval()
    return F.session_window(_column(column), length).alias(WINDOW)


def window_bounds() -> tuple[Column, Column]:
    """Return the columns `window_start` and `window_end` of a result that is grouped by one of these windows."""
    return F.col(f"{WINDOW}.start").alias("window_start"), F.col(f"{WINDOW}.end").alias("window_end")


def exact_distinct(column: str | Column) -> Column:
    """Count distinct values exactly, also in a stream, where Spark does not support `countDistinct`. Ignores nulls.

    The state of a group contains all of its values: fine for the drivers of a city, too much for the visitors of a
    site. There use `approx_count_distinct`, a sketch of fixed size. Deduplicating first stores every value as a key,
    which needed thirteen times the state.
    """
    return F.size(F.collect_set(column)).cast("long")


def _window(column: str | Column, size: Duration, every: Duration, offset: Duration) -> Column:
    return F.window(_column(column), size.as_interval(), every.as_interval(), offset.as_interval()).alias(WINDOW)


def _column(column: str | Column) -> Column:
    return F.col(column) if isinstance(column, str) else column


def _length(name: str, text: str) -> Duration:
    length = Duration.parse(text)
    if length.ms == 0:
        raise _no_window(
            f"A window with {name} '{text}' has no length.",
            "No row could be in it.",
            f"Set {name} to a length of time.",
        )
    return length


def _offset(text: str, step: Duration) -> Duration:
    offset = Duration.parse(text)
    if offset >= step:
        raise _no_window(
            f"Windows cannot be moved by '{text}'.",
            f"They start every {step.seconds:g} seconds, so an offset has to be shorter.",
            "Set offset to the rest of its division by that length.",
        )
    return offset


def _no_window(what: str, why: str, remedy: str) -> FlowError:
    return FlowError(what, why=why, remedy=remedy, code="HR-230")
