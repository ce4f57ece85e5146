"""List the quarantine of a flow: rows by reason, how many were sent again, and the newest rows."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass

from pyspark.sql import SparkSession

from headrace.audit.flow_audit import quarantine_table
from headrace.flow.target import Target
from headrace.operate.ledgers import LedgerRow, read_ledger

# The columns that identify a record, also after its topic was deleted and created again.
IDENTITY = ("topic", "partition", "offset", "kafka_time")

# The number of characters of a payload to show: two lines of a terminal.
_MAX_PAYLOAD_SHOWN = 160


def redriven_table(target: Target, flow: str) -> str:
    """Return the location of the rows that were sent again."""
    return target.table(f"_headrace/{flow}/redriven")


@dataclass(frozen=True)
class ReasonCount:
    """The number of quarantined rows for a reason, and how many of them were sent again."""

    reason: str
    rows: int
    redriven: int


@dataclass(frozen=True)
class QuarantinedRow:
    """A row of the quarantine, with a printable payload."""

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
    examples: tuple[QuarantinedRow, ...]

    def as_dict(self) -> dict[str, object]:
        """The list as `--json` prints it."""
        rows, redriven = sum(count.rows for count in self.reasons), sum(count.redriven for count in self.reasons)
        return asdict(self) | {"rows": rows, "redriven": redriven}


def list_quarantine(
    flow: str, target: Target, reason: str | None, limit: int, session: Callable[[], SparkSession]
) -> QuarantineList:
    """Read the quarantine of a flow, which may be running. Changes nothing."""
    location = quarantine_table(target, flow)
    rows = [row for row in read_ledger(location, ("reason", *IDENTITY), session) if reason in (None, row["reason"])]
    sent = {_identity(row) for row in read_ledger(redriven_table(target, flow), IDENTITY, session)}
    counts = Counter(str(row["reason"]) for row in rows)
    redriven = Counter(str(row["reason"]) for row in rows if _identity(row) in sent)
    columns = ("reason", "input", *IDENTITY, "batch_id", "key", "value", "recorded_at")
    # With a `reason` more rows are read: it may be a rare one.
    row_limit = limit if reason is None else max(limit, len(rows))
    newest = (
        read_ledger(location, columns, session, newest_by=("recorded_at", "offset"), limit=row_limit) if limit else []
    )
    examples = [row for row in newest if reason in (None, row["reason"])][:limit]
    return QuarantineList(
        flow,
        tuple(ReasonCount(name, number, redriven[name]) for name, number in counts.most_common()),
        tuple(_example(row) for row in examples),
    )


def printable(payload: bytes | None) -> str | None:
    """Return the beginning of a payload as a line without control characters."""
    if payload is None:
        return None
    text = payload[: 4 * _MAX_PAYLOAD_SHOWN].decode("utf-8", "backslashreplace")
    # Control characters and bidirectional marks are not printable.
    escaped = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
    return (
        escaped
        if len(escaped) <= _MAX_PAYLOAD_SHOWN and len(payload) <= 4 * _MAX_PAYLOAD_SHOWN
        else f"{escaped[:_MAX_PAYLOAD_SHOWN]}…"
    )


def _example(row: LedgerRow) -> QuarantinedRow:
    key, value = row["key"], row["value"]
    return QuarantinedRow(
        reason=str(row["reason"]),
        input=str(row["input"]),
        place=f"{row['topic']}-{row['partition']}@{row['offset']}",
        kafka_time=str(row["kafka_time"]),
        batch_id=int(str(row["batch_id"])),
        key=printable(key if isinstance(key, bytes) else None),
        value=printable(value if isinstance(value, bytes) else None),
    )


def _identity(row: LedgerRow) -> tuple[object, ...]:
    return tuple(row[name] for name in IDENTITY)
