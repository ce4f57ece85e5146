"""What a Kafka source can be declared to read and where to start, without a broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast

import pytest

from headrace import FlowError, KafkaSource, StartOffsets, StartTime, Target, TopicPartitions, TopicPattern

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_MS = 1_769_860_800_000
NOBODY = Target("test", lake="lake", checkpoints="checkpoints")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (KafkaSource("rides"), "kafka:rides"),
        (KafkaSource(["rides", "orders"]), "kafka:rides,orders"),
        (KafkaSource(TopicPattern(r"rides-\w+")), r"kafka:/rides-\w+/"),
        (KafkaSource(TopicPartitions({"rides": [1, 0], "orders": [2]})), "kafka:orders[2],rides[0,1]"),
    ],
)
def test_a_source_is_named_after_what_it_reads(source: KafkaSource, name: str) -> None:
    assert source.name == name


@pytest.mark.parametrize(
    "declare",
    [
        pytest.param(lambda: KafkaSource(""), id="an empty name"),
        pytest.param(lambda: KafkaSource("rides,orders"), id="a comma"),
        pytest.param(lambda: KafkaSource([]), id="no topic"),
        pytest.param(lambda: KafkaSource(["rides", "rides"]), id="a topic twice"),
        pytest.param(lambda: TopicPattern(""), id="an empty pattern"),
        pytest.param(lambda: TopicPattern("rides-("), id="a group without an end"),
        pytest.param(lambda: TopicPattern("*"), id="nothing to repeat"),
        pytest.param(lambda: TopicPattern("(?P<name>rides)"), id="syntax of Python alone"),
        pytest.param(lambda: TopicPattern(r"\p{Alpha}+"), id="syntax of Java alone"),
        pytest.param(lambda: TopicPattern("[a-z&&[^x]]"), id="a class that Java cuts with another"),
        pytest.param(lambda: TopicPattern("rides{"), id="a brace that only Python takes for itself"),
        pytest.param(lambda: TopicPartitions({}), id="no assignment"),
        pytest.param(lambda: TopicPartitions({"rides": []}), id="a topic without partitions"),
        pytest.param(lambda: TopicPartitions({"rides": [-1]}), id="a partition below 0"),
        pytest.param(lambda: TopicPartitions({"rides": [0, 0]}), id="a partition twice"),
        pytest.param(lambda: TopicPartitions({"rides": cast(Any, ["0"])}), id="a partition that is a text"),
        pytest.param(lambda: KafkaSource("rides", starting=cast(Any, "earlier")), id="an unknown edge"),
        pytest.param(lambda: StartOffsets({}), id="no offsets"),
        pytest.param(lambda: StartOffsets({"rides": {}}), id="a topic without offsets"),
        pytest.param(lambda: StartOffsets({"rides": {0: -1}}), id="an offset below 0"),
        pytest.param(lambda: StartOffsets({"rides": {-1: 0}}), id="an offset of a partition below 0"),
        pytest.param(lambda: StartOffsets({"rides": {0: cast(Any, "first")}}), id="an offset that is a word"),
        pytest.param(lambda: StartTime(datetime(2026, 1, 31)), id="a naive time"),  # noqa: DTZ001
        pytest.param(lambda: StartTime({"rides": {0: datetime(2026, 1, 31)}}), id="a naive one"),  # noqa: DTZ001
        pytest.param(lambda: StartTime(cast(Any, "2026-01-31")), id="a time that is a text"),
        pytest.param(lambda: StartTime(NOON, if_none=cast(Any, "earliest")), id="an unknown way out"),
        pytest.param(lambda: KafkaSource("rides", min_partitions=0), id="no task"),
        pytest.param(lambda: KafkaSource("rides", max_records_per_partition=0), id="tasks without records"),
    ],
)
def test_a_declaration_that_cannot_be_read_fails_where_it_is_made(declare: Callable[[], object]) -> None:
    with pytest.raises(FlowError) as caught:
        declare()
    assert caught.value.code == "HR-210"


@pytest.mark.parametrize("regex", [r"rides-\d{4}", "(?:rides|orders)-[a-z0-9_]+", "(?!test-).*", r"a\.b", "rides-.+?"])
def test_a_pattern_that_python_and_java_read_alike_is_taken(regex: str) -> None:
    assert TopicPattern(regex).option() == ("subscribePattern", f"^(?!__|headrace-ledger-)(?:{regex})$")


def test_what_is_declared_cannot_be_changed_later() -> None:
    numbers, offsets = [0], {"rides": {0: 1}}
    read, start = TopicPartitions({"rides": numbers}), StartOffsets(cast(Any, offsets))
    numbers.append(1)
    offsets["rides"][0] = 2
    assert read.option() == ("assign", '{"rides": [0]}')
    assert start.offsets == {"rides": {0: 1}}
    with pytest.raises(FrozenInstanceError):
        read.assigned = {}  # type: ignore[misc]


def test_starts_become_the_options_of_sparks_connector() -> None:
    read = KafkaSource("rides").selection
    offsets = StartOffsets({"rides": {0: 7, 1: "earliest", 2: "latest"}}).options(read, NOBODY)
    assert json.loads(offsets["startingOffsets"]) == {"rides": {"0": 7, "1": -2, "2": -1}}
    strategy = {"startingOffsetsByTimestampStrategy": "error"}
    assert StartTime(NOON).options(read, NOBODY) == {"startingTimestamp": str(NOON_MS)} | strategy
    berlin = NOON.astimezone(timezone(timedelta(hours=1)))
    options = StartTime({"rides": {0: berlin, 1: NOON + timedelta(microseconds=1)}}).options(read, NOBODY)
    # A time between two milliseconds is rounded up: a record at the earlier one is before it.
    assert json.loads(options.pop("startingOffsetsByTimestamp")) == {"rides": {"0": NOON_MS, "1": NOON_MS + 1}}
    assert options == strategy
