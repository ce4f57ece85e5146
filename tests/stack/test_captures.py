"""Changes of real databases through a real Kafka Connect: killed, stopped, and cut off from their log."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest
from capture_topics import changes

from headrace.clients import mysql
from headrace.clients.capture_guard import Captured, look, read_slot
from headrace.clients.capture_wait import await_position
from headrace.clients.captures import Worker, begin, forget, messages
from headrace.clients.catalogue import position_now
from headrace.clients.connect import ConnectClient
from headrace.clients.postgres import address
from headrace.clients.postgres import connect as open_postgres
from headrace.errors import DataError, HeadraceError
from headrace.flow.capture import Capture
from headrace.flow.flow import Flow
from headrace.flow.levers import Every
from headrace.flow.target import Database, KafkaConnect, Target
from headrace.operate.run import Application
from headrace.patterns.cdc.flows import CdcSettings, mirror
from headrace.runtime.events import BatchCommitted, Event, FlowFailed
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


def run(where: Database, *statements: str) -> None:
    with open_postgres(where) as link:
        for statement in statements:
            link.execute(statement)


def pid_of(home, part: str) -> int:  # type: ignore[no-untyped-def]
    return next(each.pid for each in LocalStack(home).ps() if each.name == part and each.pid)


def moved(home, source: Database) -> Database:  # type: ignore[no-untyped-def]
    """Stop Postgres, and start it while somebody else has its port."""
    stack = LocalStack(home)
    stack.down(parts=["postgres"])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", address(source).port))
        taken.listen()
        stack.up(("postgres",))
    elsewhere = database(stack.place("postgres"))
    assert elsewhere.url != source.url
    return elsewhere


def captured(folder: Path, broker, source: Database, worker: Worker) -> Target:  # type: ignore[no-untyped-def]
    return Target(
        "cdc",
        lake=str(folder / "lake"),
        checkpoints=str(folder / "checkpoints"),
        kafka={"bootstrap.servers": broker.bootstrap},
        databases={"shop": source},
        connect=KafkaConnect(worker.url),
    )


def settings(capture: Capture) -> CdcSettings:
    return CdcSettings(capture, path="shop", trigger=Every("1 second"))


class Running:
    """A flow that runs beside the test, and what is heard of it."""

    def __init__(self, spark: SparkSession, target: Target, flow: Flow) -> None:
        self.target, self.flow = target, flow
        self.events: list[Event] = []
        self._news = threading.Condition()
        self._application = Application(spark, target, [flow])
        self._application.bus.subscribe(self._hear)
        self._ended: HeadraceError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def heard(self, kind: type[Event], seconds: float = 60.0) -> None:
        """Return when an event of a kind has come."""
        with self._news:
            assert self._news.wait_for(lambda: any(isinstance(each, kind) for each in self.events), seconds)

    def end(self, seconds: float = 60.0) -> HeadraceError | None:
        """Wait until the flow has ended by itself; return what it ended with."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the flow runs on"
        return self._ended

    def _run(self) -> None:
        self._ended = self._application.run()[self.flow.name].error

    def _hear(self, event: Event) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()


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


def looked_at(capture: Capture, where: Database, worker: Worker, seconds: float = 60.0) -> Captured:
    """Ask the guard until what is transient has passed."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return look(capture, where, ConnectClient(worker.url))
        except HeadraceError as error:
            if not error.code.startswith("HR-6") or time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def test_changes_survive_a_kill_of_connect_and_of_postgres_and_a_lost_slot_is_told(
    broker, source: Database, worker: Worker, spark: SparkSession, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    capture = Capture("shop", r"sold\..*", prefix="sold", heartbeat="1 second")
    run(source, "CREATE SCHEMA sold", "CREATE TABLE sold.orders (id int PRIMARY KEY, note text)")
    run(source, "INSERT INTO sold.orders VALUES (1, 'before')")
    assert [str(table) for table in begin(capture, source, worker)] == ["sold.orders"]
    with changes(broker.bootstrap, "sold.sold.orders") as until:
        assert until(("r", 1)) == [("r", 1)]
        run(source, "INSERT INTO sold.orders VALUES (2, 'after')")
        until(("c", 2))

        # A table that is made later is there from its first row.
        run(source, "CREATE TABLE sold.later (id int PRIMARY KEY)", "INSERT INTO sold.later VALUES (7)")
        with changes(broker.bootstrap, "sold.sold.later") as later:
            assert later(("c", 7)) == [("c", 7)]

        # Kafka Connect is killed: what happened meanwhile comes, and nothing is left out.
        killed = psutil.Process(pid_of(broker.home, "connect"))
        killed.kill()
        killed.wait(timeout=30)
        run(source, "INSERT INTO sold.orders VALUES (3, 'meanwhile')", "DELETE FROM sold.orders WHERE id = 1")
        LocalStack(broker.home).up(("connect",))
        assert {("r", 1), ("c", 2), ("c", 3), ("d", 1)} == set(until(("c", 3), ("d", 1)))

        # Postgres is stopped as by `pg_ctl -m immediate`, and comes back.
        stopped = psutil.Process(pid_of(broker.home, "postgres"))
        os.kill(stopped.pid, signal.SIGQUIT)
        stopped.wait(timeout=30)
        LocalStack(broker.home).up(("postgres",))
        # A message of the log is no change: it is counted, and passed over.
        run(source, "SELECT pg_logical_emit_message(true, 'audit', 'who did it')")
        run(source, "INSERT INTO sold.orders VALUES (4, 'again')")
        looked_at(capture, source, worker)
        until(("c", 4))
        target = Target("t", lake="", checkpoints="", kafka={"bootstrap.servers": broker.bootstrap})
        assert messages(capture, target) == 1
        seen = looked_at(capture, source, worker)
        assert seen.position is not None
        assert seen.position <= position_now(source)
        assert not seen.in_snapshot
        assert seen.retained_bytes is not None

        # It is stopped once more and comes back at another address: beginning again tells the connector.
        source = moved(broker.home, source)
        begin(capture, source, worker)
        run(source, "INSERT INTO sold.orders VALUES (5, 'elsewhere')")
        until(("c", 5))

        # Beginning again changes nothing. The slot is dropped: told, by the guard and at the next start, never jumped.
        begin(capture, source, worker)
        running = Running(spark, captured(tmp_path, broker, source, worker), mirror(settings(capture)))
        running.heard(BatchCommitted)
        _drop_slot(source, capture)
        run(source, "INSERT INTO sold.orders VALUES (6, 'in the gap')")
        # A flow that runs, and to which nothing comes, ends with it. So does one that is started.
        ends_at_the_gap(running)
        ends_at_the_gap(Running(spark, running.target, running.flow))
        refused("HR-522", lambda: look(capture, source, ConnectClient(worker.url)))
        refused("HR-522", lambda: begin(capture, source, worker))

        # Forgotten and begun anew, a snapshot follows, with everything that is in the table.
        forget(capture, source, worker)
        assert read_slot(capture, source) is None
        begin(capture, source, worker)
        assert ("c", 6) not in until(("r", 2), ("r", 3), ("r", 4), ("r", 5), ("r", 6))
    forget(capture, source, worker)


def _drop_slot(where: Database, capture: Capture) -> None:
    """Drop a slot that a connector holds: its connection is ended until the slot is free for a moment."""
    with open_postgres(where) as link:
        for _ in range(200):
            link.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s AND active",
                (capture.slot,),
            )
            try:
                link.execute("SELECT pg_drop_replication_slot(%s)", (capture.slot,))
                return
            except psycopg.Error:
                time.sleep(0.02)
    pytest.fail("the slot was never free")


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
    # The position is saved a moment after the changes are there.
    await_position(capture, mariadb, ConnectClient(worker.url), position_now(mariadb))
    seen = looked_at(capture, mariadb, worker)
    assert seen.position is not None
    assert seen.position <= position_now(mariadb)
    forget(capture, mariadb, worker)
