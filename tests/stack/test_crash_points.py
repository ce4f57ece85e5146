"""Every sink, ended at every point between the offset log and the commit log.

Once by SIGKILL, in the middle of a write, and at the other points by an exception in this process. `make certify` kills
a process at every point.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from crash.cases import CASES
from crash.chain import Chain, killed_once
from crash.checks import *  # noqa: F403 - the tests
from crash.checks import ran
from headrace.flow.guarantee import Guarantee
from matrix_page import SINKS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from conftest import Broker
    from headrace.flow.target import Database

pytestmark = [pytest.mark.stack, pytest.mark.spark]


@pytest.fixture(scope="module")
def chain(broker: Broker, postgres: Database, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Run the chain once."""
    folder: Path = tmp_path_factory.mktemp("crash")
    seed = int(os.environ.get("CRASH_SEED", "1"))
    return ran(Chain(CASES, killed_once(), folder, broker.bootstrap, postgres, seed=seed, spark=spark))


def test_every_sink_that_promises_exactly_once_is_killed():
    promised = {sink for sink in SINKS if sink.guarantee is Guarantee.EXACTLY_ONCE}  # type: ignore[attr-defined]
    killed = {type(place) for case in CASES.values() if not case.repeats for place in case.places}

    assert promised - killed == set()
