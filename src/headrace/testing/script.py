"""The items of a script: what happens to a flow in a rehearsal, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from headrace.errors import FlowError
from headrace.flow.flow import SINGLE_INPUT

# A record as a script writes it: a row, or for an input of bytes also the bytes, their text, or None for a tombstone.
Value = Mapping[str, object] | str | bytes | None


@dataclass(frozen=True)
class Keyed:
    """A record with a key of its own. Records without one have no key."""

    key: str
    value: Value


class Arrive:
    """One batch: records that arrive together.

    `Arrive({"id": 1}, {"id": 2})` for a flow with one input, `Arrive(orders=[...], payments=[...])` by name for a flow
    with several; an input that is not named gets nothing. A mapping is sent as JSON to an input of bytes, with times in
    ISO 8601; a text or bytes are sent as they are, so that a test can send what is not JSON.
    """

    def __init__(self, *records: Value | Keyed, **inputs: Sequence[Value | Keyed]) -> None:
        if records and inputs:
            raise FlowError(
                "A batch of a script has records with and without the name of an input.",
                why="Arrive(...) takes records for the only input, or lists of records by name.",
                state="Nothing was run.",
                remedy="Name the input of every record: Arrive(orders=[...], payments=[...]).",
                code="HR-220",
            )
        self.records: Mapping[str, Sequence[Value | Keyed]] = inputs or {SINGLE_INPUT: records}

    def __repr__(self) -> str:
        return f"Arrive({', '.join(f'{name}: {len(rows)}' for name, rows in self.records.items())})"


class Point(StrEnum):
    """Where a driver dies, relative to the batch before the crash in the script."""

    BEFORE_SINK = "before the sink"
    """The batch is planned, and nothing of it is written."""
    IN_SINK = "in the sink"
    """The sink has begun, and the rows of the batch come to an end in the middle."""
    AFTER_SINK = "after the sink"
    """The sink has the batch, and Spark does not know it."""
    AFTER_COMMIT = "after the commit"
    """The batch is done; the next one is not begun."""


@dataclass(frozen=True)
class Crash:
    """The driver dies at a point of the batch before, and is started again."""

    at: Point | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", Point(self.at))


@dataclass(frozen=True)
class Clock:
    """From here on the broker's clock shows this time, with a zone, and each record that arrives is stamped with it.

    Without it each record is stamped with its own event time, so that none of them comes from the future.
    """

    at: datetime


@dataclass(frozen=True)
class EndOfInput:
    """Nothing more will come: every window closes. At the end of a script, for flows with a watermark."""


Item = Arrive | Crash | Clock | EndOfInput


@dataclass(frozen=True)
class Batch:
    """One batch of a script as it is staged: its records, the clock, and the crashes that it suffers in turn."""

    records: Mapping[str, Sequence[Value | Keyed]]
    clock: datetime | None
    crashes: tuple[Point, ...]
    last: bool = False


def batches(script: Sequence[Item]) -> list[Batch]:
    """Return the batches of a script. Raises HR-220 for a script that cannot be played."""
    found: list[Batch] = []
    clock: datetime | None = None
    for number, item in enumerate(script, 1):
        if found and found[-1].last and not isinstance(item, Crash):
            raise _unplayable(number, item, "Nothing arrives after the end of the input.")
        match item:
            case Arrive():
                found.append(Batch(item.records, clock, ()))
            case EndOfInput():
                found.append(Batch({}, clock, (), last=True))
            case Clock():
                if item.at.tzinfo is None:
                    raise _unplayable(number, item, "A time without a zone is a different moment on every machine.")
                clock = item.at
            case Crash():
                if not found:
                    raise _unplayable(number, item, "A crash happens to the batch before it, and there is none.")
                found[-1] = Batch(found[-1].records, clock, (*found[-1].crashes, Point(item.at)), found[-1].last)
    return found


def _unplayable(number: int, item: Item, why: str) -> FlowError:
    return FlowError(
        f"Item {number} of the script, {item!r}, cannot be played.",
        why=why,
        state="Nothing was run.",
        remedy="Correct the script.",
        code="HR-220",
    )
