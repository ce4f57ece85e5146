"""Every sink, with the driver killed at every point between the offset log and the commit log."""

from __future__ import annotations

import logging
import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from crash_cases import CASES, KEYS, POINTS, Case, canonical
from crash_chain import Chain, Difference
from crash_readers import delta_versions

from headrace.flow.guarantee import Guarantee
from headrace.operate.matrix_page import SINKS
from headrace.sinks.delta_table import DeltaTableSink
from headrace.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from conftest import Broker
    from headrace.flow.target import Database

pytestmark = [pytest.mark.stack, pytest.mark.spark]

EXACT = [case for case in CASES.values() if not case.repeats]
NOT_EXACT = [case for case in CASES.values() if case.repeats]
NOTHING = Difference()


def named(case: Case) -> str:
    return case.name


@pytest.fixture(scope="module")
def chain(broker: Broker, postgres: Database, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Run the chain once. The seed decides the events and the order of the points."""
    seed = int(os.environ.get("CRASH_SEED", "1"))
    chain = Chain(tmp_path_factory.mktemp("crash"), broker.bootstrap, postgres, seed)
    logging.getLogger(__name__).info("seed %d, points %s, logs in %s", chain.seed, chain.points, chain.plan.folder)
    chain.run()
    logging.getLogger(__name__).info("seconds %s", chain.seconds)
    return chain


def test_every_sink_that_promises_exactly_once_is_killed():
    promised = {each for each in SINKS if each.guarantee is Guarantee.EXACTLY_ONCE}  # type: ignore[attr-defined]

    assert promised - {type(place) for case in EXACT for place in case.places} == set()


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("case", EXACT, ids=named)
def test_a_kill_loses_nothing_and_repeats_nothing(chain: Chain, case: Case, point: str):
    outcome = chain.outcomes[case.name, point]

    assert chain.errors[case.name] == []
    assert outcome.stage, "a stage without rows would prove nothing"
    if case.in_parts and point == "P2":
        # At least one slot was not committed.
        assert outcome.killed.extra < outcome.stage
        assert outcome.killed.missing == NOTHING.missing
    else:
        assert outcome.killed == NOTHING
    assert outcome.recovered == NOTHING


@pytest.mark.parametrize("case", CASES.values(), ids=named)
def test_in_the_end_every_row_is_there(chain: Chain, case: Case):
    assert chain.errors[case.name] == []
    assert sum(chain.final[case.name].missing.values()) == 0
    assert case.repeats or chain.final[case.name] == NOTHING


def test_the_driver_that_is_not_killed_ends_well(chain: Chain):
    assert chain.last_words == ""


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("case", NOT_EXACT, ids=named)
def test_a_sink_that_promises_less_is_caught_where_it_repeats_rows(chain: Chain, case: Case, point: str):
    outcome = chain.outcomes[case.name, point]

    repeated = outcome.recovered.extra
    assert outcome.recovered.missing == NOTHING.missing
    if point == "P2" and point in case.repeats:
        # The task that stopped had sent nothing yet.
        assert NOTHING.extra < repeated < outcome.stage
    else:
        assert repeated == (outcome.stage if point in case.repeats else NOTHING.extra)


@pytest.mark.parametrize("case", [case for case in CASES.values() if "P2" not in case.repeats], ids=named)
def test_the_middle_is_one(chain: Chain, case: Case):
    assert case.name in chain.half_done


@pytest.mark.parametrize("case", CASES.values(), ids=named)
def test_the_last_batch_lost_a_worker(chain: Chain, case: Case):
    assert case.name in chain.lost_workers


@pytest.mark.parametrize("case", EXACT, ids=named)
def test_no_version_of_a_table_holds_a_part_of_a_batch(chain: Chain, case: Case):
    states = [Counter(map(canonical, case.model(chain.stages[:number]))) for number in range(len(chain.stages) + 1)]
    for place in case.places:
        if isinstance(place, DeltaTableSink):
            versions = [
                states.index(Counter(map(canonical, rows))) for rows in delta_versions(place, chain.plan.target)
            ]
            assert versions == sorted(versions)


@pytest.mark.parametrize("case", EXACT, ids=named)
def test_a_reader_of_committed_records_never_sees_one_twice_or_out_of_order(chain: Chain, case: Case):
    for place in case.places:
        if isinstance(place, KafkaSink):
            seen = chain.follower.seen[place.topic]
            assert Counter(map(canonical, seen)) == Counter(map(canonical, case.model(chain.stages)))
            for key in KEYS:
                numbers = [row["seq"] for row in seen if row["key"] == key and "seq" in row]
                assert numbers == sorted(numbers)
