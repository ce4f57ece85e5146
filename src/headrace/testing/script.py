"""The items of a rehearsal script: batches of records, crashes, clock changes and the end of input, in order."""

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
    """A record with a Kafka key. Other records have no key."""

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
    """The point at which the driver crashes, relative to the preceding batch in the script."""

    BEFORE_SINK = "before the sink"
    """The batch is planned, but nothing is written."""
    IN_SINK = "in the sink"
    """The sink has started to write, and the rows of the batch fail in the middle."""
    AFTER_SINK = "after the sink"
    """The sink has written the batch, but Spark has not committed it."""
    AFTER_COMMIT = "after the commit"
    """The batch is committed; the next one has not started."""


@dataclass(frozen=True)
class Crash:
    """Crash the driver at a point of the preceding batch, and restart it."""

    at: Point | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", Point(self.at))


@dataclass(frozen=True)
class Clock:
    """Set the broker's clock, with a time zone: later records get this time as their timestamp.

    Without it, each record gets its own event time as its timestamp, so that no record comes from the future.
    """

    at: datetime


@dataclass(frozen=True)
class EndOfInput:
    """The end of the input: every window closes. For flows with a watermark, at the end of a script."""


ScriptItem = Arrive | Crash | Clock | EndOfInput


@dataclass(frozen=True)
class ScriptedBatch:
    """One batch of a script: its records, the clock, and its crashes in order."""

    records: Mapping[str, Sequence[Value | Keyed]]
    clock: datetime | None
    crashes: tuple[Point, ...]
    last: bool = False


def parse_script(script: Sequence[ScriptItem]) -> list[ScriptedBatch]:
    """Return the batches of a script. Raises HR-220 for an invalid script."""
    batches: list[ScriptedBatch] = []
    clock: datetime | None = None
    for number, item in enumerate(script, 1):
        if batches and batches[-1].last and not isinstance(item, Crash):
            raise _invalid_script(number, item, "Nothing arrives after the end of the input.")
        match item:
            case Arrive():
                batches.append(ScriptedBatch(item.records, clock, ()))
            case EndOfInput():
                batches.append(ScriptedBatch({}, clock, (), last=True))
            case Clock():
                if item.at.tzinfo is None:
                    raise _invalid_script(number, item, "A time without a zone is a different moment on every machine.")
                clock = item.at
            case Crash():
                if not batches:
                    raise _invalid_script(number, item, "A crash happens to the batch before it, and there is none.")
                batches[-1] = ScriptedBatch(
                    batches[-1].records, clock, (*batches[-1].crashes, Point(item.at)), batches[-1].last
                )
    return batches


def _invalid_script(number: int, item: ScriptItem, why: str) -> FlowError:
    return FlowError(
        f"Item {number} of the script, {item!r}, cannot be run.",
        why=why,
        state="Nothing was run.",
        remedy="Correct the script.",
        code="HR-220",
    )
