"""What every test may ask for. The real parts are started once per run and shared; tests keep to own names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.flow.target import Database, Target
from headrace.stack import mariadb as mariadb_part
from headrace.stack.jars import JarCache
from headrace.stack.local import LocalStack
from headrace.stack.postgres import database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Broker:
    """A real Kafka broker. Tests make topics with names of their own, so that they can share it."""

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
    """Start the local Postgres once per run. Tests make tables with names of their own, so that they can share it."""
    stack = LocalStack(tmp_path_factory.mktemp("postgres"))
    try:
        stack.up(("postgres",))
        yield database(stack.place("postgres"))
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
        yield mariadb_part.database(stack.place("mariadb"))
    finally:
        stack.wipe()


@pytest.fixture(scope="session")
def connect(broker: Broker) -> Worker:
    """Start Kafka Connect beside the broker, once per run. Tests make connectors with names of their own."""
    running = LocalStack(broker.home).up(("connect",))
    return Worker(running.addresses["connect"], broker.home)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start Spark once per run, as the application does. The JVM prints into `jvm.log` of pytest's own folder."""
    from headrace.runtime.session import open_session

    home = tmp_path_factory.mktemp("spark")
    target = Target("tests", lake=str(home / "lake"), checkpoints=str(home / "checkpoints"), master="local[2]")
    cache = JarCache()
    cache.sync(("spark",))
    session = open_session(target, cache.verify("spark"), app_name="headrace-tests", log=home / "jvm.log")
    yield session
    session.stop()
