"""A driver is killed by SIGKILL at every point of a batch, with the sinks of the family `stores`."""

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

# Every sink of this family promises exactly once.
del test_a_sink_that_promises_less_is_caught_where_it_repeats_rows  # noqa: F821 - a test of crash.checks

CASES = family("stores")


@pytest.fixture(scope="module")
def chain(broker: Broker, postgres: Database, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return killed_everywhere(CASES, tmp_path_factory.mktemp("crash"), broker.bootstrap, postgres)
