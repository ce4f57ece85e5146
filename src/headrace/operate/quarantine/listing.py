"""What is in the quarantine of a flow: how many rows by reason, how many were sent again, and the newest of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from headrace.audit.flow_audit import quarantine_table
from headrace.flow.target import Target
from headrace.operate.ledgers import Row, filed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What tells a record apart, also from one at the same offset of a topic that was made again.
IDENTITY = ("topic", "partition", "offset", "kafka_time")

# How much of a payload is shown: enough to see what is wrong with it, on two lines of a terminal.
_SHOWN = 160


def redriven_table(target: Target, flow: str) -> str:
    """Return where the rows are kept that were sent again."""
    return target.table(f"_headrace/{flow}/redriven")


@dataclass(frozen=True)
class ReasonCount:
    """How many rows are in quarantine for a reason, and how many of them were sent again since."""

    reason: str
    rows: int
    redriven: int


@dataclass(frozen=True)
class Example:
    """One row of the quarantine, its payload made safe to print."""

    reason: str
    input: str
    place: str
    kafka_time: str
    batch_id: int
    key: str | None
    value: str | None


@dataclass(frozen=True)
class QuarantineList:
    """The quarantine of a flow."""

    flow: str
    reasons: tuple[ReasonCount, ...]
    examples: tuple[Example, ...]

    def as_dict(self) -> dict[str, object]:
        """The list as `--json` prints it."""
        return {
            "flow": self.flow,
            "rows": sum(each.rows for each in self.reasons),
            "redriven": sum(each.redriven for each in self.reasons),
            "reasons": [asdict(each) for each in self.reasons],
            "examples": [asdict(each) for each in self.examples],
        }


def list_quarantine(
    flow: str, target: Target, reason: str | None, limit: int, session: Callable[[], SparkSession]
) -> QuarantineList:
    """Read the quarantine of a flow. Changes nothing, and runs beside the flow."""
    place = quarantine_table(target, flow)
    rows = [row for row in filed_rows(place, ("reason", *IDENTITY), session) if reason in (None, row["reason"])]
    sent = {_identity(row) for row in filed_rows(redriven_table(target, flow), IDENTITY, session)}
    counts = Counter(str(row["reason"]) for row in rows)
    again = Counter(str(row["reason"]) for row in rows if _identity(row) in sent)
    columns = ("reason", "input", *IDENTITY, "batch_id", "key", "value", "filed_at")
    # With a reason asked for, more are looked through: it may be a rare one.
    wanted = limit if reason is None else max(limit, len(rows))
    newest = filed_rows(place, columns, session, newest_by=("filed_at", "offset"), limit=wanted) if limit else []
    shown = [row for row in newest if reason in (None, row["reason"])][:limit]
    return QuarantineList(
        flow,
        tuple(ReasonCount(name, number, again[name]) for name, number in counts.most_common()),
        tuple(_example(row) for row in shown),
    )


def safe(payload: bytes | None) -> str | None:
    """Return the beginning of a payload as one line that no terminal can take for a command."""
    if payload is None:
        return None
    text = payload[: 4 * _SHOWN].decode("utf-8", "backslashreplace")
    # Control characters, and those that change the direction of writing, are not printable.
    escaped = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return escaped if len(escaped) <= _SHOWN and len(payload) <= 4 * _SHOWN else f"{escaped[:_SHOWN]}…"


def _example(row: Row) -> Example:
    key, value = row["key"], row["value"]
    return Example(
        reason=str(row["reason"]),
        input=str(row["input"]),
        place=f"{row['topic']}-{row['partition']}@{row['offset']}",
        kafka_time=str(row["kafka_time"]),
        batch_id=int(str(row["batch_id"])),
        key=safe(key if isinstance(key, bytes) else None),
        value=safe(value if isinstance(value, bytes) else None),
    )


def _identity(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in IDENTITY)
