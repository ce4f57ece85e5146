"""Batches into a Kafka topic, once: run again, left open by a killed process, taken over by another driver."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from deleted_topics import delete_topic
from exactly_once_place import Place, rows
from exactly_once_run import chunk
from pyspark.sql.types import LongType, StructField, StructType

from headrace.clients.kafka import read_topic
from headrace.clients.topics import create_topics
from headrace.errors import DataError, RecoveryError, ServiceUnavailable
from headrace.flow.flow import Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.inputs import Input
from headrace.flow.levers import AvailableNow
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import TracksBatches
from headrace.operate.run import Application
from headrace.sinks.batch.ledger import LedgerEntry
from headrace.sinks.fan_out import FanOut
from headrace.sinks.kafka import transaction
from headrace.sinks.kafka.exactly_once import KafkaExactlyOnceSink, _send
from headrace.sinks.kafka.ledger import ENTRY_FIELDS, create_ledger, last_entries
from headrace.sinks.kafka.topic import KafkaSink
from headrace.sinks.kafka.transaction import publish
from headrace.sources.kafka.source import KafkaSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]


@pytest.fixture
def place(broker: Broker, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return Place.of(request, broker, tmp_path)


def test_rows_arrive_once_and_each_batch_is_recorded(spark: SparkSession, place: Place):
    place.sink.write(rows(spark, 1, 2), place.batch(0))
    place.sink.write(rows(spark, 3), place.batch(1))
    assert place.stored_ids() == [1, 2, 3]
    assert place.recorded() == LedgerEntry("q1", 1, rows=1)
    assert place.sink.guarantee is Guarantee.EXACTLY_ONCE


def test_records_and_their_partitions_are_those_of_the_plain_sink(spark: SparkSession, place: Place):
    created = spark.sql(
        "select id, if(id = 7, null, concat('Zürich ', id)) as city, timestamp_millis(id * 1001) as at from range(40)"
    )
    create_topics(place.target.kafka, {f"{place.name}-plain": 2})
    KafkaSink(f"{place.name}-plain", key="city").write(created, place.batch(0))
    place.sink.write(created, place.batch(0))

    def records(topic: str) -> set[tuple[object, ...]]:
        actual = [(item.key(), item.value(), item.partition()) for item in read_topic(place.target, topic)]
        # A record without a key goes to any partition.
        return {(key, value, partition if key else None) for key, value, partition in actual}

    assert records(place.name) == records(f"{place.name}-plain")
    assert len(records(place.name)) == 40


def test_a_batch_that_is_run_again_changes_nothing(spark: SparkSession, place: Place):
    for _ in range(2):
        place.sink.write(rows(spark, 1, 2), place.batch(0))
    place.sink.write(rows(spark, 3), place.batch(1))
    place.sink.write(rows(spark, 3), place.batch(1))
    assert place.stored_ids() == [1, 2, 3]


def test_a_batch_is_computed_once_also_when_it_is_in_already(spark: SparkSession, place: Place):
    for _ in range(2):
        counted = spark.sparkContext.accumulator(0)

        def observed(item: int, counted=counted) -> int:
            counted.add(1)
            return item

        created = spark.createDataFrame(
            spark.sparkContext.parallelize([1, 2, 3], 2).map(observed).map(lambda item: (item,)), "id long"
        )
        replace(place.sink, key=None).write(created, place.batch(0))
        assert counted.value == 3
    assert place.stored_ids() == [1, 2, 3]


def test_a_batch_without_rows_is_recorded_so_that_the_next_one_fits(spark: SparkSession, place: Place):
    place.sink.write(rows(spark), place.batch(0))
    assert place.recorded() == LedgerEntry("q1", 0, rows=0)
    place.sink.write(rows(spark, 1), place.batch(1))
    assert place.stored_ids() == [1]


@pytest.mark.parametrize("number", [0, 1])
def test_the_batches_of_another_checkpoint_are_refused(spark: SparkSession, place: Place, number: int):
    sink = replace(place.sink, ledger=f"{place.name}-ledger-{number}")
    sink.write(rows(spark, 1), place.batch(0))
    before = place.stored_ids()
    with pytest.raises(RecoveryError, match=r"q1.*q2") as refused:
        sink.write(rows(spark, 2), place.batch(number, "q2"))
    assert refused.value.code == "HR-306"
    assert place.stored_ids() == before


def test_a_batch_of_the_same_number_from_other_offsets_is_refused(spark: SparkSession, place: Place):
    place.sink.write(rows(spark, 1), place.batch(0, offsets="a1"))
    with pytest.raises(RecoveryError, match=r"a1.*b2") as refused:
        place.sink.write(rows(spark, 2), place.batch(0, offsets="b2"))
    assert refused.value.code == "HR-341"
    place.sink.write(rows(spark, 1), place.batch(0, offsets="a1"))
    assert place.stored_ids() == [1]
    assert place.recorded() == LedgerEntry("q1", 0, rows=1, offsets="a1")


def test_committed_batches_of_a_topic_are_returned_with_the_id_of_the_topic(spark: SparkSession, place: Place):
    assert isinstance(place.sink, TracksBatches)
    before = place.sink.committed_batches(spark, place.name, "0", place.target)
    assert (before.last, place.name in before.place) == ({}, True)
    place.sink.write(rows(spark, 1), place.batch(0))
    place.sink.write(rows(spark, 2), place.batch(1))
    after = place.sink.committed_batches(spark, place.name, "0", place.target)
    assert after == replace(before, last={"q1": 1})
    delete_topic(AdminClient(dict(place.target.kafka)), place.name)
    assert place.sink.committed_batches(spark, place.name, "0", place.target).identity is None
    create_topics(place.target.kafka, {place.name: 2})
    assert place.sink.committed_batches(spark, place.name, "0", place.target).identity not in (None, before.identity)


def test_rows_of_a_key_are_sent_in_the_order_asked_for(spark: SparkSession, place: Place):
    declared = rows(spark, 5, 3, 8, 1, 6, 2, 7, 4).repartition(3)
    replace(place.sink, order=("id",)).write(declared, place.batch(0))
    observed: dict[bytes, list[int]] = {}
    for message in read_topic(place.target, place.name):
        observed.setdefault(message.key(), []).append(json.loads(message.value())["id"])
    assert observed == {b"city 0": [2, 4, 6, 8], b"city 1": [1, 3, 5, 7]}


def test_a_batch_behind_a_gap_is_refused(spark: SparkSession, place: Place):
    place.sink.write(rows(spark, 1), place.batch(0))
    with pytest.raises(RecoveryError) as refused:
        place.sink.write(rows(spark, 2), place.batch(2))
    assert refused.value.code == "HR-307"
    assert place.stored_ids() == [1]


def test_the_batches_of_a_checkpoint_that_was_set_back_are_refused(spark: SparkSession, place: Place):
    place.sink.write(rows(spark, 1), place.batch(0))
    place.sink.write(rows(spark, 2), place.batch(1))
    with pytest.raises(RecoveryError, match="set back") as refused:
        place.sink.write(rows(spark, 3), place.batch(0))
    assert refused.value.code == "HR-307"
    assert place.stored_ids() == [1, 2]


@pytest.mark.parametrize("there", [True, False])
def test_a_later_batch_without_a_ledger_is_refused(spark: SparkSession, place: Place, there: bool):
    sink = replace(place.sink, ledger=f"{place.name}-ledger-{there}")
    if there:
        sink.prepare(spark, place.target, RunCache())
    with pytest.raises(RecoveryError) as refused:
        sink.write(rows(spark, 1), place.batch(1))
    assert refused.value.code == "HR-308"
    assert place.stored_ids() == []


def test_each_sink_of_a_fan_out_has_its_own_record(spark: SparkSession, place: Place):
    create_topics(place.target.kafka, {f"{place.name}-2": 1})
    both = FanOut(place.sink, KafkaExactlyOnceSink(f"{place.name}-2"))
    for _ in range(2):
        both.write(rows(spark, 1, 2), place.batch(0))
    assert place.stored_ids() == [1, 2]
    assert len(list(read_topic(place.target, f"{place.name}-2"))) == 2


def test_a_batch_that_fails_in_the_middle_leaves_nothing_and_blocks_no_reader(spark: SparkSession, place: Place):
    failing = rows(spark, 1, 2).repartition(1).selectExpr("if(id = 2, raise_error('lost'), id) as id", "city")
    with pytest.raises(Exception, match="lost"):
        place.sink.write(failing, place.batch(0))
    assert place.stored_ids() == []
    place.sink.write(rows(spark, 1, 2), place.batch(0))
    assert place.stored_ids() == [1, 2]


def test_a_row_that_is_too_large_is_an_error_of_the_data(spark: SparkSession, place: Place):
    with pytest.raises(DataError) as refused:
        place.sink.write(rows(spark, 1).selectExpr("id", "repeat('x', 2000000) as city"), place.batch(0))
    assert refused.value.code == "HR-505"
    assert place.stored_ids() == []


# ---- processes that die, and those that do not know that they are dead ----


def killed(place: Place, moment: str) -> None:
    create_ledger(place.target, place.ledger)
    command = [sys.executable, str(Path(__file__).with_name("exactly_once_run.py"))]
    arguments = [moment, place.name, place.name, str(place.target.kafka["bootstrap.servers"])]
    run = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == -signal.SIGKILL, run.stderr


def test_a_transaction_left_open_by_a_killed_process_is_aborted(spark: SparkSession, place: Place):
    killed(place, "before")
    # Nobody is fenced by looking: the open transaction is still there, and nothing before it.
    assert place.sink.committed_batches(spark, place.name, "0", place.target).last == {}
    place.sink.write(rows(spark, 1, 2, 3), place.batch(0))
    assert place.stored_ids() == [1, 2, 3]
    place.sink.write(rows(spark, 4), place.batch(1))
    assert place.stored_ids() == [1, 2, 3, 4]


def test_a_batch_whose_process_was_killed_after_its_commit_is_not_written_again(spark: SparkSession, place: Place):
    killed(place, "after")
    place.sink.write(rows(spark, 1, 2, 3), place.batch(0))
    assert place.stored_ids() == [1, 2, 3]


def commits_with(monkeypatch: pytest.MonkeyPatch, instead) -> None:
    """Let the first commit from here on be `instead`, which gets the producer's own."""
    calls = []

    class Patched(Producer):
        def commit_transaction(self, timeout: float = -1) -> None:
            calls.append(1)
            own = super().commit_transaction
            return instead(lambda: own(timeout)) if len(calls) == 1 else own(timeout)

    monkeypatch.setattr(transaction, "Producer", Patched)


def test_a_driver_that_was_taken_over_cannot_commit(place: Place, monkeypatch: pytest.MonkeyPatch):
    def paused(commit) -> None:
        publish(place.slot(0), [chunk([1, 2])])
        commit()

    commits_with(monkeypatch, paused)
    with pytest.raises(RecoveryError) as refused:
        publish(place.slot(0), [chunk([1, 2])])
    assert refused.value.code == "HR-309"
    assert place.stored_ids() == [1, 2]


def test_a_driver_that_was_taken_over_before_it_sent_its_rows_cannot_commit(place: Place):
    def overtaken() -> Iterator[object]:
        publish(place.slot(0), [chunk([1, 2])])
        yield chunk([1, 2])

    with pytest.raises(RecoveryError) as refused:
        publish(place.slot(0), overtaken())
    assert refused.value.code == "HR-309"
    assert place.stored_ids() == [1, 2]


def lost_answer() -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", False, True))


def test_a_commit_whose_answer_was_lost_is_found_in_the_ledger(place: Place, monkeypatch: pytest.MonkeyPatch):
    def deaf(commit) -> None:
        commit()
        raise lost_answer()

    commits_with(monkeypatch, deaf)
    assert publish(place.slot(0), [chunk([1]), chunk([2])]) == 2
    assert place.stored_ids() == [1, 2]


def test_a_commit_that_never_arrived_is_transient_and_the_next_attempt_writes_the_batch(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    def mute(_commit) -> None:
        raise lost_answer()

    commits_with(monkeypatch, mute)
    with pytest.raises(ServiceUnavailable) as failed:
        publish(place.slot(0), [chunk([1, 2])])
    assert failed.value.code == "HR-604"
    assert place.stored_ids() == []
    assert publish(place.slot(0), [chunk([1, 2])]) == 2
    assert place.stored_ids() == [1, 2]


def test_rows_that_end_before_they_are_all_there_are_not_committed(place: Place):
    """As when the executor dies: to the task that sends, its rows have come to their end."""
    declared, number = iter([pieces_of(1, 2), pieces_of(3)]), 3
    [outcome] = _send(place.slot(0), number, "pieces", False, declared)
    assert isinstance(outcome, ServiceUnavailable)
    assert outcome.code == "HR-609"
    assert place.stored_ids() == []
    assert place.recorded() is None


def pieces_of(*ids: int) -> bytes:
    return chunk(ids).serialize().to_pybytes()


# ---- the ledger ----


def test_an_entry_is_found_behind_many_records_and_an_aborted_one(place: Place):
    ledger = f"{place.name}-ledger"
    create_ledger(place.target, ledger)

    def wrote(key: str, number: int, *, commit: bool = True, times: int = 1) -> None:
        producer = Producer({**place.target.kafka, "transactional.id": f"{ledger}-{key}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for _ in range(times):
            producer.produce(ledger, LedgerEntry("q1", number, rows=1).to_json(ENTRY_FIELDS), key)
        producer.flush(30)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)

    def ours(key: str = "ours") -> LedgerEntry | None:
        return last_entries(place.target, ledger, key, [0], 10).get(0)

    assert ours() is None
    wrote("ours", 7)
    wrote("ours", 8, commit=False)
    assert ours() == LedgerEntry("q1", 7, rows=1)
    wrote("others", 1, times=600)
    assert ours() == LedgerEntry("q1", 7, rows=1)
    assert ours("nobody's") is None


# ---- in a running flow ----


def test_a_flow_with_state_continues_after_its_last_batch_is_retried(spark: SparkSession, place: Place):
    events = f"{place.name}-in"
    create_topics(place.target.kafka, {events: 1})

    def send(*ids: int) -> None:
        producer = Producer(dict(place.target.kafka))
        for item in ids:
            producer.produce(events, json.dumps({"id": item}), "k")
        producer.flush(30)

    def latest(declared: DataFrame) -> DataFrame:
        return declared.groupBy("id").count()

    flow = Flow(
        name="counts",
        inputs=Input(KafkaSource(events), schema=StructType([StructField("id", LongType(), nullable=False)])),
        transform=latest,
        sink=replace(place.sink, key="id"),
        output_mode="update",
        trigger=AvailableNow(),
    )

    def run() -> int:
        figures = Application(spark, place.target, [flow]).run()
        assert figures["counts"].error is None
        return figures["counts"].rows_out

    send(1, 2)
    assert run() == 2
    # As if the driver had been killed between the commit of the transaction and Spark's own.
    for entry in Path(place.target.flow_folder("counts")).glob("spark/commits/*0*"):
        entry.unlink()
    send(1, 3)
    run()
    observed = [json.loads(item.value() or b"") for item in read_topic(place.target, place.name)]
    assert sorted((item["id"], item["count"]) for item in observed) == [(1, 1), (1, 2), (2, 1), (3, 1)]
