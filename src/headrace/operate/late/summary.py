"""How many rows of a flow came too late, how late, for which windows, and which delay would have kept them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from headrace.audit.flow_audit import late_table, unexplained_table
from headrace.flow.duration import Duration
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.operate.ledgers import Row, filed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Which parts of the late rows a longer delay is worked out for.
_SHARES = (90, 99, 100)

# Spark keeps watermarks in milliseconds and drops what is at or before one: a bound has to be past it by one.
_PAST = timedelta(milliseconds=1)

_LATE = (
    "query_id", "batch_id", "row_id", "input", "operator", "window_start", "window_end", "watermark", "event_time",
    "late_by", "filed_at",
)  # fmt: skip
_MARK = ("query_id", "window_start", "window_end", "up_to")

Window = tuple[datetime, datetime]


def repaired_table(target: Target, flow: str) -> str:
    """Return where the windows are kept that were computed anew with their late rows."""
    return target.table(f"_headrace/{flow}/repaired")


@dataclass(frozen=True)
class LateWindow:
    """A window that rows came too late for, and whether it was repaired since."""

    start: datetime
    end: datetime
    rows: int
    repaired: bool

    def as_dict(self) -> dict[str, object]:
        """The window as `--json` prints it."""
        return {"start": _iso(self.start), "end": _iso(self.end), "rows": self.rows, "repaired": self.repaired}


@dataclass(frozen=True)
class LateSummary:
    """What the late ledger of a flow says.

    | field       | meaning                                                                                      |
    |-------------|----------------------------------------------------------------------------------------------|
    | rows        | rows that came too late for something; a row that missed several windows counts once         |
    | entries     | the same, a row counted for each window that it missed                                       |
    | repaired    | rows whose windows have all been repaired since                                              |
    | by_operator | rows by what dropped them                                                                    |
    | by_batch    | rows by batch of the present checkpoint                                                      |
    | by_hour     | rows by the hour in which they were filed, shortly after they came                            |
    | late_by     | seconds behind the watermark: p50, p90, p99, max                                             |
    | delays      | the delay that would have kept 90, 99 and 100 % of the rows, per input with a watermark       |
    | unexplained | drops that Spark counted and that the ledger does not explain                                |
    """

    flow: str
    rows: int
    entries: int
    repaired: int
    by_operator: dict[str, int]
    by_batch: dict[int, int]
    by_hour: dict[str, int]
    late_by: dict[str, float]
    windows: tuple[LateWindow, ...]
    delays: dict[str, dict[str, str]]
    unexplained: tuple[Row, ...]

    def as_dict(self) -> dict[str, object]:
        """The summary as `--json` prints it."""
        windows = [window.as_dict() for window in self.windows]
        return {**vars(self), "windows": windows, "unexplained": list(self.unexplained)}


def summarise_late(
    flow_name: str, target: Target, flow: Flow | None, query_id: str | None, session: Callable[[], SparkSession]
) -> LateSummary:
    """Read the ledger of a flow. Changes nothing, and runs beside the flow. `query_id` is its present checkpoint's."""
    entries = filed_rows(late_table(target, flow_name), _LATE, session)
    marks = filed_rows(repaired_table(target, flow_name), _MARK, session)
    gaps = filed_rows(
        unexplained_table(target, flow_name), ("query_id", "batch_id", "operator", "dropped", "why"), session
    )
    done = repaired_up_to(marks)
    rows = _by_row(entries)
    first = [each[0] for each in rows]
    behind = sorted(float(str(row["late_by"])) for row in first if row["late_by"] is not None)
    return LateSummary(
        flow=flow_name,
        rows=len(rows),
        entries=len(entries),
        repaired=sum(all(is_repaired(entry, done) for entry in each) for each in rows),
        by_operator=dict(Counter(str(row["operator"] or "window") for row in first)),
        by_batch=dict(sorted(Counter(_int(row["batch_id"]) for row in first if row["query_id"] == query_id).items())),
        by_hour=dict(sorted(Counter(_hour(row["filed_at"]) for row in first).items())),
        late_by={f"p{share}": _share(behind, share) for share in (50, 90, 99)} | {"max": behind[-1]} if behind else {},
        windows=tuple(_windows(entries, done)),
        delays=_delays(flow, rows),
        unexplained=tuple(gaps),
    )


def repaired_up_to(marks: Iterable[Row]) -> dict[tuple[object, object, object], int]:
    """Return, per checkpoint and window, the last batch whose late rows a repair has put in."""
    done: dict[tuple[object, object, object], int] = {}
    for mark in marks:
        key = (mark["query_id"], mark["window_start"], mark["window_end"])
        done[key] = max(done.get(key, -1), _int(mark["up_to"]))
    return done


def is_repaired(entry: Row, done: dict[tuple[object, object, object], int]) -> bool:
    """Whether an entry of the ledger is about a window that was repaired after the row came."""
    key = (entry["query_id"], entry["window_start"], entry["window_end"])
    return _int(entry["batch_id"]) <= done.get(key, -1)


def _by_row(entries: Sequence[Row]) -> list[list[Row]]:
    """Return the entries of each row together. A ledger of an earlier version does not tell rows apart."""
    found: dict[object, list[Row]] = {}
    for number, entry in enumerate(entries):
        known = entry["row_id"] is not None
        key = (entry["query_id"], entry["batch_id"], entry["input"], entry["row_id"]) if known else number
        found.setdefault(key, []).append(entry)
    return list(found.values())


def _windows(entries: Sequence[Row], done: dict[tuple[object, object, object], int]) -> list[LateWindow]:
    rows: Counter[Window] = Counter()
    open_ones: set[Window] = set()
    for entry in entries:
        start, end = entry["window_start"], entry["window_end"]
        if isinstance(start, datetime) and isinstance(end, datetime):
            rows[start, end] += 1
            if not is_repaired(entry, done):
                open_ones.add((start, end))
    return [LateWindow(*window, rows[window], window not in open_ones) for window in sorted(rows)]


def _delays(flow: Flow | None, rows: Sequence[Sequence[Row]]) -> dict[str, dict[str, str]]:
    """Return the delays per input. With all of them longer by x, the watermark of each batch is earlier by x."""
    short = sorted(
        max(
            (_moment(entry["watermark"]) - _moment(entry["window_end"] or entry["event_time"]) + _PAST).total_seconds()
            for entry in each
        )
        for each in rows
        if all(entry["window_end"] or entry["event_time"] for entry in each)
    )
    if flow is None or not short:
        return {}
    return {
        name: {
            f"{share} %": _worded(Duration(given.watermark.duration.ms + math.ceil(_share(short, share) * 1000)))
            for share in _SHARES
        }
        for name, given in flow.named_inputs.items()
        if given.watermark is not None
    }


def _share(values: Sequence[float], share: int) -> float:
    """Return the smallest of the sorted values that so many percent of them are at or below."""
    return values[max(0, math.ceil(len(values) * share / 100) - 1)]


def _worded(duration: Duration) -> str:
    """Return a delay as a declaration writes it, in whole seconds, rounded up."""
    left, parts = math.ceil(duration.seconds), []
    for unit, size in (("hour", 3600), ("minute", 60), ("second", 1)):
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number} {unit}{'s' if number > 1 else ''}")
    return " ".join(parts) or "0 seconds"


def _moment(value: object) -> datetime:
    assert isinstance(value, datetime)  # noqa: S101 - the ledger's own column
    return value


def _int(value: object) -> int:
    assert isinstance(value, int)  # noqa: S101 - the ledger's own column
    return value


def _hour(value: object) -> str:
    return f"{_moment(value):%Y-%m-%dT%H:00Z}"


def _iso(moment: datetime) -> str:
    return moment.isoformat()
