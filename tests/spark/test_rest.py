"""Batches to a real HTTP server on the loopback: cut into requests, sent again, set aside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError, DataError, FlowError, ServiceUnavailable
from headrace.flow.flow import Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.inputs import Input
from headrace.flow.levers import AvailableNow
from headrace.flow.sink import Batch, DeadLetters
from headrace.flow.target import HttpEndpoint, Target
from headrace.operate.run import Application
from headrace.sinks.rest import Rest, dead_letters
from headrace.sources.files import FileSource
from rest_service import Ledger, serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with serving() as server:
        yield server


@pytest.fixture
def target(ledger: Ledger, tmp_path: Path) -> Target:
    services = {"crm": HttpEndpoint(ledger.url, private=True)}
    return Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "cp"), services=services)


@pytest.fixture
def batch(target: Target) -> Batch:
    return Batch("to-crm", "q1", 0, target)


def rows(spark: SparkSession, *ids: int, partitions: int = 3) -> DataFrame:
    return spark.createDataFrame([(item, f"é{item}") for item in ids], "id int, name string").repartition(partitions)


def test_rows_are_cut_into_requests_of_at_most_so_many_rows_and_bytes(
    spark: SparkSession, ledger: Ledger, batch: Batch
):
    Rest("crm", max_rows=4).write(rows(spark, *range(10)), batch)
    assert ledger.ids() == list(range(10))
    assert sorted(len(item) for item in ledger.taken.values()) == [2, 4, 4]
    assert ledger.taken[next(iter(ledger.taken))][0].keys() == {"id", "name"}

    ledger.taken.clear()
    # A row is 20 characters, {"id":1,"name":"é1"}, so two of them fit into 50.
    Rest("crm", max_bytes=50, body="lines").write(rows(spark, *range(1, 6)), replace(batch, id=1))
    assert ledger.ids() == [1, 2, 3, 4, 5]
    assert sorted(len(item) for item in ledger.taken.values()) == [1, 2, 2]


def test_a_batch_that_is_run_again_sends_the_same_requests_whatever_the_order(
    spark: SparkSession, ledger: Ledger, batch: Batch
):
    sink = Rest("crm", max_rows=3)
    sink.write(rows(spark, 1, 2, 3, 4, 5, 6, 7, partitions=1), batch)
    sink.write(rows(spark, 7, 3, 6, 1, 5, 2, 4, partitions=4), batch)
    assert ledger.requests == 6
    assert ledger.ids() == [1, 2, 3, 4, 5, 6, 7]
    assert sink.guarantee is Guarantee.AT_LEAST_ONCE


def test_other_rows_or_batches_have_other_keys_so_that_nothing_is_taken_for_a_repetition(
    spark: SparkSession, ledger: Ledger, batch: Batch
):
    sink = Rest("crm")
    for item in (batch, replace(batch, id=1), replace(batch, step="0.1"), replace(batch, query_id="q2")):
        sink.write(rows(spark, 1), item)
    sink.write(rows(spark, 2), batch)
    assert ledger.ids() == [1, 1, 1, 1, 2]


def test_rejected_rows_are_quarantined_completely_and_the_others_arrive(
    spark: SparkSession, ledger: Ledger, target: Target, batch: Batch
):
    ledger.judge = lambda got: 422 if any(row["id"] == 5 for row in got) else 200
    message: list[DeadLetters] = []
    Rest("crm", max_rows=2).write(rows(spark, 1, 2, 3, 4, 5, 6), replace(batch, on_dead_letters=message.append))
    assert ledger.ids() == [1, 2, 3, 4]
    letters = spark.read.format("delta").load(dead_letters(target, "to-crm")).collect()
    assert sorted(json.loads(letter.value)["id"] for letter in letters) == [5, 6]
    assert {(letter.query_id, letter.batch_id, letter.chunk, letter.status, letter.attempts) for letter in letters} == {
        ("q1", 0, 2, 422, 1)
    }
    [aside] = message
    assert (aside.sink, aside.rows, aside.place) == ("rest:crm", 2, dead_letters(target, "to-crm"))
    assert "422" in aside.why


def test_the_dead_letters_of_a_batch_are_those_of_its_last_attempt(
    spark: SparkSession, ledger: Ledger, target: Target, batch: Batch, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.clients.http._FIRST_PAUSE_SECONDS", 0.01)
    sink = Rest("crm", max_rows=1, attempts=2)

    def letters() -> list[int]:
        actual = spark.read.format("delta").load(dead_letters(target, "to-crm")).collect()
        return sorted(json.loads(item.value)["id"] for item in actual)

    ledger.judge = lambda got: 503 if got[0]["id"] < 3 else 200
    sink.write(rows(spark, 1, 2, 3), batch)
    assert letters() == [1, 2]
    sink.write(rows(spark, 1), replace(batch, id=1))
    assert letters() == [1, 1, 2]
    # Batch 0 again, of which only 1 is refused now; those of batch 1 stay.
    ledger.judge = lambda got: 503 if got[0]["id"] < 2 else 200
    sink.write(rows(spark, 1, 2, 3), batch)
    assert letters() == [1, 1]
    ledger.judge = lambda _got: 200
    sink.write(rows(spark, 1, 2, 3), batch)
    assert letters() == [1]
    assert ledger.ids() == [1, 2, 3]


@pytest.mark.parametrize("status", [302, 401, 403, 404])
def test_a_service_that_refuses_the_sender_stops_the_flow(
    spark: SparkSession, ledger: Ledger, target: Target, batch: Batch, status: int
):
    ledger.judge = lambda _got: status
    with pytest.raises(DataError, match=str(status)) as refused:
        Rest("crm").write(rows(spark, 1), batch)
    assert refused.value.code == "HR-515"
    assert not Path(dead_letters(target, "to-crm")).exists()


def test_a_service_is_looked_for_before_anything_starts(target: Target):
    Rest("crm").preflight(target)
    with pytest.raises(ConfigError, match="crm"):
        Rest("crn").preflight(target)
    outside = replace(target, services={"crm": HttpEndpoint("https://127.0.0.1")})
    with pytest.raises(ConfigError, match="private network"):
        Rest("crm").preflight(outside)


@pytest.mark.parametrize(
    "wrong", [{"max_rows": 0}, {"attempts": 0}, {"in_flight": 0}, {"body": "xml"}, {"timeout": "x"}]
)
def test_a_declaration_that_makes_no_sense_is_refused(wrong: dict[str, object]):
    with pytest.raises(FlowError):
        Rest("crm", **wrong)


def test_a_flow_continues_after_an_outage_of_the_service_and_reports_quarantined_rows(
    spark: SparkSession, ledger: Ledger, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.clients.http._FIRST_PAUSE_SECONDS", 0.01)
    (tmp_path / "in").mkdir()
    for number in range(3):
        spark.createDataFrame([(number,)], "id int").write.json(str(tmp_path / "in" / f"{number}.d"))
    source = FileSource(str(tmp_path / "in" / "*.d"), "json", rows(spark).select("id").schema, max_files_per_trigger=1)
    sink = Rest("crm", max_rows=1, attempts=2)
    flow = Flow("to-crm", Input(source), lambda frame: frame, sink, trigger=AvailableNow())
    away = [True]

    def judge(got: list[dict[str, object]]) -> int:
        if got[0]["id"] == 1 and away:
            away.clear()
            raise ConnectionAbortedError
        return 400 if got[0]["id"] == 2 else 200

    ledger.judge = judge
    figures = Application(spark, target, [flow]).run()["to-crm"]
    assert figures.error is None
    assert figures.set_aside == 1
    assert ledger.ids() == [0, 1]


def test_a_service_that_is_down_is_transient(spark: SparkSession, ledger: Ledger, batch: Batch):
    ledger.shutdown()
    ledger.socket.close()
    with pytest.raises(ServiceUnavailable):
        Rest("crm", attempts=1).write(rows(spark, 1), batch)
