"""Topics that lose records or are made again while a flow reads them, on a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer, TopicCollection, TopicPartition
from deleted_topics import delete_topic
from pyspark.sql.types import LongType, StructField, StructType

from headrace.audit.flow_audit import BatchToAudit, FlowAudit, quarantine_table
from headrace.clients.kafka import admin_client
from headrace.clients.topics import create_topics
from headrace.flow.checks.check import check
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import AsFastAsPossible, AvailableNow, Every
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.operate.preflight.batch_size import measure_rates
from headrace.operate.run import Application, FlowMetrics
from headrace.runtime.events import EventBus
from headrace.runtime.session import flow_session
from headrace.runtime.supervisor import Supervisor
from headrace.sinks.delta.write import DeltaAppend
from headrace.sources.kafka.source import KafkaSource
from headrace.sources.kafka.topics import TopicPattern

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]

ROW = StructType([StructField("id", LongType(), nullable=False)])
WHY = "old orders are in the archive"


@dataclass(frozen=True)
class Meddled(DeltaAppend):
    """A table, and something that happens before or after a batch is written to it."""

    before: Callable[[int], None] = field(default=lambda _batch: None)
    after: Callable[[int], None] = field(default=lambda _batch: None)

    def write(self, rows: DataFrame, batch: Batch) -> None:
        self.before(batch.id)
        super().write(rows, batch)
        self.after(batch.id)


class Place:
    """A topic of one partition, a flow and its table, all of one test. Record number n holds the id n."""

    def __init__(self, name: str, target: Target, spark: SparkSession) -> None:
        self.topic, self.target, self.spark = name, target, spark
        self.admin = admin_client(target.kafka)
        create_topics(target.kafka, {name: 1})

    def send(self, *values: int | str, topic: str = "") -> None:
        producer = Producer(dict(self.target.kafka))
        for value in values:
            producer.produce(topic or self.topic, json.dumps({"id": value}), "k")
        assert producer.flush(30) == 0

    def topic_id(self) -> str:
        (answer,) = self.admin.describe_topics(TopicCollection([self.topic])).values()
        return str(answer.result().topic_id)

    def make_again(self, *ids: int) -> None:
        delete_topic(self.admin, self.topic)
        create_topics(self.target.kafka, {self.topic: 1})
        self.send(*ids)

    def delete_before(self, offset: int) -> None:
        (answer,) = self.admin.delete_records([TopicPartition(self.topic, 0, offset)]).values()
        answer.result()

    def flow(self, **changes: object) -> Flow:
        declared: dict[str, object] = {"sink": DeltaAppend("rows"), "trigger": AvailableNow()}
        accepted = {key: changes.pop(key) for key in ("accepted_topic_ids", "data_loss_reason") if key in changes}
        source = changes.pop("source", None) or KafkaSource(self.topic, **accepted)
        return Flow("orders", Input(source, schema=ROW), lambda rows: rows, **(declared | changes))

    def run(self, **changes: object) -> FlowMetrics:
        return Application(self.spark, self.target, [self.flow(**changes)]).run()["orders"]

    def table(self) -> list[int]:
        return sorted(row.id for row in self.spark.read.format("delta").load(self.target.table("rows")).collect())

    def lost(self, batch: int) -> list[tuple[object, ...]]:
        text = (Path(self.target.flow_folder("orders")) / f"headrace/lost/{batch}.json").read_text()
        actual = json.loads(text)["lost"]
        assert {(item["why"], item["topic"], item["partition"]) for item in actual} == {(WHY, self.topic, 0)}
        return [(item["first"], item["end"], item["kind"], item["topic_id"]) for item in actual]


@pytest.fixture
def place(broker: Broker, tmp_path: Path, request: pytest.FixtureRequest, spark: SparkSession) -> Place:
    kafka = {"bootstrap.servers": broker.bootstrap}
    name = request.node.name.removeprefix("test_").replace("_", "-").replace("[", "-").rstrip("]")[:80]
    target = Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "cp"), kafka=kafka)
    return Place(name, target, spark)


def test_a_topic_made_again_and_filled_past_the_old_offset_is_refused(place: Place):
    place.send(1, 2, 3)
    assert place.run().error is None
    old = place.topic_id()
    place.make_again(*range(11, 21))
    new = place.topic_id()

    error = place.run().error

    assert error is not None
    assert error.code == "HR-311"
    assert old in error.why
    assert new in error.why
    assert f"'{place.topic}'" in error.what
    assert place.table() == [1, 2, 3]

    # A wrong id accepts nothing; the right one continues at offset 3 and reports what is skipped.
    refused = place.run(accepted_topic_ids=(old,), data_loss_reason=WHY).error
    assert refused is not None
    assert refused.code == "HR-311"
    accepted = place.run(accepted_topic_ids=(new,), data_loss_reason=WHY)
    assert accepted.error is None
    assert place.table() == [1, 2, 3, *range(14, 21)]
    assert place.lost(1) == [(3, None, "lost", old), (0, 3, "lost", new)]
    assert len(accepted.lost) == 2
    place.send(21)
    assert place.run().error is None
    assert place.table()[-2:] == [20, 21]


@pytest.mark.parametrize("length", [10, 1])
def test_a_topic_made_again_under_a_running_flow(place: Place, length: int):
    place.send(1, 2, 3)
    old = place.topic_id()
    ids = range(11, 11 + length)
    sink = Meddled("rows", after=lambda batch: place.make_again(*ids) if batch == 0 else None)

    error = place.run(sink=sink, trigger=AsFastAsPossible()).error

    assert error is not None
    assert error.code == "HR-311"
    new = place.topic_id()
    assert old in error.why
    assert new in error.why
    assert place.table() == [1, 2, 3]

    # The batch that was planned on the new topic was never written, so the topic can be accepted.
    place.send(99)
    assert place.run(accepted_topic_ids=(new,), data_loss_reason=WHY).error is None
    # Spark continues at the old offset, or where the shorter topic ended when it was first seen.
    skipped = min(3, length)
    assert place.table() == [1, 2, 3, *ids[skipped:], 99]
    assert place.lost(1) == [(3, None, "lost", old), (0, skipped, "lost", new)]


def test_a_topic_made_again_is_not_accepted_for_a_batch_that_may_be_written(place: Place):
    place.send(1, 2, 3)
    assert place.run().error is None
    # As if the driver had been killed between the table's commit and Spark's own.
    for entry in Path(place.target.flow_folder("orders")).glob("spark/commits/*0*"):
        entry.unlink()
    place.make_again(*range(11, 21))

    error = place.run(accepted_topic_ids=(place.topic_id(),), data_loss_reason=WHY).error

    assert error is not None
    assert error.code == "HR-318"
    assert "Batch 0" in error.why
    assert place.table() == [1, 2, 3]


def test_deleted_records_stop_the_flow_with_their_range_and_are_recorded_when_accepted(place: Place):
    place.send(*range(10))
    assert place.run().error is None
    place.send(*range(10, 20))
    place.delete_before(15)

    error = place.run().error

    assert error is not None
    assert error.code == "HR-502"
    assert f"{place.topic}-0 [10, 15)" in error.what
    assert "data_loss_reason" in error.remedy
    assert place.table() == list(range(10))

    figures = place.run(data_loss_reason=WHY)
    assert figures.error is None
    assert place.table() == [*range(10), *range(15, 20)]
    assert place.lost(1) == [(10, 15, "lost", place.topic_id())]
    assert [(item.first, item.end, item.kind) for item in figures.lost] == [(10, 15, "lost")]
    assert not (Path(place.target.flow_folder("orders")) / "headrace/lost/0.json").exists()


def test_rows_that_are_deleted_while_a_batch_is_read_may_be_lost_and_stay_recorded(place: Place):
    place.send(*range(10))
    sink = Meddled("rows", before=lambda _batch: place.delete_before(5))

    assert place.run(sink=sink, data_loss_reason=WHY).error is None

    assert place.table() == list(range(5, 10))
    assert place.lost(0) == [(0, 5, "may be lost", place.topic_id())]

    # The batch is retried, and more is missing. Its rows are in the table.
    for entry in Path(place.target.flow_folder("orders")).glob("spark/commits/*0*"):
        entry.unlink()
    place.delete_before(7)
    again = place.run(data_loss_reason=WHY)
    assert again.error is None
    assert place.table() == list(range(5, 10))
    topic_id = place.topic_id()
    assert place.lost(0) == [(0, 5, "may be lost", topic_id), (5, 7, "may be lost", topic_id)]
    assert [(item.first, item.end) for item in again.lost] == [(5, 7)]


def test_a_topic_of_a_pattern_that_is_deleted_is_recorded_and_one_that_is_made_later_is_read_from_its_start(
    place: Place,
):
    topics = KafkaSource(TopicPattern(f"{place.topic}(-b)?"))
    other = f"{place.topic}-b"
    create_topics(place.target.kafka, {other: 1})
    place.send(1, 2)
    place.send(3, topic=other)
    assert place.run(source=topics).error is None
    delete_topic(place.admin, other)
    place.send(4)

    error = place.run(source=topics).error

    assert error is not None
    assert error.code == "HR-506"
    assert f"'{other}'" in error.what
    assert place.table() == [1, 2, 3]

    continued = place.run(source=replace(topics, data_loss_reason=WHY))
    assert continued.error is None
    assert place.table() == [1, 2, 3, 4]
    assert [(item.topic, item.first, item.end, item.kind) for item in continued.lost] == [(other, 1, None, "lost")]
    create_topics(place.target.kafka, {other: 1})
    place.send(5, 6, topic=other)
    assert place.run(source=topics).error is None
    assert place.table() == [1, 2, 3, 4, 5, 6]


def test_an_audit_files_what_is_left_and_names_what_it_could_not_look_at(place: Place):
    place.send(1, "bad", 2, "bad too", 3)
    flow = place.flow(data_loss_reason=WHY)
    assert Supervisor(place.spark, place.target, [flow], EventBus()).run() == {}
    place.delete_before(2)

    audit = FlowAudit(flow_session(place.spark, flow), place.target, flow)
    audit.audit_batches([BatchToAudit(0, invalid=True, late=False)])

    filed = place.spark.read.format("delta").load(quarantine_table(place.target, "orders")).collect()
    assert [(row.offset, row.partition) for row in filed] == [(3, 0)]
    assert place.lost(0) == [(0, 2, "not audited", "")]
    assert [(item.first, item.end) for item in audit.audit_counts().unaudited] == [(0, 2)]


def test_what_arrives_is_counted_by_timestamps_and_a_small_bound_is_warned_of(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    # A start does without these figures when a busy broker takes longer for its answers than two seconds.
    monkeypatch.setattr("headrace.sources.kafka.source._MEASURE_WITHIN_SECONDS", 60.0)
    now = int(time.time() * 1000)
    producer = Producer(dict(place.target.kafka))
    for number in range(900):
        producer.produce(place.topic, b"{}", timestamp=now - (3_600_000 if number < 300 else 1_000))
    assert producer.flush(30) == 0
    flow = replace(place.flow(), trigger=Every("10 seconds"))
    small = KafkaSource(place.topic, max_offsets_per_trigger=19)

    # 600 records in 300 seconds; those before them are an hour old.
    assert small.arrival_rates(place.target) == {"records": 2.0}
    flow = replace(flow, inputs=Input(small, schema=ROW))
    findings = [item for item in check([flow], measure_rates([flow], place.target)) if item.code == "HRC-204"]
    assert [finding.remedy.split(",")[0] for finding in findings] == ["Set max_offsets_per_trigger=50_000"]
