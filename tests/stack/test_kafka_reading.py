"""What the Kafka source reads and where it starts, on a real broker: names, patterns, partitions, offsets, times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from confluent_kafka import Producer
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from headrace import (
    AutoBatchSize,
    AvailableNow,
    Flow,
    Guarantee,
    HeadraceError,
    Input,
    KafkaSource,
    OutputMode,
    StartOffsets,
    StartTime,
    Target,
    TopicPartitions,
    TopicPattern,
)
from headrace.clients.topics import create_topics
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch
from headrace.operate.preflight.batch_size import size_batches
from headrace.operate.run import preflight
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.events import EventBus
from headrace.runtime.supervisor import Backoff, Supervisor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ROW = StructType([StructField("id", StringType())])

# Per test: topic, then partition, then the records as (value, minutes after noon).
Records = Mapping[str, Mapping[int, list[tuple[str, int]]]]


@dataclass
class CollectingSink:
    """Keeps the values of each batch in memory, sorted."""

    batches: list[list[str]] = field(default_factory=list)
    name: str = "kept"
    guarantee: ClassVar[Guarantee] = Guarantee.BEST_EFFORT
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset(OutputMode)

    def preflight(self, target: Target) -> None: ...

    def prepare(self, spark: SparkSession, target: Target, cache: RunCache) -> None: ...

    def write(self, rows: DataFrame, batch: Batch) -> None:
        self.batches.append(values(rows))


def values(rows: DataFrame) -> list[str]:
    return sorted(row[0].decode() for row in rows.select("value").collect())


@dataclass(frozen=True)
class Workspace:
    """Topics whose names begin with `prefix`, and one flow that reads them."""

    target: Target
    prefix: str

    def topic(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def make(self, **partitions: int) -> None:
        create_topics(self.target.kafka, {self.topic(name): count for name, count in partitions.items()})

    def send(self, records: Records) -> None:
        producer = Producer(dict(self.target.kafka))
        for name, by_partition in records.items():
            for partition, sent in by_partition.items():
                for value, minutes in sent:
                    at = int((NOON + timedelta(minutes=minutes)).timestamp() * 1000)
                    producer.produce(self.topic(name), value, partition=partition, timestamp=at)
        assert producer.flush(30) == 0

    def drain(self, spark: SparkSession, source: KafkaSource) -> list[str]:
        """Run the flow over what is there, as `headrace run` does; return the values of this start."""
        sink = CollectingSink()
        flow = Flow("read", Input(source), lambda rows: rows, sink, trigger=AvailableNow())
        self.preflight(source)
        errors = Supervisor(spark, self.target, [flow], EventBus(), backoff=Backoff(attempts=0)).run()
        assert errors == {}
        return sorted(value for batch in sink.batches for value in batch)

    def preflight(self, source: KafkaSource) -> None:
        preflight([Flow("read", Input(source, schema=ROW), lambda rows: rows, CollectingSink())], self.target)

    def read_again(self, spark: SparkSession, source: KafkaSource, batch_id: int) -> DataFrame:
        """Return the rows of a batch, by the offsets that Spark logged for it."""
        checkpoint = Checkpoint.of("read", self.target, spark)
        offsets = checkpoint.offset_range(batch_id, 0)
        assert offsets is not None
        return source.batch(spark, self.target, *offsets)


@pytest.fixture
def workspace(broker: Broker, tmp_path: Path) -> Workspace:
    kafka = {"bootstrap.servers": broker.bootstrap}
    target = Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "cp"), kafka=kafka)
    return Workspace(target, tmp_path.name)


def test_topics_by_name_are_all_read_and_each_batch_can_be_read_again(spark: SparkSession, workspace: Workspace):
    workspace.make(a=1, b=2, c=1)
    source = KafkaSource([workspace.topic("a"), workspace.topic("b")])
    workspace.send({"a": {0: [("a1", 0)]}, "b": {0: [("b1", 0)], 1: [("b2", 0)]}, "c": {0: [("c1", 0)]}})
    assert workspace.drain(spark, source) == ["a1", "b1", "b2"]
    workspace.send({"b": {1: [("b3", 0)]}})
    assert workspace.drain(spark, source) == ["b3"]
    assert values(workspace.read_again(spark, source, 0)) == ["a1", "b1", "b2"]
    assert values(workspace.read_again(spark, source, 1)) == ["b3"]


def test_a_pattern_matches_the_full_name_and_includes_topics_that_appear_later(
    spark: SparkSession, workspace: Workspace
):
    workspace.make(rides_x=1, old_rides_x=1, rides_x_bak=1)
    source = KafkaSource(TopicPattern(rf"{workspace.prefix}\.rides_[a-z]"), starting="latest")
    workspace.send({"rides_x": {0: [("before", 0)]}})
    assert workspace.drain(spark, source) == []
    workspace.make(rides_y=2)
    workspace.send({"rides_x": {0: [("x1", 0)]}, "rides_y": {1: [("y1", 0)]}, "rides_x_bak": {0: [("no", 0)]}})
    workspace.send({"old_rides_x": {0: [("no", 0)]}})
    assert workspace.drain(spark, source) == ["x1", "y1"]
    assert values(workspace.read_again(spark, source, 1)) == ["x1", "y1"]
    # A topic that is made after a batch is none of its business.
    workspace.make(rides_z=1)
    assert values(workspace.read_again(spark, source, 1)) == ["x1", "y1"]


def test_only_declared_partitions_are_read(spark: SparkSession, workspace: Workspace):
    workspace.make(a=3)
    source = KafkaSource(TopicPartitions({workspace.topic("a"): [0, 2]}))
    workspace.send({"a": {number: [(f"p{number}", 0)] for number in range(3)}})
    assert workspace.drain(spark, source) == ["p0", "p2"]
    assert values(workspace.read_again(spark, source, 0)) == ["p0", "p2"]


AT_TEN_PAST = NOON + timedelta(minutes=10)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        pytest.param(lambda _topic: "latest", [], id="latest"),
        pytest.param(lambda topic: StartOffsets({topic: {0: 1, 1: "earliest"}}), ["p2", "p3", "q1"], id="offsets"),
        pytest.param(lambda topic: StartOffsets({topic: {0: 3, 1: "latest"}}), [], id="the end"),
        pytest.param(lambda _topic: StartTime(NOON), ["p1", "p2", "p3", "q1"], id="a time that all have"),
        pytest.param(lambda _topic: StartTime(AT_TEN_PAST, if_none="latest"), ["p2", "p3"], id="a time that one has"),
        pytest.param(
            lambda topic: StartTime({topic: {0: AT_TEN_PAST, 1: NOON}}), ["p2", "p3", "q1"], id="a time for each"
        ),
    ],
)
def test_the_first_start_reads_from_the_declared_position_and_later_ones_continue(
    spark: SparkSession, workspace: Workspace, start: Any, expected: list[str]
):
    workspace.make(a=2)
    workspace.send({"a": {0: [("p1", 0), ("p2", 10), ("p3", 20)], 1: [("q1", 0)]}})
    assert workspace.drain(spark, KafkaSource(workspace.topic("a"), starting=start(workspace.topic("a")))) == expected
    workspace.send({"a": {0: [("p4", 5)], 1: [("q2", 5)]}})
    # Where the first start began is past; not even a start that nothing fits to matters now.
    later = KafkaSource(workspace.topic("a"), starting=StartOffsets({workspace.topic("a"): {0: 99}}))
    assert workspace.drain(spark, later) == ["p4", "q2"]
    if expected:
        assert values(workspace.read_again(spark, later, 0)) == expected


def test_tasks_share_a_partition_evenly(spark: SparkSession, workspace: Workspace):
    workspace.make(a=1)
    workspace.send({"a": {0: [(f"{number:02}", 0) for number in range(12)]}})
    offsets = (f'{{"{workspace.topic("a")}":{{"0":0}}}}', f'{{"{workspace.topic("a")}":{{"0":12}}}}')

    def per_task(source: KafkaSource) -> list[int]:
        rows = source.batch(spark, workspace.target, *offsets).select(F.spark_partition_id()).collect()
        return sorted(Counter(row[0] for row in rows).values())

    assert per_task(KafkaSource(workspace.topic("a"))) == [12]
    assert per_task(KafkaSource(workspace.topic("a"), min_partitions=3)) == [4, 4, 4]
    assert per_task(KafkaSource(workspace.topic("a"), max_records_per_partition=6)) == [6, 6]


@pytest.mark.parametrize(
    ("declare", "code", "message"),
    [
        (lambda a: KafkaSource([a, f"{a}b"]), "HR-501", "Did you mean"),
        (lambda a: KafkaSource(TopicPattern(f"{a}b+")), "HR-211", "The topics there are"),
        (lambda a: KafkaSource(TopicPartitions({a: [0, 2]})), "HR-211", "has no partition 2. It has 2"),
        (lambda a: KafkaSource(a, starting=StartOffsets({a: {0: 1}})), "HR-212", "No start for: {a}[1]"),
        (
            lambda a: KafkaSource(a, starting=StartOffsets({a: {0: 1, 1: 0, 2: 0}})),
            "HR-212",
            "Not among those that are read",
        ),
        (lambda a: KafkaSource(a, starting=StartOffsets({a: {0: 2, 1: 0}})), "HR-213", "begin at 0 and end before 1"),
        (lambda a: KafkaSource(a, starting=StartTime({a: {0: NOON}})), "HR-212", "No start for: {a}[1]"),
        (
            lambda a: KafkaSource(a, starting=StartTime(NOON)),
            "HR-213",
            "{a}[1] has no record at or after 2026-01-31T12:00",
        ),
    ],
)
def test_what_does_not_fit_the_broker_is_refused_before_the_start(
    workspace: Workspace, declare: Any, code: str, message: str
):
    workspace.make(a=2)
    workspace.send({"a": {0: [("p1", 0)]}})
    with pytest.raises(HeadraceError) as refused:
        workspace.preflight(declare(workspace.topic("a")))
    assert refused.value.code == code
    assert message.format(a=workspace.topic("a")) in str(refused.value)


def test_a_bound_fits_the_records_that_are_there_and_the_memory_of_the_machine(
    spark: SparkSession, workspace: Workspace
):
    workspace.make(rides=2, empty=1)
    workspace.send({"rides": {0: [("x" * 100, 0)], 1: [("y" * 400, 0), ("z" * 400, 1)]}})
    assert KafkaSource(workspace.topic("rides")).record_bytes(workspace.target) == 300
    assert KafkaSource(workspace.topic("empty")).record_bytes(workspace.target) is None
    assert KafkaSource(workspace.topic("no-such-topic")).record_bytes(workspace.target) is None

    # What Spark itself says it has for data: six tenths of the heap without 300 MB.
    heap = int(spark._jvm.java.lang.Runtime.getRuntime().maxMemory())  # type: ignore[union-attr]
    memory = (heap - 300 * 1024 * 1024) * 0.6
    flows = [
        Flow(name, Input(KafkaSource(workspace.topic("rides"), bound), schema=ROW), lambda rows: rows, CollectingSink())
        for name, bound in (("one", AutoBatchSize()), ("two", AutoBatchSize()), ("three", 7))
    ]
    bounded, actual = size_batches(flows, workspace.target, spark)
    # Two of them share the memory; a half of it is for data, and a record of 300 bytes is there twice.
    assert actual["one", "rows"].records == pytest.approx(memory / 2 / 2 / 600, abs=1_000)
    assert [flow.named_inputs["rows"].source for flow in bounded] == [
        KafkaSource(workspace.topic("rides"), actual["one", "rows"].records),
        KafkaSource(workspace.topic("rides"), actual["two", "rows"].records),
        KafkaSource(workspace.topic("rides"), 7),
    ]
