"""What every test may ask for. The real parts are started once per run and shared; tests keep to own names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.flow.target import Database, Target
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
