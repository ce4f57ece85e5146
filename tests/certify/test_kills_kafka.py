"""A driver is killed by SIGKILL at every point of a batch, with the sinks of the family `kafka`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from crash.cases import family
from crash.chain import Chain
from crash.checks import *  # noqa: F403 - the tests
from crash.checks import killed_everywhere

if TYPE_CHECKING:
    from conftest import Broker
    from headrace.flow.target import Database

CASES = family("kafka")


@pytest.fixture(scope="module")
def chain(broker: Broker, postgres: Database, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return killed_everywhere(CASES, tmp_path_factory.mktemp("crash"), broker.bootstrap, postgres)
