"""Check a capture: its connector runs, and the source log still has everything that was not captured yet.

A flow that reads the topics of a capture checks it at its start and periodically. It stops at HR-522 and reports other
problems (`cdc.capture.watch`). A slot that was advanced manually is detected only until the connector saves its next
position, because the connector then continues after the gap.

| condition                                                                | error             |
|--------------------------------------------------------------------------|-------------------|
| Kafka Connect does not answer                                            | HR-613, transient |
| the connector failed for a transient cause and was restarted             | HR-614, transient |
| the connector failed permanently                                         | HR-523            |
| the connector does not exist                                             | HR-529            |
| Postgres: the slot is missing, lost, or ahead of what was captured       | HR-522            |
| binlog: the file of the saved position was removed, or ends before it    | HR-522            |
"""

import re
from dataclasses import dataclass

from headrace.cdc.capture.catalogue import binlog_position, database_family, lsn_position
from headrace.cdc.capture.declaration import Capture
from headrace.clients import mysql, postgres
from headrace.clients.kafka_connect import ConnectClient, ConnectorStatus
from headrace.errors import CaptureGap, DataError, ServiceUnavailable
from headrace.flow.target import Database

# Texts in a trace of a transient failure: a server or broker that stops, starts, or cannot be reached.
_PASSING = re.compile(
    r"Connection (?:to \S+ )?(?:refused|reset|attempt failed|timed out)|connection has been closed|I/O error|"
    r"terminating connection|starting up|shutting down|in recovery mode|SocketTimeout|EOFException|Broken pipe|"
    r"Communications link failure|Read timed out|is active for PID|DisconnectException|TimeoutException|"
    r"Database connection failed when reading|Failed to (?:start|stop) replication stream|UnknownHost",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ReplicationSlot:
    """A replication slot as the server describes it.

    `confirmed` is the position from which it would send after a reconnection; `active` is whether a client reads it.
    """

    status: str
    invalidated: str
    confirmed: int
    retained_bytes: int
    active: bool = False


@dataclass(frozen=True)
class CaptureProgress:
    """The progress of a capture.

    | field          | meaning                                                                                   |
    |----------------|-------------------------------------------------------------------------------------------|
    | position       | the saved position, as text that sorts like the log; None before the first one            |
    | in_snapshot    | whether the saved position is within the snapshot: an interruption would restart it       |
    | retained_bytes | the size of the log that the source retains for this capture; None if it is unknown       |
    | warning        | what an operator should know, or empty                                                    |
    """

    position: str | None
    in_snapshot: bool
    retained_bytes: int | None = None
    warning: str = ""


def check_capture(
    capture: Capture, database: Database, connect: ConnectClient, *, running: bool = True
) -> CaptureProgress:
    """Return the progress of a started capture, or raise as in the table above.

    Without `running`, only the log is checked, not the state of the connector.

    The slot of Postgres is read before the saved position: an inactive slot does not move, so if it was ahead, it still
    is. A binlog grows, so it is read after the saved position.
    """
    if database_family(database) == "mysql":
        saved = connect.position(capture.connector)
        with mysql.session(database) as cursor:
            cursor.execute("SHOW BINARY LOGS")
            files = [(str(row[0]), int(row[1])) for row in cursor.fetchall()]
        progress = _binlog_progress(capture, files, saved)
    else:
        slot = read_slot(capture, database)
        saved = connect.position(capture.connector)
        progress = _postgres_progress(capture, slot, saved)
    if running:
        require_running(capture, connect)
    return progress


def read_slot(capture: Capture, database: Database) -> ReplicationSlot | None:
    """Return the slot of a capture, or None if it does not exist. Columns that an older server lacks are empty."""
    with postgres.session(database) as connection:
        row = connection.execute(
            "SELECT coalesce(s.wal_status, ''), coalesce(to_jsonb(s) ->> 'invalidation_reason', ''),"
            " coalesce(s.confirmed_flush_lsn - '0/0', 0),"
            " greatest(coalesce(pg_current_wal_lsn() - s.restart_lsn, 0), 0), s.active"
            " FROM pg_replication_slots s WHERE s.slot_name = %s",
            (capture.slot,),
        ).fetchone()
    return ReplicationSlot(row[0], row[1], int(row[2]), int(row[3]), bool(row[4])) if row else None


def _postgres_progress(capture: Capture, slot: ReplicationSlot | None, saved: dict[str, object]) -> CaptureProgress:
    saved_lsn = (
        _position_number(saved, "lsn_commit") or _position_number(saved, "lsn_proc") or _position_number(saved, "lsn")
    )
    if slot is None:
        if saved_lsn is None:
            return CaptureProgress(None, in_snapshot=True)
        raise log_gap_error(
            capture, f"The replication slot {capture.slot} no longer exists, and the log after {saved_lsn} is lost"
        )
    if slot.status == "lost" or slot.invalidated:
        why = f" ({slot.invalidated})" if slot.invalidated else ""
        raise log_gap_error(
            capture, f"The server has invalidated the replication slot {capture.slot}{why} and removed its log"
        )
    newest = max(_position_number(saved, name) or 0 for name in ("lsn_commit", "lsn_proc", "lsn"))
    # Only the reader of an active slot can move it. Debezium moves it to the last record that Kafka has acknowledged,
    # which may be later than the position that Kafka Connect is saving.
    if saved_lsn is not None and not slot.active and slot.confirmed > newest and "snapshot" not in saved:
        raise log_gap_error(
            capture,
            f"The replication slot {capture.slot} is at {slot.confirmed}, but the log is captured up to {newest} only: "
            "somebody advanced the slot, or created it again",
        )
    warning = ""
    if slot.retained_bytes > capture.retained_max or slot.status == "unreserved":
        warning = (
            f"The source retains {slot.retained_bytes / 1e6:,.0f} MB of log for the slot {capture.slot}"
            + (", and may remove it at any time" if slot.status == "unreserved" else "")
            + ". Its disk fills up while the connector makes no progress."
        )
    position = lsn_position(saved_lsn) if saved_lsn is not None else None
    return CaptureProgress(
        position,
        in_snapshot=saved_lsn is None or "snapshot" in saved,
        retained_bytes=slot.retained_bytes,
        warning=warning,
    )


def _binlog_progress(capture: Capture, files: list[tuple[str, int]], saved: dict[str, object]) -> CaptureProgress:
    file, pos = saved.get("file"), _position_number(saved, "pos") or 0
    if not isinstance(file, str):
        return CaptureProgress(None, in_snapshot=True)
    names, sizes = [name for name, _ in files], dict(files)
    if file not in names:
        raise log_gap_error(capture, f"The server has removed {file}, which was captured up to {pos} only")
    if pos > sizes[file]:
        why = f"{file} was captured up to {pos} and has {sizes[file]} bytes: the server or its log was reset"
        raise log_gap_error(capture, why)
    behind = sum(size for _, size in files[names.index(file) :]) - pos
    return CaptureProgress(binlog_position(file, pos), in_snapshot="snapshot" in saved, retained_bytes=max(behind, 0))


def require_running(capture: Capture, connect: ConnectClient) -> None:
    """Raise HR-523, HR-529 or HR-614 if the connector does not run."""
    status = connect.status(capture.connector)
    if status is None:
        raise DataError(
            f"The connector '{capture.connector}' does not exist.",
            why="Kafka Connect has no connector of this name: it, or the topics of Kafka Connect, were deleted.",
            state="Everything that reached the topics is kept. Nothing more is captured.",
            remedy="Start the capture again. It resumes if Kafka Connect still has its position.",
            code="HR-529",
        )
    if status.state == "FAILED":
        raise failed_connector_error(capture, status, connect)


def failed_connector_error(
    capture: Capture, status: ConnectorStatus, connect: ConnectClient
) -> DataError | ServiceUnavailable:
    """Return the error for a failed connector. Restarts the connector first if the cause is transient."""
    if _PASSING.search(status.trace):
        connect.restart(capture.connector)
        return ServiceUnavailable(
            f"The connector '{capture.connector}' had failed and was restarted.",
            why=f"It says: {status.cause}.",
            state="Nothing is lost: Kafka Connect has its position, and the source has its log.",
            remedy="Nothing, if the source and the broker are up again.",
            code="HR-614",
        )
    return DataError(
        f"The connector '{capture.connector}' has failed.",
        why=f"It says: {status.cause}.",
        state="Everything up to its position is in the topics. Nothing more is captured; the source keeps its log.",
        remedy="Fix the cause in the source, and restart the connector.",
        code="HR-523",
    )


def retained_log_error(capture: Capture, warning: str) -> ServiceUnavailable:
    """Return HR-616: the source retains more log for a capture than it should."""
    return ServiceUnavailable(
        f"The database '{capture.database}' retains log for capture '{capture.prefix}'.",
        why=warning,
        state="Nothing is lost yet. The server stops when its disk is full, or invalidates the slot before: then "
        "a new snapshot is needed.",
        remedy="Find out why the connector makes no progress (`headrace capture status`), or delete the capture if it "
        "is no longer needed (`headrace capture delete`). `retained_max` of the capture is the limit.",
        code="HR-616",
    )


def log_gap_error(capture: Capture, why: str) -> CaptureGap:
    """Return HR-522: the source has removed changes that were not captured."""
    return CaptureGap(
        f"Changes of the database '{capture.database}' are missing after the last captured one.",
        why=f"{why}.",
        state="Changes captured before the gap are kept. Nothing after it may be applied: rows could differ forever.",
        remedy="Take the snapshot again: stop the flows that read the capture and run `headrace capture delete FLOW "
        "--topics`; give each of them another `name` and `path`, or delete its checkpoint and its tables; then run "
        "`headrace capture start FLOW`.",
    )


def _position_number(saved: dict[str, object], name: str) -> int | None:
    value = saved.get(name)
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else None
