"""The plan of a repair of late rows, for `--json` and in lines for people."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.operate.late.summary import Window


@dataclass(frozen=True)
class UnrepairedWindow:
    """A window that is not repaired, and the reason."""

    window: Window | None
    rows: int
    why: str

    def as_dict(self) -> dict[str, object]:
        """The window as `--json` prints it."""
        return {**_as_dict(self.window), "rows": self.rows, "why": self.why}


@dataclass(frozen=True)
class ChangedRow:
    """A row that a repair changes, as JSON. Without `before` it is added, without `after` removed."""

    before: str | None
    after: str | None

    def as_dict(self) -> dict[str, object]:
        """The change as `--json` prints it."""
        return {side: json.loads(text) if text else None for side, text in vars(self).items()}


@dataclass(frozen=True)
class RepairPlan:
    """What a repair does.

    | field    | meaning                                                                                    |
    |----------|--------------------------------------------------------------------------------------------|
    | windows  | the windows to recompute, each with the number of its late rows                            |
    | left     | the windows that are not repaired, with the reason                                         |
    | up_to    | the last batch whose rows are included                                                     |
    | changed, added, removed | rows of the table                                                           |
    | examples | some of those rows, before and after                                                       |
    """

    flow: str
    place: str
    up_to: int
    windows: dict[Window, int]
    left: tuple[UnrepairedWindow, ...]
    changed: int = 0
    added: int = 0
    removed: int = 0
    examples: tuple[ChangedRow, ...] = ()

    @property
    def changes(self) -> int:
        """The number of rows of the table that change."""
        return self.changed + self.added + self.removed

    def as_dict(self) -> dict[str, object]:
        """The plan as `--json` prints it."""
        return {
            **vars(self),
            "windows": [{**_as_dict(window), "rows": rows} for window, rows in self.windows.items()],
            "left": [window.as_dict() for window in self.left],
            "examples": [row.as_dict() for row in self.examples],
        }

    def lines(self) -> Iterator[str]:
        """Describe the plan, for people."""
        if self.windows:
            late, windows = sum(self.windows.values()), len(self.windows)
            yield f"{windows} closed window(s) get {late} late row(s), from all rows up to batch {self.up_to}."
            if self.changes:
                yield f"{self.changed} row(s) of {self.place} change, {self.added} are added, {self.removed} removed."
                yield "A flow that reads this table as appends stops at the change: DeltaChangesSource reads it."
            else:
                yield f"No row changes: {self.place} already has these results. Only the mark is missing."
        for window in self.left:
            yield f"Not repaired: {_window_label(window.window)}, {window.rows} late row(s). {window.why}"


def _as_dict(window: Window | None) -> dict[str, object]:
    start, end = window or (None, None)
    return {"start": start and start.isoformat(), "end": end and end.isoformat()}


def _window_label(window: Window | None) -> str:
    return "no window" if window is None else f"{window[0]:%Y-%m-%d %H:%M:%S} to {window[1]:%H:%M:%S}"
