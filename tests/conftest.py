"""What every test may ask for. The real parts are started once per run and shared; tests keep to own names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.stack.local import LocalStack


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
