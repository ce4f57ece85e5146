"""Drivers killed at random moments, one after the other, while rows arrive: in the end every sink equals its model.

`CERTIFY_KILLS` sets the number of kills, `CRASH_SEED` the events and the moments.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from crash.cases import CASES, canonical
from crash.chain import Chain, Difference, ProcessDriver, Step
from crash.driver import LOST_WORKER
from headrace.sinks.kafka.topic import KafkaTopicSink

if TYPE_CHECKING:
    from conftest import Broker
    from headrace.flow.target import Database

KILLS = int(os.environ.get("CERTIFY_KILLS", "12"))
SEED = int(os.environ.get("CRASH_SEED", "1"))
EXACT = {name: case for name, case in CASES.items() if not case.repeats}
# A driver commits its first batches within ten seconds and is done with a stage within twenty.
_LATEST_KILL_SECONDS, _PATIENCE_SECONDS = 15.0, 300.0


def await_first_commit(chain: Chain, driver: ProcessDriver) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while "committed" not in (chain.line.receive(0.5) or {}):
        assert driver.died_of() is None, driver.died_of()
        assert time.monotonic() < deadline, f"no batch was committed; logs are in {chain.plan.folder}"


def test_random_kills_lose_nothing_and_repeat_nothing(broker: Broker, postgres: Database, tmp_path: Path):
    chance = random.Random(SEED)  # noqa: S311 - an example, not a secret
    steps = [Step(((LOST_WORKER, KILLS),))]
    chain = Chain(EXACT, steps, tmp_path, broker.bootstrap, postgres, seed=SEED)
    chain.follower.start()
    for number in range(KILLS):
        delay = chance.uniform(0, _LATEST_KILL_SECONDS)
        logging.getLogger(__name__).info("kill %d, %.1f s after the first commit", number, delay)
        chain.give(number)
        driver = ProcessDriver.of(chain.plan, chain.line)
        try:
            await_first_commit(chain, driver)
            # The moment is random: there is no event to wait for.
            threading.Event().wait(delay)
            assert driver.died_of() is None, driver.died_of()
        finally:
            driver.kill()
        chain.line.hang_up()

    chain.give(KILLS)
    driver = ProcessDriver.of(chain.plan, chain.line)
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while any(results != Difference() for results in chain.read(KILLS + 1, settled=False).values()):
            assert driver.died_of() is None, driver.died_of()
            assert time.monotonic() < deadline, chain.read(KILLS + 1, settled=False)
            chain.line.receive(1.0)
        assert driver.drain() == ""
    finally:
        driver.kill()
    chain.follower.finish()

    assert chain.read(KILLS + 1) == dict.fromkeys(EXACT, Difference())
    for case in EXACT.values():
        for place in case.places:
            if isinstance(place, KafkaTopicSink):
                observed = Counter(map(canonical, chain.follower.observed[place.topic]))
                assert observed == Counter(map(canonical, case.model(chain.stages)))
