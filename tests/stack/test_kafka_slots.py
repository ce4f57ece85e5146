"""Batches into a Kafka topic in several transactions each: killed between two of them, taken over, run again."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from exactly_once_place import Place, rows
from exactly_once_run import chunk
from pyspark import cloudpickle

from headrace.clients.kafka import await_last_stable_offset, read_topic
from headrace.errors import RecoveryError
from headrace.sinks.batch.ledger import LedgerEntry
from headrace.sinks.kafka import exactly_once
from headrace.sinks.kafka.ledger import committed_entries
from headrace.sinks.kafka.transaction import TransactionSlot, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]

# What is put in the place of the sink's own code below has to reach the workers, which cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SLOTS = 3
# Where a batch dies in `make test`: between two slots, on both sides of a commit.
IN_TEST = ((1, "after"), (2, "before"))


@pytest.fixture
def place(broker: Broker, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    created = Place.of(request, broker, tmp_path)
    created.sink = replace(created.sink, slots=SLOTS)
    return created


def entries(place: Place) -> dict[int, LedgerEntry]:
    return committed_entries(place.target, place.ledger, f"hr.test.{place.name}.0", range(SLOTS))


def lucky(spark: SparkSession, number: int) -> DataFrame:
    """Rows that are different each time they are computed, in their key too: it decides about the slot."""
    return spark.range(number).selectExpr("id", "rand() as luck", "concat('city ', int(rand() * 1000)) as city")


def outbox(place: Place) -> str:
    return f"{place.target.lake}/_headrace/{place.name}/outbox/0"


def test_rows_arrive_once_and_every_slot_records_its_batch(spark: SparkSession, place: Place):
    for _ in range(2):
        place.sink.write(rows(spark, *range(20)), place.batch(0, offsets="a1"))
    place.sink.write(rows(spark), place.batch(1, offsets="b2"))
    place.sink.write(rows(spark, 20, 21), place.batch(2, offsets="c3"))
    assert place.stored_ids() == list(range(22))
    actual = entries(place)
    assert {slot: (entry.batch_id, entry.slots, entry.offsets) for slot, entry in actual.items()} == dict.fromkeys(
        range(SLOTS), (2, SLOTS, "c3")
    )
    assert sum(entry.rows for entry in actual.values()) == 2
    assert place.sink.committed_batches(spark, place.name, "0", place.target).last == {"q1": 2}


class Dying:
    """Sends a slot as the sink does; the process that sends a chosen one dies, once the slots before it are in."""

    def __init__(self, slot: int, moment: str, place: Place) -> None:
        self._slot, self._moment = slot, moment
        self._ledger = place.target, place.ledger, f"hr.test.{place.name}.0"

    def __call__(
        self, slot: TransactionSlot, number: int, counted: Any, copies: bool, pieces: Iterator[bytes]
    ) -> Iterator[Any]:
        from headrace.sinks.kafka import transaction
        from headrace.sinks.kafka.exactly_once import _send

        if slot.number < self._slot:
            yield from _send(slot, number, counted, copies, pieces)
            return
        if slot.number > self._slot:
            signal.pause()  # until Spark gives the job up
        while not committed_entries(*self._ledger, range(SLOTS)).keys() >= set(range(self._slot)):
            pass
        moment = self._moment

        class Dies(transaction.Producer):  # type: ignore[misc,name-defined]
            def commit_transaction(self, timeout: float = -1) -> None:
                if moment == "after":
                    super().commit_transaction(timeout)
                os.kill(os.getpid(), signal.SIGKILL)

        transaction.Producer = Dies  # type: ignore[misc]
        yield from _send(slot, number, counted, copies, pieces)


@pytest.mark.parametrize(
    ("slot", "moment"),
    [
        *((slot, moment) for slot, moment in IN_TEST),
        *(
            pytest.param(slot, moment, marks=pytest.mark.certify)
            for slot in range(SLOTS)
            for moment in ("before", "after")
            if (slot, moment) not in IN_TEST
        ),
    ],
)
def test_a_batch_that_dies_between_two_slots_is_completed_with_the_rows_it_began_with(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch, slot: int, moment: str
):
    with monkeypatch.context() as patched:
        patched.setattr(exactly_once, "_send", Dying(slot, moment, place))
        with pytest.raises(Exception, match="Python worker exited unexpectedly"):
            place.sink.write(lucky(spark, 60), place.batch(0))
    if moment == "after":
        # The process died at the answer to its commit, which comes before the transaction's markers.
        await_last_stable_offset(place.target, place.ledger)
    actual = entries(place)
    assert set(actual) == set(range(slot + (moment == "after")))
    began = [row["value"].decode() for row in spark.read.parquet(f"{outbox(place)}/rows/*").collect()]

    place.sink.write(lucky(spark, 60), place.batch(0))
    observed = [(message.value() or b"").decode() for message in read_topic(place.target, place.name)]
    assert sorted(observed) == sorted(began)
    assert sorted(json.loads(item)["id"] for item in observed) == list(range(60))
    # What was in stayed as it was.
    assert {number: entries(place)[number] for number in actual} == actual


def test_a_driver_that_was_taken_over_between_two_slots_adds_nothing(spark: SparkSession, place: Place):
    place.sink.write(rows(spark, 1), place.batch(0))
    old = [TransactionSlot(place.batch(1), place.name, place.ledger, number, SLOTS) for number in range(SLOTS)]

    def overtaken() -> Iterator[Any]:
        place.sink.write(rows(spark, *range(2, 12)), place.batch(1))
        yield chunk([99])

    with pytest.raises(RecoveryError) as refused:
        publish(old[0], overtaken())
    assert refused.value.code == "HR-309"
    # A task of the old driver that begins only now finds its slot in, or sees that other rows were sent.
    assert publish(old[1], [chunk([99])]) == entries(place)[1].rows
    with pytest.raises(RecoveryError) as refused:
        publish(replace(old[2], staged="by the old driver"), [chunk([99])])
    assert refused.value.code == "HR-342"
    assert place.stored_ids() == list(range(1, 12))


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_another_number_of_slots_is_refused(spark: SparkSession, place: Place, slots: int):
    place.sink.write(rows(spark, 1), place.batch(0))
    with pytest.raises(RecoveryError, match=f"{slots} slot") as refused:
        replace(place.sink, slots=slots).write(rows(spark, 2), place.batch(1))
    assert refused.value.code == "HR-340"
    assert place.stored_ids() == [1]


def test_another_number_of_slots_is_refused_when_only_the_last_slot_is_in(spark: SparkSession, place: Place):
    publish(replace(place.slot(0), number=2, slots=SLOTS), [chunk([1])])
    with pytest.raises(RecoveryError) as refused:
        replace(place.sink, slots=2).write(rows(spark, 1, 2), place.batch(0))
    assert refused.value.code == "HR-340"
    assert place.stored_ids() == [1]


def test_slots_refuse_a_batch_of_the_same_number_from_other_offsets(spark: SparkSession, place: Place):
    publish(replace(place.slot(0), batch=place.batch(0, offsets="a1"), slots=SLOTS), [chunk([1])])
    with pytest.raises(RecoveryError) as refused:
        place.sink.write(rows(spark, 1, 2), place.batch(0, offsets="b2"))
    assert refused.value.code == "HR-341"
    assert place.stored_ids() == [1]


def test_slots_that_were_sent_from_other_rows_than_those_of_the_outbox_are_refused(spark: SparkSession, place: Place):
    publish(replace(place.slot(0), slots=SLOTS, staged="gone"), [chunk([1])])
    with pytest.raises(RecoveryError, match="gone") as refused:
        place.sink.write(rows(spark, 1, 2), place.batch(0))
    assert refused.value.code == "HR-342"
    assert place.stored_ids() == [1]


def test_the_outbox_contains_only_the_in_flight_batch(spark: SparkSession, place: Place):
    for number in range(3):
        place.sink.write(rows(spark, number), place.batch(number))
    assert place.stored_ids() == [0, 1, 2]
    assert [path.name for path in Path(outbox(place), "batches").iterdir()] == ["q1-2-"]
    assert [path.name[:5] for path in Path(outbox(place), "rows").iterdir()] == ["q1-2-"]


def test_rows_of_a_key_are_in_their_order_or_in_the_declared_one(spark: SparkSession, place: Place):
    declared = [5, 3, 8, 1, 6, 2, 7, 4]
    place.sink.write(rows(spark, *declared).coalesce(1), place.batch(0))
    replace(place.sink, order=("id",)).write(rows(spark, *declared).repartition(3), place.batch(1))
    observed: dict[bytes | str | None, list[int]] = {}
    for message in read_topic(place.target, place.name):
        observed.setdefault(message.key(), []).append(json.loads(message.value() or b"")["id"])
    assert observed == {b"city 0": [8, 6, 2, 4, 2, 4, 6, 8], b"city 1": [5, 3, 1, 7, 1, 3, 5, 7]}
