"""Changes of real databases through a real Kafka Connect: killed, stopped, and cut off from their log."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capture_shop import Running, Shop, drop_slot, kill, looked_at, moved, run, stalled
from capture_topics import changes

from headrace.clients import mysql
from headrace.clients.capture_guard import look, read_slot
from headrace.clients.capture_wait import await_position
from headrace.clients.captures import Worker, begin, forget, messages
from headrace.clients.catalogue import position_now
from headrace.clients.connect import ConnectClient
from headrace.clients.kafka import list_topics
from headrace.errors import DataError
from headrace.flow.capture import Capture
from headrace.flow.levers import Every
from headrace.flow.target import Database
from headrace.runtime.events import FlowFailed, FlowStarted
from headrace.stack.connect import secrets
from headrace.stack.local import LocalStack
from headrace.stack.postgres import database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def worker(broker, connect) -> Worker:  # type: ignore[no-untyped-def]
    return Worker(connect.url, broker.bootstrap, secrets(LocalStack(connect.home).place("connect")))


@pytest.fixture
def source(broker) -> Database:  # type: ignore[no-untyped-def]
    """A Postgres that these tests may stop: in the home of the broker, apart from the one that others share."""
    stack = LocalStack(broker.home)
    stack.up(("postgres",))
    return database(stack.place("postgres"))


def refused(code: str, ask: Callable[[], object]) -> None:
    """Ask what has to be refused, with the way to a new snapshot."""
    with pytest.raises(DataError) as told:
        ask()
    assert told.value.code == code
    assert "`headrace capture forget FLOW --topics`" in told.value.remedy


def ends_at_the_gap(running: Running) -> None:
    ended = running.end()
    assert isinstance(ended, DataError)
    assert ended.code == "HR-522"
    assert "snapshot again" in ended.remedy
    assert [event.retry_in for event in running.events if isinstance(event, FlowFailed)] == [None]


def test_mirror_and_history_equal_their_source_after_every_fault_of_the_capture(
    broker, source: Database, worker: Worker, spark: SparkSession, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    shop = Shop(spark, broker, source, worker, tmp_path)
    capture, connect = shop.capture, ConnectClient(worker.url)

    # Kafka Connect is killed in the middle of the snapshot. Rows that it has told of are deleted before the next one.
    with stalled(source, capture, "sold.payments"), changes(broker.bootstrap, "sold.sold.orders") as until:
        assert {str(table) for table in begin(capture, source, worker)} == {"sold.orders", "sold.payments"}
        until(("r", 499))  # the last row of a table is held back until the connector knows what follows
        kill(broker.home, "connect")
    assert "sold.sold.payments" not in list_topics(shop.target)
    assert {event.error.code for event in shop.apply()} == {"HR-613"}
    run(
        source,
        "DELETE FROM sold.orders WHERE id BETWEEN 400 AND 499",
        "UPDATE sold.orders SET total = 0 WHERE id = 399",
    )
    LocalStack(broker.home).up(("connect",))
    shop.change()
    shop.require_equal()

    # It is killed while it streams.
    shop.change()
    kill(broker.home, "connect")
    shop.change()
    LocalStack(broker.home).up(("connect",))
    shop.require_equal()

    # Postgres is stopped as by `pg_ctl -m immediate`, and comes back.
    kill(broker.home, "postgres", signal.SIGQUIT)
    LocalStack(broker.home).up(("postgres",))
    shop.change()
    shop.require_equal()
    assert messages(capture, shop.target) >= 3

    # It comes back at another address, and somebody has removed the connector: it goes on where it was.
    shop.source = moved(broker.home, source)
    connect.delete(capture.connector)
    begin(capture, shop.source, worker)
    shop.change()
    shop.send_again()
    shop.require_equal()

    # The slot is dropped. A flow that runs, and to which nothing comes, ends with it; so does one that is started.
    running = Running(spark, shop.target, shop.flows(Every("1 second"))[0])
    running.heard(FlowStarted)
    drop_slot(shop.source, capture)
    shop.change()
    ends_at_the_gap(running)
    ends_at_the_gap(Running(spark, shop.target, running.flow))
    refused("HR-522", lambda: look(capture, shop.source, connect))
    refused("HR-522", lambda: begin(capture, shop.source, worker))

    # Begun anew it would hide what happened in the gap, unless the topics are new as well.
    forget(capture, shop.source, worker)
    refused("HR-527", lambda: begin(capture, shop.source, worker))
    assert connect.settings(capture.connector) is None
    assert read_slot(capture, shop.source) is None
    gone = shop.command("forget", "--topics", "--yes")["topics"]
    assert {"sold.sold.orders", "sold.sold.payments", "sold.transaction", "sold.message"} <= {*gone}
    begin(capture, shop.source, worker)
    shop.kept = "second"
    shop.change()
    shop.require_equal()
    forget(capture, shop.source, worker)


def test_a_table_without_a_key_is_refused_before_it_is_published(source: Database, worker: Worker):
    run(source, "CREATE SCHEMA bare", "CREATE TABLE bare.logs (line text)", "INSERT INTO bare.logs VALUES ('x')")
    with pytest.raises(DataError, match="REPLICA IDENTITY FULL") as told:
        begin(Capture("shop", r"bare\..*", prefix="bare"), source, worker)
    assert told.value.code == "HR-524"
    run(source, "UPDATE bare.logs SET line = 'y'")


def test_a_row_of_mariadb_goes_through(broker, mariadb: Database, worker: Worker):  # type: ignore[no-untyped-def]
    capture = Capture("shop", ("headrace.carried",), prefix="carried", heartbeat="1 second")
    with mysql.session(mariadb) as cursor:
        cursor.execute("CREATE TABLE carried (id int PRIMARY KEY, note varchar(20))")
        cursor.execute("INSERT INTO carried VALUES (1, 'before')")
        begin(capture, mariadb, worker)
        with changes(broker.bootstrap, "carried.headrace.carried") as until:
            until(("r", 1))
            cursor.execute("INSERT INTO carried VALUES (2, 'after')")
            cursor.execute("DELETE FROM carried WHERE id = 1")
            assert until(("c", 2), ("d", 1)) == [("r", 1), ("c", 2), ("d", 1)]
        # The position is saved a moment after the changes are there. Without one more it would move only when the
        # server tells that it is alive, once a minute.
        place = position_now(mariadb)
        cursor.execute("INSERT INTO carried VALUES (3, 'later')")
    await_position(capture, mariadb, ConnectClient(worker.url), place)
    seen = looked_at(capture, mariadb, worker)
    assert seen.position is not None
    assert seen.position <= position_now(mariadb)
    forget(capture, mariadb, worker)
