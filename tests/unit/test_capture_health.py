"""The settings of a capture's connector, what its traces mean, and which gaps of a log are seen."""

from __future__ import annotations

import json

import pymysql
import pytest

from headrace.cdc.capture.catalogue import lsn_position
from headrace.cdc.capture.connector import connector_config
from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.health import ReplicationSlot, _binlog_progress, _postgres_progress
from headrace.cdc.capture.lifecycle import _schema_of_pattern
from headrace.clients import mysql
from headrace.clients.kafka_connect import ConnectClient, ConnectorStatus
from headrace.errors import DataError, ServiceUnavailable
from headrace.flow.secret import Secret
from headrace.flow.target import Database

SHOP = Capture("shop", (r"public.orders",), retained_max=1000)
FINE = ReplicationSlot("reserved", "", 100, 10)


def test_the_settings_of_a_connector_contain_a_reference_and_no_password():
    database = Database("jdbc:postgresql://db/shop", "u", Secret("${env:X}", "hunter2"))
    reference = "${file:/s/shop.properties:password}"
    created = connector_config(SHOP, database, password=reference, bootstrap="b:1")
    assert created["database.password"] == reference
    assert "hunter2" not in json.dumps(created)
    assert (created["slot.name"], created["topic.prefix"]) == ("headrace_shop", "shop")
    assert created["table.include.list"] == r"public\.orders"


def test_a_comma_in_a_pattern_does_not_end_it():
    database = Database("jdbc:mariadb://db/shop", "u")
    created = connector_config(Capture("shop", r"shop\.t\d{1,2}"), database, password="", bootstrap="b:1")
    assert created["table.include.list"] == r"shop\.t\d{1\,2}"
    assert created["database.ssl.mode"] == "verify-full"


@pytest.mark.parametrize(
    ("pattern", "schema"),
    [(r"public\..*", "public"), (r"public\.a|other\.b", None), (r".*\.orders", None), (r"(a|b)\..*", None)],
)
def test_a_publication_covers_one_schema_where_the_pattern_names_one(pattern: str, schema: str | None):
    assert _schema_of_pattern(Capture("shop", pattern)) == schema


def test_a_failure_is_described_by_the_deepest_cause_with_a_message():
    trace = (
        "org.apache.kafka.connect.errors.ConnectException: It failed.\n\tat a.B.c(B.java:1)\n"
        "Caused by: io.debezium.DebeziumException: The slot is busy.\n\t... 10 more\nCaused by: java.lang.Exception\n"
    )
    assert ConnectorStatus("FAILED", 1, trace).cause == "DebeziumException: The slot is busy"


@pytest.mark.parametrize(
    ("slot", "says"),
    [
        (None, "no longer exists"),
        (ReplicationSlot("lost", "", 100, 10), "invalidated"),
        (ReplicationSlot("reserved", "idle_timeout", 100, 10), "idle_timeout"),
        (ReplicationSlot("reserved", "", 101, 10), "somebody advanced the slot"),
    ],
)
def test_a_slot_that_cannot_continue_at_its_position_is_hr_522_and_asks_for_a_snapshot(
    slot: ReplicationSlot | None, says: str
):
    with pytest.raises(DataError, match=says) as reported:
        _postgres_progress(SHOP, slot, {"lsn_commit": 100, "lsn_proc": 100, "lsn": 100})
    assert reported.value.code == "HR-522"
    assert "snapshot again" in reported.value.remedy


def test_a_slot_that_is_read_may_be_ahead_of_the_position_that_was_saved_last():
    saved: dict[str, object] = {"lsn_commit": 100, "lsn_proc": 100, "lsn": 100}
    assert _postgres_progress(
        SHOP, ReplicationSlot("reserved", "", 101, 10, active=True), saved
    ).position == lsn_position(100)


def test_a_slot_that_retains_more_log_than_its_limit_is_reported():
    saved: dict[str, object] = {"lsn_commit": 100, "lsn": 100}
    assert _postgres_progress(SHOP, FINE, saved).warning == ""
    assert "2 MB" in _postgres_progress(SHOP, ReplicationSlot("extended", "", 100, 2_000_000), saved).warning
    assert "at any time" in _postgres_progress(SHOP, ReplicationSlot("unreserved", "", 100, 10), saved).warning


def test_before_its_first_position_a_capture_is_in_its_snapshot():
    assert _postgres_progress(SHOP, None, {}).in_snapshot
    assert _binlog_progress(SHOP, [("binlog.000001", 10)], {}).in_snapshot


def test_a_binlog_that_was_removed_or_that_ends_before_the_position_is_hr_522():
    files = [("binlog.000002", 100), ("binlog.000003", 50)]
    assert _binlog_progress(SHOP, files, {"file": "binlog.000002", "pos": 40}).retained_bytes == 110
    assert _binlog_progress(SHOP, files, {"file": "binlog.000003", "pos": 50}).retained_bytes == 0
    # A log that was started again (RESET MASTER), or another server's, has a file of the same name.
    for file, pos in (("binlog.000001", 40), ("binlog.000003", 51)):
        with pytest.raises(DataError, match=file) as reported:
            _binlog_progress(SHOP, files, {"file": file, "pos": pos})
        assert reported.value.code == "HR-522"


@pytest.mark.parametrize("word", ["MASTER", "BINARY LOG"])
def test_the_place_of_a_binlog_is_asked_in_the_word_that_the_server_knows(word: str):
    class Server:
        """MySQL 8.4 does not know the old word, and nobody before it the new one."""

        def execute(self, statement: str) -> None:
            if statement != f"SHOW {word} STATUS":
                raise pymysql.ProgrammingError(1064, "You have an error in your SQL syntax")

        def fetchone(self) -> tuple[object, ...]:
            return ("binlog.000003", "50", "", "", "")

    assert mysql.binlog_position(Server()) == ("binlog.000003", 50)  # type: ignore[arg-type]


def test_a_worker_that_is_not_there_is_transient():
    with pytest.raises(ServiceUnavailable) as silent:
        ConnectClient("http://127.0.0.1:1").names()
    assert silent.value.code == "HR-613"
