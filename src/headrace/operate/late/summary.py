"""Summarise the late rows of a flow: number, delay, windows, and the watermark delay that would have included them."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import SparkSession

from headrace.audit.flow_audit import late_table, unexplained_table
from headrace.flow.duration import Duration
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.operate.ledgers import LedgerRow, read_ledger

# The percentages of late rows for which a longer delay is suggested.
_SHARES = (90, 99, 100)

# Watermarks are in milliseconds and include their bound: a row has to be at least 1 ms after it.
_ONE_MILLISECOND = timedelta(milliseconds=1)

_LATE_COLUMNS = (
    "query_id", "batch_id", "row_id", "input", "operator", "window_start", "window_end", "watermark", "event_time",
    "late_by", "recorded_at",
)  # fmt: skip
_REPAIRED_COLUMNS = ("query_id", "window_start", "window_end", "up_to")

Window = tuple[datetime, datetime]


def repaired_table(target: Target, flow: str) -> str:
    """Return the location of the marks of repaired windows."""
    return target.table(f"_headrace/{flow}/repaired")


@dataclass(frozen=True)
class LateWindow:
    """A window with late rows, and whether it was repaired."""

    start: datetime
    end: datetime
    rows: int
    repaired: bool

    def as_dict(self) -> dict[str, object]:
        """The window as `--json` prints it."""
        return {**vars(self), "start": self.start.isoformat(), "end": self.end.isoformat()}


@dataclass(frozen=True)
class LateSummary:
    """The summary of the late ledger of a flow.

    | field       | meaning                                                                                      |
    |-------------|----------------------------------------------------------------------------------------------|
    | rows        | late rows; a row that missed several windows counts once                                     |
    | entries     | late rows, counted once per missed window                                                    |
    | repaired    | rows whose windows have all been repaired since                                              |
    | by_operator | rows by the operator that dropped them                                                       |
    | by_batch    | rows by batch of the present checkpoint                                                      |
    | by_hour     | rows by the hour in which they were recorded, shortly after they came                         |
    | late_by     | seconds behind the watermark: p50, p90, p99, max                                             |
    | delays      | the delay that would have included 90, 99 and 100 % of the rows, per input with a watermark   |
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
    unexplained: tuple[LedgerRow, ...]

    def as_dict(self) -> dict[str, object]:
        """The summary as `--json` prints it."""
        windows = [window.as_dict() for window in self.windows]
        return {**vars(self), "windows": windows, "unexplained": list(self.unexplained)}


def summarise_late(
    flow_name: str, target: Target, flow: Flow | None, query_id: str | None, session: Callable[[], SparkSession]
) -> LateSummary:
    """Read the ledger of a flow, which may be running. `query_id` is that of its present checkpoint."""
    entries = read_ledger(late_table(target, flow_name), _LATE_COLUMNS, session)
    marks = read_ledger(repaired_table(target, flow_name), _REPAIRED_COLUMNS, session)
    find_unrecorded_drops = read_ledger(
        unexplained_table(target, flow_name), ("query_id", "batch_id", "operator", "dropped", "why"), session
    )
    repaired = repaired_up_to(marks)
    rows = _by_row(entries)
    first_entries = [entries_of_row[0] for entries_of_row in rows]
    seconds_late = sorted(float(str(row["late_by"])) for row in first_entries if row["late_by"] is not None)
    return LateSummary(
        flow=flow_name,
        rows=len(rows),
        entries=len(entries),
        repaired=sum(all(is_repaired(entry, repaired) for entry in entries_of_row) for entries_of_row in rows),
        by_operator=dict(Counter(str(row["operator"] or "window") for row in first_entries)),
        by_batch=dict(
            sorted(Counter(_int(row["batch_id"]) for row in first_entries if row["query_id"] == query_id).items())
        ),
        by_hour=dict(
            sorted(Counter(f"{_datetime(row['recorded_at']):%Y-%m-%dT%H:00Z}" for row in first_entries).items())
        ),
        late_by={f"p{share}": _share(seconds_late, share) for share in (50, 90, 99)} | {"max": seconds_late[-1]}
        if seconds_late
        else {},
        windows=tuple(_windows(entries, repaired)),
        delays=_delays(flow, rows),
        unexplained=tuple(find_unrecorded_drops),
    )


def repaired_up_to(rows: Iterable[LedgerRow]) -> dict[tuple[object, object, object], int]:
    """Return, per checkpoint and window, the last batch whose late rows a repair has included."""
    repaired: dict[tuple[object, object, object], int] = {}
    for row in rows:
        key = (row["query_id"], row["window_start"], row["window_end"])
        repaired[key] = max(repaired.get(key, -1), _int(row["up_to"]))
    return repaired


def is_repaired(entry: LedgerRow, repaired: dict[tuple[object, object, object], int]) -> bool:
    """Whether an entry of the ledger belongs to a window that was repaired after the row came."""
    key = (entry["query_id"], entry["window_start"], entry["window_end"])
    return _int(entry["batch_id"]) <= repaired.get(key, -1)


def _by_row(entries: Sequence[LedgerRow]) -> list[list[LedgerRow]]:
    """Group the entries by row. Ledgers of an earlier version have no row ids."""
    by_row: dict[object, list[LedgerRow]] = {}
    for number, entry in enumerate(entries):
        has_row_id = entry["row_id"] is not None
        key = (entry["query_id"], entry["batch_id"], entry["input"], entry["row_id"]) if has_row_id else number
        by_row.setdefault(key, []).append(entry)
    return list(by_row.values())


def _windows(entries: Sequence[LedgerRow], repaired: dict[tuple[object, object, object], int]) -> list[LateWindow]:
    rows: Counter[Window] = Counter()
    unrepaired: set[Window] = set()
    for entry in entries:
        start, end = entry["window_start"], entry["window_end"]
        if isinstance(start, datetime) and isinstance(end, datetime):
            rows[start, end] += 1
            if not is_repaired(entry, repaired):
                unrepaired.add((start, end))
    return [LateWindow(*window, rows[window], window not in unrepaired) for window in sorted(rows)]


def _delays(flow: Flow | None, rows: Sequence[Sequence[LedgerRow]]) -> dict[str, dict[str, str]]:
    """Return the suggested delays per input. If all delays grow by x, every watermark is earlier by x."""
    shortfalls = sorted(
        max(
            (
                _datetime(entry["watermark"]) - _datetime(entry["window_end"] or entry["event_time"]) + _ONE_MILLISECOND
            ).total_seconds()
            for entry in row_entries
        )
        for row_entries in rows
        if all(entry["window_end"] or entry["event_time"] for entry in row_entries)
    )
    if flow is None or not shortfalls:
        return {}
    return {
        name: {
            f"{share} %": _describe_duration(
                Duration(input_.watermark.duration.ms + math.ceil(_share(shortfalls, share) * 1000))
            )
            for share in _SHARES
        }
        for name, input_ in flow.named_inputs.items()
        if input_.watermark is not None
    }


def _share(values: Sequence[float], share: int) -> float:
    """Return a percentile of sorted values."""
    return values[max(0, math.ceil(len(values) * share / 100) - 1)]


def _describe_duration(duration: Duration) -> str:
    """Return a delay in the words of a declaration, rounded up to whole seconds."""
    seconds, parts = math.ceil(duration.seconds), []
    for unit, size in (("hour", 3600), ("minute", 60), ("second", 1)):
        number, seconds = divmod(seconds, size)
        if number:
            parts.append(f"{number} {unit}{'s' if number > 1 else ''}")
    return " ".join(parts) or "0 seconds"


def _datetime(value: object) -> datetime:
    assert isinstance(value, datetime)  # noqa: S101 - the ledger's own column
    return value


def _int(value: object) -> int:
    assert isinstance(value, int)  # noqa: S101 - the ledger's own column
    return value
