"""A shop in Postgres that is captured and stored in two ways, and what can happen to the parts between."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest
from confluent_kafka import Producer
from pyspark.sql import functions as F
from typer.testing import CliRunner

from headrace.cdc.apply.history import History
from headrace.cdc.capture.catalogue import position_now, read_tables
from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.health import CaptureProgress, check_capture
from headrace.cdc.capture.lifecycle import ConnectWorker
from headrace.cdc.capture.topics import await_position
from headrace.cdc.flows import CdcSettings, mirror
from headrace.cdc.reconcile.compare import compare
from headrace.cli.main import app
from headrace.clients.kafka import read_topic
from headrace.clients.kafka_connect import ConnectClient
from headrace.clients.postgres import address, connect as open_postgres
from headrace.errors import DataError, HeadraceError
from headrace.flow.flow import Flow
from headrace.flow.levers import AvailableNow, Trigger
from headrace.flow.target import Database, KafkaConnect, Target
from headrace.operate.run import Application
from headrace.runtime.events import CaptureUnhealthy, FlowEvent, FlowFailed
from headrace.stack.connect import secrets_folder
from headrace.stack.local import LocalStack
from headrace.stack.postgres import database

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from conftest import Broker

CAPTURE = Capture("shop", r"sold\..*", prefix="sold", heartbeat="1 second")
# Longer than a connector, a broker or a database takes for anything here on a busy machine.
_PATIENCE_SECONDS = 180.0
FLOWS = """
from headrace.cdc.capture.declaration import Capture
from headrace.cdc.flows import CdcSettings, mirror

sold = mirror(CdcSettings(Capture("shop", r"sold\\..*", prefix="sold", heartbeat="1 second")))
"""


def run(where: Database, *statements: str) -> None:
    with open_postgres(where) as link:
        for statement in statements:
            link.execute(statement)


def pid_of(home: Path, part: str) -> int:
    return next(item.pid for item in LocalStack(home).ps() if item.name == part and item.pid)


def moved(home: Path, source: Database) -> Database:
    """Stop Postgres, and start it while somebody else has its port."""
    stack = LocalStack(home)
    stack.down(parts=["postgres"])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", address(source).port))
        taken.listen()
        stack.up(("postgres",))
    elsewhere = database(stack.files("postgres"))
    assert elsewhere.url != source.url
    return elsewhere


class Running:
    """A flow that runs in the background of the test, and its events."""

    def __init__(self, spark: SparkSession, target: Target, flow: Flow) -> None:
        self.target, self.flow = target, flow
        self.events: list[FlowEvent] = []
        self._news = threading.Condition()
        self._application = Application(spark, target, [flow])
        self._application.bus.subscribe(self._on_event)
        self._ended: HeadraceError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def await_event(self, kind: type[FlowEvent], seconds: float = 300.0) -> None:
        """Return when an event of a kind has come."""
        with self._news:
            assert self._news.wait_for(lambda: any(isinstance(event, kind) for event in self.events), seconds)

    def end(self, seconds: float = 300.0) -> HeadraceError | None:
        """Wait until the flow has ended; return what it ended with."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the flow runs on"
        return self._ended

    def _run(self) -> None:
        self._ended = self._application.run()[self.flow.name].error

    def _on_event(self, event: FlowEvent) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()


def looked_at(
    capture: Capture, where: Database, worker: ConnectWorker, seconds: float = _PATIENCE_SECONDS
) -> CaptureProgress:
    """Ask the guard until what is transient has passed."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return check_capture(capture, where, ConnectClient(worker.url))
        except HeadraceError as error:
            if not error.code.startswith("HR-6") or time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def drop_slot(where: Database, capture: Capture) -> None:
    """Drop a slot that a connector holds: its connection is ended until the slot is free for a moment."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    with open_postgres(where) as link:
        while time.monotonic() < deadline:
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


class Shop:
    """Orders and their payments under change, and what is stored of them: a mirror by transactions, a history."""

    def __init__(
        self, spark: SparkSession, broker: Broker, source: Database, worker: ConnectWorker, lake: Path
    ) -> None:
        self.capture = CAPTURE
        self.worker, self.home = worker, broker.home
        self._spark, self._bootstrap, self._lake = spark, broker.bootstrap, lake
        self.source, self.stored, self._changed = source, "first", 0
        run(
            source,
            "CREATE SCHEMA sold",
            "CREATE TABLE sold.orders (id int PRIMARY KEY, note text, total numeric(12,2))",
            "CREATE TABLE sold.payments (id int PRIMARY KEY, order_id int)",
            "INSERT INTO sold.orders SELECT n, 'opened', n / 4.0 FROM generate_series(1, 500) n",
            "INSERT INTO sold.payments SELECT n, n FROM generate_series(1, 50) n",
        )

    @property
    def target(self) -> Target:
        return Target(
            "cdc",
            lake=str(self._lake / "lake"),
            checkpoints=str(self._lake / "checkpoints"),
            kafka={"bootstrap.servers": self._bootstrap},
            databases={"shop": self.source},
            connect=KafkaConnect(self.worker.url),
        )

    def flows(self, trigger: Trigger) -> list[Flow]:
        stored = partial(CdcSettings, self.capture, trigger=trigger)
        return [
            mirror(stored(path=f"{self.stored}/mirror", name=f"{self.stored}_mirror", atomic_transactions=True)),
            mirror(stored(path=f"{self.stored}/history", name=f"{self.stored}_history", stored_as=History())),
        ]

    def change(self) -> None:
        """Open, pay, alter, move and delete orders, in transactions over both tables, one with a message in the log."""
        self._changed += 1
        n, new = self._changed, 1000 + 10 * self._changed
        with open_postgres(self.source) as link:
            with link.transaction():
                link.execute(f"INSERT INTO sold.orders SELECT {new} + n, 'new', n FROM generate_series(0, 5) n")  # noqa: S608
                link.execute("INSERT INTO sold.payments VALUES (%s, %s), (%s, %s)", (new, new, new + 1, new + 1))
            with link.transaction():
                link.execute("UPDATE sold.orders SET note = %s WHERE id %% 7 = %s", (f"step {n}", n))
                link.execute("SELECT pg_logical_emit_message(true, 'audit', 'who did it')")
                link.execute("DELETE FROM sold.payments WHERE order_id = %s", (n,))
            link.execute("UPDATE sold.orders SET id = id + 50000 WHERE id = %s", (new + 2,))
            link.execute("DELETE FROM sold.orders WHERE id IN (%s, %s)", (n, new + 3))
            # A key that was deleted in the step before comes back.
            link.execute("INSERT INTO sold.orders VALUES (%s, 'again', 1) ON CONFLICT DO NOTHING", (n - 1,))

    def apply(self) -> list[FlowEvent]:
        """Let the flows read all records of the topics. Returns the events of the capture."""
        application = Application(self._spark, self.target, self.flows(AvailableNow()))
        reported: list[FlowEvent] = []
        application.bus.subscribe(lambda event: reported.append(event) if isinstance(event, CaptureUnhealthy) else None)
        errors = {name: str(item.error) for name, item in application.run().items() if item.error}
        assert errors == {}, errors
        return reported

    def require_equal(self) -> None:
        """Wait until everything is captured, apply it, and compare both with the source."""
        looked_at(self.capture, self.source, self.worker)
        await_position(self.capture, self.source, ConnectClient(self.worker.url), position_now(self.source))
        self.apply()
        for table in ("orders", "payments"):
            with open_postgres(self.source) as link:
                expected = set(link.execute(f"SELECT * FROM sold.{table}").fetchall())  # noqa: S608
            assert expected
            assert self._mirrored(table) == expected
            assert self._current(table) == expected
        for item in read_tables(self.source, self.capture.selection):
            compared = compare(self._spark, self.source, item, self.target.table(f"{self.stored}/mirror/{item.name}"))
            assert compared.equal, compared.as_dict()

    def _mirrored(self, table: str) -> set[tuple[object, ...]]:
        """The rows of the version that is published."""
        published = self._spark.read.format("delta").load(self.target.table(f"{self.stored}/mirror/_published"))
        (row,) = published.where(F.col("table") == f"sold.{table}").collect()
        return self._rows(self._spark.read.format("delta").option("versionAsOf", row.version).load(row.path))

    def _current(self, table: str) -> set[tuple[object, ...]]:
        versions = self._spark.read.format("delta").load(self.target.table(f"{self.stored}/history/{table}"))
        return self._rows(versions.where("is_current"))

    def _rows(self, actual: DataFrame) -> set[tuple[object, ...]]:
        names = [name for name in ("id", "note", "total", "order_id") if name in actual.columns]
        rows = [tuple(row) for row in actual.select(*names).collect()]
        assert len(set(rows)) == len(rows)
        return set(rows)

    def command(self, *words: str) -> dict[str, Any]:
        """Run `headrace capture` for the mirror, in a project of its own; return the one JSON object."""
        folder, reported = self._lake / "project", self.target
        folder.mkdir(exist_ok=True)
        assert self.source.password is not None
        password = f"${{file:{secrets_folder(LocalStack(self.home).files('connect')) / 'sold.properties'}:password}}"
        places = {
            "lake": reported.lake,
            "checkpoints": reported.checkpoints,
            "kafka": dict(reported.kafka),
            "databases": {"shop": {"url": self.source.url, "user": self.source.user, "password": "${env:SOLD}"}},
            "connect": {"url": self.worker.url, "passwords": {"shop": password}},
        }
        (folder / "headrace.yml").write_text(json.dumps({"name": "sold", "targets": {"dev": places}}))
        (folder / "flows.py").write_text(FLOWS)
        done = CliRunner().invoke(
            app, ["capture", *words, "--project", str(folder), "--json"], env={"SOLD": self.source.password.reveal()}
        )
        assert done.exit_code == 0, (done.output, done.exception)
        return json.loads(done.stdout)

    def send_again(self) -> None:
        """Send every record of the topics twice more, in another order."""
        chance, producer = random.Random(11), Producer({"bootstrap.servers": self._bootstrap})  # noqa: S311
        for topic in ("sold.sold.orders", "sold.sold.payments", "sold.transaction"):
            records = [(item.key(), item.value()) for item in read_topic(self.target, topic)] * 2
            chance.shuffle(records)
            for key, value in records:
                producer.produce(topic, value, key)
        assert producer.flush(60) == 0


def kill(home: Path, part: str, how: signal.Signals = signal.SIGKILL) -> None:
    process = psutil.Process(pid_of(home, part))
    os.kill(process.pid, how)
    process.wait(timeout=30)


@contextmanager
def stalled(where: Database, capture: Capture, table: str) -> Iterator[None]:
    """Hold a snapshot up at a table: it is locked as soon as the slot is made, which waits for open transactions."""
    done, locked = threading.Event(), threading.Event()
    created = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND confirmed_flush_lsn IS NOT NULL"

    def hold() -> None:
        with open_postgres(where) as link:
            # By one connection: to open another for each look takes as long as the connector does to get to the table.
            while not done.is_set() and link.execute(created, (capture.slot,)).fetchone() is None:
                pass
            with link.transaction():
                link.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
                locked.set()
                done.wait()

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    try:
        yield
        assert locked.is_set()
    finally:
        done.set()
        holder.join(30)


def refused(code: str, ask: Callable[[], object]) -> None:
    """Ask what has to be refused, with the way to a new snapshot."""
    with pytest.raises(DataError) as reported:
        ask()
    assert reported.value.code == code
    assert "`headrace capture delete FLOW --topics`" in reported.value.remedy


def ends_at_the_gap(running: Running) -> None:
    ended = running.end()
    assert isinstance(ended, DataError)
    assert ended.code == "HR-522"
    assert "snapshot again" in ended.remedy
    assert [event.retry_in for event in running.events if isinstance(event, FlowFailed)] == [None]
