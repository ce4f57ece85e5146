"""What a repair of late rows does, as values: for `--json`, and in lines for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.operate.late.summary import Window


@dataclass(frozen=True)
class Left:
    """A window that is not repaired, and why."""

    window: Window | None
    rows: int
    why: str

    def as_dict(self) -> dict[str, object]:
        """The window as `--json` prints it."""
        return {**_as_dict(self.window), "rows": self.rows, "why": self.why}


@dataclass(frozen=True)
class Changed:
    """A row of the table that a repair changes, as JSON: without `before` it is added, without `after` removed."""

    before: str | None
    after: str | None

    def as_dict(self) -> dict[str, object]:
        """The change as `--json` prints it."""
        return {each: json.loads(text) if text else None for each, text in vars(self).items()}


@dataclass(frozen=True)
class RepairPlan:
    """What a repair does.

    | field    | meaning                                                                                    |
    |----------|--------------------------------------------------------------------------------------------|
    | windows  | the windows that are computed anew, with the number of late rows that each one gets         |
    | left     | the windows that are not, and why                                                          |
    | up_to    | the last batch whose rows are in                                                           |
    | changed, added, removed | rows of the table                                                           |
    | examples | some of those rows, before and after                                                       |
    """

    flow: str
    place: str
    up_to: int
    windows: dict[Window, int]
    left: tuple[Left, ...]
    changed: int = 0
    added: int = 0
    removed: int = 0
    examples: tuple[Changed, ...] = ()

    @property
    def changes(self) -> int:
        """How many rows of the table change."""
        return self.changed + self.added + self.removed

    def as_dict(self) -> dict[str, object]:
        """The plan as `--json` prints it."""
        return {
            **vars(self),
            "windows": [{**_as_dict(window), "rows": rows} for window, rows in self.windows.items()],
            "left": [each.as_dict() for each in self.left],
            "examples": [each.as_dict() for each in self.examples],
        }

    def lines(self) -> Iterator[str]:
        """Say what is done, for people."""
        if self.windows:
            late, windows = sum(self.windows.values()), len(self.windows)
            yield f"{windows} closed window(s) get {late} late row(s), from all rows up to batch {self.up_to}."
            if self.changes:
                yield f"{self.changed} row(s) of {self.place} change, {self.added} are added, {self.removed} removed."
                yield "A flow that reads this table as appends stops at the change: DeltaChangesSource reads it."
            else:
                yield f"No row changes: {self.place} holds those results already. Only the mark is missing."
        for left in self.left:
            yield f"Left as it is: {_named(left.window)}, {left.rows} late row(s). {left.why}"


def _as_dict(window: Window | None) -> dict[str, object]:
    start, end = window or (None, None)
    return {"start": start and start.isoformat(), "end": end and end.isoformat()}


def _named(window: Window | None) -> str:
    return "no window" if window is None else f"{window[0]:%Y-%m-%d %H:%M:%S} to {window[1]:%H:%M:%S}"
