"""Fixtures for all tests. The real services are started once per run and shared; tests use unique names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.cdc.capture.lifecycle import ConnectWorker as CaptureWorker
from headrace.flow.target import Database, Target
from headrace.stack import mariadb as mariadb_part
from headrace.stack.connect import secrets_folder
from headrace.stack.jars import JarCache
from headrace.stack.local import LocalStack
from headrace.stack.postgres import database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The second compiler, for what runs often. It costs 40 s of a JVM's first 150 s and saves a quarter of what follows.
_LONG_LIVED = "-Xms1g -XX:TieredStopAtLevel=4 -XX:Tier4InvocationThreshold=15000 -XX:Tier4CompileThreshold=30000"

pytest.register_assert_rewrite("crash.checks", "systems.late_and_invalid")
pytest_plugins = ["own_ports", "process_logs", "early_failures", "pytester"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `certify`, unless `make certify` or HEADRACE_CERTIFY=1 asks for it."""
    if "HEADRACE_CERTIFY_CASE" in os.environ or os.environ.get("HEADRACE_CERTIFY") == "1":
        return
    long = [item for item in items if item.get_closest_marker("certify")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


@dataclass(frozen=True)
class Broker:
    """A real Kafka broker. Tests share it and create topics with unique names."""

    bootstrap: str
    home: Path


@dataclass(frozen=True)
class Worker:
    """A real Kafka Connect with Debezium. It stops with the broker, in whose home it is."""

    url: str
    home: Path


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Start the local broker once per run; jars are fetched if this machine has none yet."""
    home = tmp_path_factory.mktemp("broker")
    stack = LocalStack(home)
    try:
        yield Broker(stack.up().bootstrap, home)
    finally:
        stack.wipe()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Start the local Postgres once per run. Tests share it and create tables with unique names."""
    stack = LocalStack(tmp_path_factory.mktemp("postgres"))
    try:
        stack.up(("postgres",))
        yield database(stack.files("postgres"))
    finally:
        stack.wipe()


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Start the local MariaDB once per run, as `postgres`. Left out only where that was asked for."""
    if os.environ.get("HEADRACE_NO_MARIADB") == "1":
        pytest.skip("HEADRACE_NO_MARIADB=1")
    stack = LocalStack(tmp_path_factory.mktemp("mariadb"))
    try:
        stack.up(("mariadb",))
        yield mariadb_part.database(stack.files("mariadb"))
    finally:
        stack.wipe()


@pytest.fixture(scope="session")
def connect(broker: Broker) -> Worker:
    """Start Kafka Connect with the broker, once per run. Tests create connectors with unique names."""
    running = LocalStack(broker.home).up(("connect",))
    return Worker(running.addresses["connect"], broker.home)


@pytest.fixture(scope="session")
def capture_worker(broker: Broker, connect: Worker) -> CaptureWorker:
    """Return Kafka Connect as captures address it."""
    return CaptureWorker(connect.url, broker.bootstrap, secrets_folder(LocalStack(connect.home).files("connect")))


@pytest.fixture
def stoppable_postgres(broker: Broker) -> Database:
    """Start a Postgres that a test may stop: in the home of the broker, apart from the one that others share."""
    stack = LocalStack(broker.home)
    stack.up(("postgres",))
    return database(stack.files("postgres"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start Spark once per run, as the application does. The JVM prints into `jvm.log` of pytest's own folder."""
    from headrace.runtime.session import open_session

    monkeypatch = pytest.MonkeyPatch()
    # This JVM lives as long as the run; those of killed drivers do not.
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {_LONG_LIVED}")
    home = tmp_path_factory.mktemp("spark")
    target = Target("tests", lake=str(home / "lake"), checkpoints=str(home / "checkpoints"), master="local[2]")
    cache = JarCache()
    cache.sync(("spark",))
    session = open_session(target, cache.verify("spark"), app_name="headrace-tests", log=home / "jvm.log")
    monkeypatch.undo()
    yield session
    session.stop()
