"""Start and delete a capture: set up the source database and Kafka Connect.

Starting is idempotent: it compares the current state with the declaration, and the connector resumes.
"""

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from psycopg import Connection, sql

from headrace.cdc.capture.catalogue import database_family, read_tables
from headrace.cdc.capture.connector import connector_config
from headrace.cdc.capture.declaration import Capture, TableSelection
from headrace.cdc.capture.health import check_capture, failed_connector_error
from headrace.cdc.capture.source_table import SourceTable
from headrace.cdc.capture.topics import delete_topics, old_records_error, poll_until, written_topics
from headrace.clients import mysql, postgres
from headrace.clients.kafka import list_topics
from headrace.clients.kafka_connect import ConnectClient
from headrace.clients.positions import end_offsets, first_offsets
from headrace.errors import ConfigError, DataError, ServiceUnavailable
from headrace.flow.secret import reveal_secret
from headrace.flow.target import Database, Target

# A connector starts within seconds; if its worker was killed, the old database session has to end first.
START_SECONDS = 60.0
# A worker applies a new configuration within a second or two, and reports the old state until then.
_SETTLED_SECONDS = 10.0


@dataclass(frozen=True)
class ConnectWorker:
    """The Kafka Connect worker of a capture, and what it needs to reach the broker and the database.

    | field     | meaning                                                                                        |
    |-----------|------------------------------------------------------------------------------------------------|
    | url       | of its REST interface                                                                          |
    | bootstrap | the broker, as the worker reaches it                                                           |
    | secrets   | a folder from which the worker reads passwords; each capture writes a file there               |
    | password  | instead: a reference that the worker resolves with its own provider, `${vault:shop:password}`  |
    | target    | the target whose broker has the topics; without it, the broker at `bootstrap`                  |
    """

    url: str
    bootstrap: str
    secrets: Path | None = None
    password: str | None = None
    target: Target | None = None

    @property
    def kafka_target(self) -> Target:
        """The target whose broker has the topics."""
        return self.target or Target("connect", lake="", checkpoints="", kafka={"bootstrap.servers": self.bootstrap})


def connect_worker(target: Target, database: str) -> ConnectWorker:
    """Return the Kafka Connect of a target, for captures of one of its databases. Raises HR-135 without one."""
    connect = target.connect
    if connect is None:
        raise ConfigError(
            f"Target '{target.name}' does not say where Kafka Connect is.",
            why="Kafka Connect runs the captures. With the url `local`, it must be running.",
            state="Nothing was changed.",
            remedy="Run `headrace up --with connect`, or set `connect` of the target in headrace.yml.",
            code="HR-135",
        )
    bootstrap = connect.bootstrap or reveal_secret(target.kafka.get("bootstrap.servers", ""))
    return ConnectWorker(connect.url, bootstrap, connect.secrets, connect.passwords.get(database), target)


def start_capture(capture: Capture, database: Database, worker: ConnectWorker) -> tuple[SourceTable, ...]:
    """Start a capture, and return its tables.

    1. Read the tables, and reject what cannot be captured completely (HR-520, HR-521, HR-524, HR-528).
    2. Reject a snapshot into topics that an earlier capture wrote (HR-527).
    3. Check a capture that was started before: a gap in its log is an error (HR-522).
    4. Postgres: create the publication.
    5. Create the connector in Kafka Connect, and wait until it runs.
    """
    connect = ConnectClient(worker.url)
    tables = read_tables(database, capture.selection)
    _require_change_log(capture, database)
    settings_ = _connector_settings(capture, database, worker)
    # The configuration shows whether the connector exists: a deleted one still has a state for a moment.
    current = connect.settings(capture.connector)
    before = current is not None or _can_resume(capture, connect, settings_, worker)
    same = current is not None and settings_.items() <= current.items()
    if before:
        # A connector with other settings need not run: they may be the cause of its failure, such as an old address.
        check_capture(capture, database, connect, running=same)
    if database_family(database) == "postgres":
        with postgres.session(database) as connection:
            _publish(connection, capture, tables, begun=before)
    connect.put(capture.connector, settings_)
    if before:
        connect.resume(capture.connector)
    _await_running(capture, connect, old_failures=0.0 if same else _SETTLED_SECONDS)
    return tables


def _can_resume(capture: Capture, connect: ConnectClient, settings_: Mapping[str, str], worker: ConnectWorker) -> bool:
    """Return whether a new connector would resume from the position of a deleted one, and create it, stopped.

    Kafka Connect keeps the position of a deleted connector, but returns it only for an existing one. Raises HR-527 if
    there is no position and the topics were written before.
    """
    old = written_topics(capture, worker.kafka_target)
    if not old:
        return False
    connect.put_stopped(capture.connector, settings_)
    if connect.position(capture.connector):
        return True
    connect.delete(capture.connector)
    raise old_records_error(capture, old)


def count_logical_decoding_messages(capture: Capture, target: Target) -> int:
    """Count the log messages (`m`) in the topics of a capture. They change no row and are skipped."""
    partitions = [(capture.messages, number) for number in range(list_topics(target).get(capture.messages, 0))]
    first = first_offsets(target, partitions)
    return sum(end - first[partition] for partition, end in end_offsets(target, partitions).items())


def delete_capture(
    capture: Capture, database: Database, worker: ConnectWorker, *, topics: bool = False
) -> tuple[str, ...]:
    """Delete a capture: connector, position, slot, publication, password. Idempotent.

    Tables are kept. Topics are kept unless `topics` is set. Returns the deleted topics.
    """
    connect = ConnectClient(worker.url)
    exists = connect.settings(capture.connector) is not None
    if not exists and topics:
        # The position of a deleted connector still exists, but can be deleted only for an existing connector.
        connect.put_stopped(capture.connector, _connector_settings(capture, database, worker))
    if exists or topics:
        connect.stop(capture.connector)
        poll_until(
            lambda: (status := connect.status(capture.connector)) is None or status.state == "STOPPED", START_SECONDS
        )
        connect.delete_position(capture.connector)
        connect.delete(capture.connector)
    if database_family(database) == "postgres":
        with postgres.session(database) as connection:
            _drop_slot(connection, capture)
            connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(capture.slot)))
    if worker.secrets is not None:
        _password_file(capture, worker.secrets).unlink(missing_ok=True)
    return delete_topics(capture, worker.kafka_target) if topics else ()


def _await_running(capture: Capture, connect: ConnectClient, *, old_failures: float) -> None:
    """Return when the connector runs. A failure within `old_failures` seconds may be caused by old settings."""
    deadline = time.monotonic() + START_SECONDS
    believed = time.monotonic() + old_failures
    while time.monotonic() < deadline:
        status = connect.status(capture.connector)
        if status is not None and status.running:
            return
        if status is not None and status.state == "FAILED" and time.monotonic() >= believed:
            raise failed_connector_error(capture, status, connect)
        time.sleep(0.2)  # Kafka Connect gives no event when a connector runs
    raise ServiceUnavailable(
        f"The connector '{capture.connector}' does not start.",
        why=f"Kafka Connect accepted it, but it does not run after {START_SECONDS:.0f} s.",
        state="Nothing was lost: the source keeps its log.",
        remedy="Look at the log of Kafka Connect; `headrace ps` names the local one.",
        code="HR-619",
    )


def _connector_settings(capture: Capture, database: Database, worker: ConnectWorker) -> dict[str, str]:
    return connector_config(
        capture, database, password=_password_reference(capture, database, worker), bootstrap=worker.bootstrap
    )


def _password_reference(capture: Capture, database: Database, worker: ConnectWorker) -> str:
    """Write the password to the file that the worker reads, and return the reference to it."""
    if worker.password is not None or worker.secrets is None or database.password is None:
        return worker.password or ""
    path = _password_file(capture, worker.secrets)
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    # The escapes of Java's properties files.
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in database.password.reveal())
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"password={escaped}\n")
    fresh.replace(path)
    return f"${{file:{path.resolve()}:password}}"


def _password_file(capture: Capture, folder: Path) -> Path:
    return folder / f"{capture.connector}.properties"


def _require_change_log(capture: Capture, database: Database) -> None:
    """Raise HR-521, HR-524 or HR-528 unless the source logs all changes of the tables."""
    if database_family(database) == "mysql":
        _require_binlog(database)
        return
    with postgres.session(database) as connection:
        row = connection.execute("SELECT current_setting('wal_level')").fetchone()
    if row is None or row[0] != "logical":
        raise _log_not_enabled_error(f"Its wal_level is {row[0] if row else 'unknown'}", "Set `wal_level = logical`")
    _require_replica_identity(_publication_tables(capture, database))


def _require_binlog(database: Database) -> None:
    with mysql.session(database) as cursor:
        cursor.execute("SELECT @@log_bin, @@binlog_format, @@binlog_row_image")
        row = cursor.fetchone()
    if row is None or (bool(row[0]), row[1], row[2]) != (True, "ROW", "FULL"):
        current = f"log_bin, binlog_format and binlog_row_image are {', '.join(map(str, row or ()))}"
        raise _log_not_enabled_error(current, "Set `log_bin`, `binlog_format = ROW` and `binlog_row_image = FULL`")
    if mysql.is_mariadb(database):
        require_binlog_position(database)


def require_binlog_position(database: Database) -> None:
    """Raise HR-528 for a MariaDB with an empty binlog: the connector fails without a position."""
    with mysql.session(database) as cursor:
        cursor.execute("SELECT @@gtid_current_pos")
        row = cursor.fetchone()
    if row is None or not row[0]:
        raise DataError(
            "The source database has written nothing to its log yet.",
            why="Its `gtid_current_pos` is empty, and the connector needs a log position to start at.",
            state="Nothing was captured, and the source was not changed.",
            remedy="Create the first table, or change a row, and start the capture again.",
            code="HR-528",
        )


def _log_not_enabled_error(why: str, remedy: str) -> DataError:
    return DataError(
        "The source database does not write a log that changes can be read from.",
        why=f"{why}.",
        state="Nothing was captured, and the source was not changed.",
        remedy=f"{remedy} on the server, and restart it.",
        code="HR-521",
    )


def _schema_of_pattern(capture: Capture) -> str | None:
    """Return the schema that a pattern names in plain letters before its dot, or None for any other pattern."""
    named = re.match(r"(\w+)\\\.", capture.selection.pattern or "")
    return named.group(1) if named and "|" not in (capture.selection.pattern or "") else None


def _publication_tables(capture: Capture, database: Database) -> tuple[SourceTable, ...]:
    """Return every table of the publication: with a pattern, it has more tables than those that match."""
    if not isinstance(capture.tables, str):
        return read_tables(database, capture.selection)
    schema = _schema_of_pattern(capture)
    return tuple(
        table for table in read_tables(database, TableSelection(pattern=".*")) if schema in (None, table.schema)
    )


def _require_replica_identity(tables: Sequence[SourceTable]) -> None:
    """Raise HR-524 for tables whose updates Postgres would reject once they are published."""
    bare = [
        str(table) for table in tables if table.identity == "nothing" or (table.identity == "default" and not table.key)
    ]
    if bare:
        raise DataError(
            f"The table {bare[0]} cannot be captured"
            + (f", nor can {len(bare) - 1} more: {', '.join(bare[1:4])}." if bare[1:] else "."),
            why="It has no primary key and no replica identity: Postgres would reject every UPDATE and DELETE of it, "
            "also by the application, as soon as its changes are published.",
            state="Nothing was captured, and the source was not changed.",
            remedy=f"Give it a primary key, or run `ALTER TABLE {bare[0]} REPLICA IDENTITY FULL` in the source; or "
            "capture a list of other tables.",
            code="HR-524",
        )


def _publish(connection: Connection, capture: Capture, tables: Sequence[SourceTable], *, begun: bool) -> None:
    """Create the publication: of tables, or of whole schemas, so that it includes later tables from their first row."""
    name = sql.Identifier(capture.slot)
    listed = connection.execute(
        "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s", (capture.slot,)
    ).fetchall()
    exists = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (capture.slot,)).fetchone()
    if exists:
        missing = {str(table) for table in tables} - {str(row[0]) for row in listed}
        if missing and begun:
            raise DataError(
                f"The capture '{capture.prefix}' runs without the table {min(missing)}.",
                why="It was started without this table. The existing rows of the table would never be captured.",
                state="Nothing was changed; the other tables are captured as before.",
                remedy="Capture the table with a separate prefix, or delete the capture and start it again.",
                code="HR-525",
            )
        if not missing:
            return
        connection.execute(sql.SQL("DROP PUBLICATION {}").format(name))
    what: sql.Composable
    if not isinstance(capture.tables, str):
        names = sql.SQL(", ").join(sql.Identifier(table.schema, table.name) for table in tables)
        what = sql.SQL("FOR TABLE ") + names
    elif schema := _schema_of_pattern(capture):
        what = sql.SQL("FOR TABLES IN SCHEMA ") + sql.Identifier(schema)
    else:
        what = sql.SQL("FOR ALL TABLES")
    # Without it Postgres 18 omits stored generated columns, and rejects updates of tables with full replica identity.
    generated = ", publish_generated_columns = stored" if connection.info.server_version >= 180_000 else ""
    how = sql.SQL(f" WITH (publish_via_partition_root = true{generated})")
    connection.execute(sql.SQL("CREATE PUBLICATION {} ").format(name) + what + how)


def _drop_slot(connection: Connection, capture: Capture) -> None:
    """Drop the slot when the server has noticed that its reader has disconnected."""
    slot = "FROM pg_replication_slots WHERE slot_name = %s"
    poll_until(
        lambda: connection.execute(f"SELECT 1 {slot} AND active", (capture.slot,)).fetchone() is None, START_SECONDS
    )
    connection.execute(f"SELECT pg_drop_replication_slot(slot_name) {slot}", (capture.slot,))
