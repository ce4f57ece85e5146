"""What has to be true after a chain, whoever ran it.

A test module imports everything here and provides:

| name    | meaning                                              |
|---------|------------------------------------------------------|
| `CASES` | the cases of its chain, by name                      |
| `chain` | a fixture with the chain after its run               |
"""

from __future__ import annotations

import logging
import os
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from crash.cases import KEYS, POINTS, Case, canonical
from crash.chain import Chain, Difference, killed_at_every_point
from crash.readers import delta_versions
from headrace.flow.target import Database
from headrace.sinks.delta.table import DeltaTableSink
from headrace.sinks.kafka.topic import KafkaTopicSink

NOTHING = Difference()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test its cases by the name of its argument, and every point."""
    cases: dict[str, Case] = metafunc.module.CASES
    groups = {
        "case": list(cases.values()),
        "exact": [case for case in cases.values() if not case.repeats],
        "inexact": [case for case in cases.values() if case.repeats],
        "half_done": [case for case in cases.values() if "P2" not in case.repeats],
    }
    for argument, selected in groups.items():
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, selected, ids=[case.name for case in selected])
    if "point" in metafunc.fixturenames:
        metafunc.parametrize("point", POINTS)


def killed_everywhere(cases: Mapping[str, Case], folder: Path, bootstrap: str, database: Database) -> Chain:
    """Run a chain with a kill at every point. `CRASH_SEED` decides the events and the order of the points."""
    seed = int(os.environ.get("CRASH_SEED", "1"))
    chance, points = random.Random(seed), list(POINTS)  # noqa: S311 - an example, not a secret
    # Not first: a driver that died before the first entry of the offset log has left nothing at all.
    while points[0] == "P0":
        chance.shuffle(points)
    return ran(Chain(cases, killed_at_every_point(points), folder, bootstrap, database, seed=seed))


def ran(chain: Chain) -> Chain:
    """Run a chain once, and log what is needed to run it again."""
    log = logging.getLogger(__name__)
    log.info("seed %d, steps %s, logs in %s", chain.seed, chain.steps, chain.plan.folder)
    chain.run()
    log.info("seconds %s", chain.seconds)
    return chain


def test_a_kill_loses_nothing_and_repeats_nothing(chain: Chain, exact: Case, point: str):
    outcome = chain.outcomes[exact.name, point]

    assert chain.errors[exact.name] == []
    assert outcome.stage, "a stage without rows would prove nothing"
    if exact.in_parts and point == "P2":
        # At least one slot was not committed.
        assert outcome.killed.extra < outcome.stage
        assert outcome.killed.missing == NOTHING.missing
    else:
        assert outcome.killed == NOTHING
    assert outcome.recovered == NOTHING


def test_in_the_end_every_row_is_there(chain: Chain, case: Case):
    assert chain.errors[case.name] == []
    assert sum(chain.final[case.name].missing.values()) == 0
    assert case.repeats or chain.final[case.name] == NOTHING


def test_the_driver_that_is_not_killed_ends_well(chain: Chain):
    assert chain.last_words == ""


def test_a_sink_that_promises_less_is_caught_where_it_repeats_rows(chain: Chain, inexact: Case, point: str):
    outcome = chain.outcomes[inexact.name, point]

    repeated = outcome.recovered.extra
    assert outcome.recovered.missing == NOTHING.missing
    if point == "P2" and point in inexact.repeats:
        # The task that stopped had sent nothing yet.
        assert NOTHING.extra < repeated < outcome.stage
    else:
        assert repeated == (outcome.stage if point in inexact.repeats else NOTHING.extra)


def test_the_middle_is_one(chain: Chain, half_done: Case):
    assert half_done.name in chain.half_done


def test_a_batch_of_each_case_lost_a_worker(chain: Chain, case: Case):
    assert case.name in chain.lost_workers


def test_no_version_of_a_table_holds_a_part_of_a_batch(chain: Chain, exact: Case):
    states = [Counter(map(canonical, exact.model(chain.stages[:number]))) for number in range(len(chain.stages) + 1)]
    for place in exact.places:
        if isinstance(place, DeltaTableSink):
            versions = [
                states.index(Counter(map(canonical, rows))) for rows in delta_versions(place, chain.plan.target)
            ]
            assert versions == sorted(versions)


def test_a_reader_of_committed_records_never_sees_one_twice_or_out_of_order(chain: Chain, exact: Case):
    for place in exact.places:
        if isinstance(place, KafkaTopicSink):
            observed = chain.follower.observed[place.topic]
            assert Counter(map(canonical, observed)) == Counter(map(canonical, exact.model(chain.stages)))
            for key in KEYS:
                numbers = [row["seq"] for row in observed if row["key"] == key and "seq" in row]
                assert numbers == sorted(numbers)
