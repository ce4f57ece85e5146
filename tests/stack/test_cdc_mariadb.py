"""A database with a binlog in, Delta tables out: whatever happens to rows of MariaDB, their mirrors equal them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace import AvailableNow, Every, KafkaConnect, Target
from headrace.cdc.capture.catalogue import position_now, read_tables
from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.lifecycle import connect_worker, delete_capture, start_capture
from headrace.cdc.capture.topics import await_position, await_topics
from headrace.cdc.flows import CdcSettings, mirror
from headrace.cdc.reconcile.compare import compare
from headrace.clients import mysql
from headrace.clients.kafka_connect import ConnectClient
from headrace.errors import DataError
from headrace.flow.target import Database
from headrace.operate.run import Application
from headrace.runtime.events import FlowStarted
from headrace.stack.connect import secrets_folder
from headrace.stack.local import LocalStack
from systems.capture_shop import Running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.stack]

CAPTURE = Capture("till", r"headrace\.till_.*", prefix="till", heartbeat="1 second")

PATIENCE_SECONDS = 180.0

OPENED = (
    "CREATE TABLE till_customers (id bigint unsigned PRIMARY KEY, name varchar(40), kind enum('old','new'), "
    "since timestamp(6) NULL, seen datetime(3), facts json)",
    "CREATE TABLE till_orders (shop int, id int, total decimal(12,2), picture blob, PRIMARY KEY (shop, id))",
    "CREATE TABLE till_emptied (id int PRIMARY KEY)",
    "INSERT INTO till_customers VALUES (18446744073709551615, 'Ada', 'old', '2026-01-01 00:00:00.000001', "
    "'2026-02-03 04:05:06.789', '{\"a\": 1}'), (2, 'São', NULL, NULL, NULL, NULL)",
    "INSERT INTO till_orders VALUES (1, 10, 0.10, x'00ff'), (1, 11, -9999999999.99, NULL)",
    "INSERT INTO till_emptied VALUES (1), (2)",
)
CHANGED = (
    "UPDATE till_customers SET name = 'Ada L.', kind = 'new' WHERE id = 18446744073709551615",
    "UPDATE till_customers SET id = 3 WHERE id = 2",
    "DELETE FROM till_orders WHERE id = 10",
    "INSERT INTO till_orders VALUES (2, 10, 5, NULL), (2, 11, 6, NULL)",
    "UPDATE till_orders SET total = total + 1 WHERE shop = 2",
    "INSERT INTO till_orders VALUES (1, 10, 7, NULL)",
    "TRUNCATE TABLE till_emptied",
    "INSERT INTO till_emptied VALUES (2), (3)",
    "ALTER TABLE till_orders ADD COLUMN note varchar(20)",
    "INSERT INTO till_orders VALUES (3, 1, 8, NULL, 'gift')",
    "CREATE TABLE till_items (id int PRIMARY KEY, number int)",
    "INSERT INTO till_items VALUES (100, 1), (101, 2)",
    "UPDATE till_items SET id = 102, number = 3 WHERE id = 101",
)


def test_mirrors_of_mariadb_equal_their_tables_after_changes_of_rows_keys_columns_and_tables(
    spark: SparkSession, broker: Any, connect: Any, mariadb: Database, tmp_path: Path
) -> None:
    target = Target(
        "till",
        lake=str(tmp_path / "lake"),
        checkpoints=str(tmp_path / "checkpoints"),
        kafka={"bootstrap.servers": broker.bootstrap},
        databases={"till": mariadb},
        connect=KafkaConnect(connect.url, secrets=secrets_folder(LocalStack(connect.home).files("connect"))),
    )
    worker = connect_worker(target, "till")
    flow = mirror(CdcSettings(CAPTURE, path="till", trigger=AvailableNow()))

    def mirrored(*statements: str) -> dict[str, tuple[int, object]]:
        """Run statements and the flow; return, by table, its rows and what differs from them."""
        execute(mariadb, *statements)
        tables = start_capture(CAPTURE, mariadb, worker)
        await_topics(CAPTURE, tables, target)
        await_position(CAPTURE, mariadb, ConnectClient(worker.url), position_now(mariadb))
        assert Application(spark, target, [flow]).run()[flow.name].error is None
        actual = {
            table.name: compare(spark, mariadb, table, target.table(f"till/{table.name}"))
            for table in read_tables(mariadb, CAPTURE.selection)
        }
        return {name: (item.rows, item.equal or item.as_dict()) for name, item in actual.items()}

    try:
        assert mirrored(*OPENED) == {"till_customers": (2, True), "till_emptied": (2, True), "till_orders": (2, True)}
        assert mirrored(*CHANGED) == {
            "till_customers": (2, True),
            "till_emptied": (2, True),
            "till_items": (2, True),
            "till_orders": (5, True),
        }

        # The binlog is purged before everything in it was captured. A flow that runs ends at the gap.
        running = Running(spark, target, mirror(CdcSettings(CAPTURE, path="till", trigger=Every("1 second"))))
        running.await_event(FlowStarted)
        stop(ConnectClient(worker.url))
        execute(mariadb, "INSERT INTO till_items VALUES (200, 1)", "FLUSH BINARY LOGS")
        purge(mariadb)
        ended = running.end()
        assert isinstance(ended, DataError)
        assert (ended.code, "The server has removed" in ended.why) == ("HR-522", True)
    finally:
        delete_capture(CAPTURE, mariadb, worker)


def execute(database: Database, *statements: str) -> None:
    with mysql.session(database) as cursor:
        for statement in statements:
            cursor.execute(statement)


def stop(connect: ConnectClient) -> None:
    """Stop the connector, and return when it is: Kafka Connect answers before. Until then it would read on."""
    connect.stop(CAPTURE.connector)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (status := connect.status(CAPTURE.connector)) and (status.state != "STOPPED" or status.tasks):
        assert time.monotonic() < deadline, status
        time.sleep(0.2)  # Kafka Connect gives no event when a connector has stopped


def purge(database: Database) -> None:
    """Have the server remove all of its binlog but for the newest file.

    It keeps a file that it sends to somebody, and learns that a reader has disconnected when it sends the next event.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    with mysql.session(database) as cursor:
        while len(files := binlogs(cursor)) > 1:
            assert time.monotonic() < deadline, files
            cursor.execute("PURGE BINARY LOGS TO %s", (files[-1],))


def binlogs(cursor: Any) -> list[str]:
    cursor.execute("SHOW BINARY LOGS")
    return [str(row[0]) for row in cursor.fetchall()]
