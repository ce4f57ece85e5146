"""Continuous and real-time processing on a real broker: rows arrive or are quarantined, a restart loses none."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from headrace import (
    AvailableNow,
    Continuous,
    DeltaAppend,
    Flow,
    HeadraceError,
    Input,
    KafkaSink,
    KafkaSource,
    RealTime,
    Target,
)
from headrace.audit.flow_audit import quarantine_table
from headrace.clients.kafka import new_consumer, read_topic
from headrace.clients.topics import create_topics
from headrace.flow.checks import matrix
from headrace.flow.checks.matrix import Compatibility
from headrace.flow.checks.operators import OperatorKind
from headrace.flow.levers import Trigger
from headrace.operate.run import Application, FlowMetrics, as_available_now
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.continuous import record_start_offsets
from headrace.runtime.events import BatchCommitted, FlowEvent
from headrace.runtime.supervisor import Backoff
from operator_examples import EXAMPLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]

# A real-time batch is five seconds at the least, and the first query of a session takes seconds to begin.
PATIENCE_SECONDS = 180.0

ROW = StructType([StructField("id", StringType(), nullable=False), StructField("n", IntegerType())])


def even(rows: DataFrame) -> DataFrame:
    return rows.where("n % 2 = 0")


def even_by_the_long_way(rows: DataFrame) -> DataFrame:
    """Take the same rows as `even`, through everything that real-time mode can do besides columns and filters."""
    halves = rows.sparkSession.range(2).select(F.col("id").cast("int").alias("half"), (F.col("id") == 0).alias("even"))
    return (
        rows.withColumn("each", F.explode(F.array("n")))
        .withColumn("half", F.pmod("each", F.lit(2)))
        .join(F.broadcast(halves), "half")
        .where(F.col("even") & (F.current_timestamp() > F.lit("2026-01-01").cast("timestamp")))
        .select("id", "n")
    )


def flow(name: str, trigger: Trigger, **changes: object) -> Flow:
    declared: dict[str, object] = {
        "name": name.replace("-", "_"),
        "inputs": Input(KafkaSource(name), schema=ROW),
        "transform": even,
        "sink": KafkaSink(f"{name}-out", key="id"),
        "trigger": trigger,
        "output_mode": "update",
    }
    return Flow(**(declared | changes))  # type: ignore[arg-type]


def target(broker: Broker, folder: Path) -> Target:
    return Target(
        "test",
        lake=str(folder / "lake"),
        checkpoints=str(folder / "checkpoints"),
        kafka={"bootstrap.servers": broker.bootstrap},
    )


def send(place: Target, topic: str, numbers: range, *rubbish: bytes) -> None:
    producer = Producer({"bootstrap.servers": place.kafka["bootstrap.servers"]})
    for value in [*(json.dumps({"id": str(n), "n": n}).encode() for n in numbers), *rubbish]:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def await_ids(place: Target, topic: str, expected: set[str]) -> None:
    """Return when every one of these ids has arrived, in whatever order."""
    consumer = new_consumer(place)
    consumer.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + PATIENCE_SECONDS
    missing = set(expected)
    try:
        while missing and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                missing.discard(json.loads(message.value() or b"")["id"])
    finally:
        consumer.close()
    assert missing == set()


def ids(place: Target, topic: str) -> list[str]:
    return [json.loads(message.value() or b"")["id"] for message in read_topic(place, topic)]


class Run:
    """One run of a flow on a thread of its own."""

    def __init__(self, spark: SparkSession, place: Target, created: Flow) -> None:
        self._application = Application(spark, place, [created], backoff=Backoff(attempts=0))
        self._rows, self._committed = 0, threading.Condition()
        self._application.bus.subscribe(self._on_event)
        self._figures: dict[str, FlowMetrics] = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _on_event(self, event: FlowEvent) -> None:
        if isinstance(event, BatchCommitted):
            with self._committed:
                self._rows += event.rows_in
                self._committed.notify_all()

    def _run(self) -> None:
        self._figures.update(self._application.run())

    def await_committed(self, rows: int) -> None:
        """Return when so many rows are committed: by several epochs, and later than they arrive."""
        with self._committed:
            assert self._committed.wait_for(lambda: self._rows >= rows, PATIENCE_SECONDS)

    def drained(self) -> FlowMetrics:
        self._application.drain()
        return self.ended()

    def ended(self) -> FlowMetrics:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        (figures,) = self._figures.values()
        return figures


def run(spark: SparkSession, place: Target, created: Flow) -> FlowMetrics:
    return Run(spark, place, created).ended()


def evens(numbers: range) -> set[str]:
    return {str(n) for n in numbers if n % 2 == 0}


@pytest.mark.parametrize("trigger", [Continuous(), RealTime("5 seconds")], ids=["continuous", "real-time"])
def test_valid_rows_arrive_invalid_ones_are_quarantined_and_a_restart_loses_none(
    spark: SparkSession, broker: Broker, tmp_path: Path, trigger: Trigger
) -> None:
    name = f"unbatched-{type(trigger).__name__.lower()}"
    transform = even_by_the_long_way if isinstance(trigger, RealTime) else even
    place, created = target(broker, tmp_path), flow(name, trigger, transform=transform)
    create_topics(place.kafka, {name: 1, f"{name}-out": 1})
    send(place, name, range(10), b"rubbish", b'{"n": 2}')

    first = Run(spark, place, created)
    await_ids(place, f"{name}-out", evens(range(10)))
    first.await_committed(12)
    figures = first.drained()
    assert (figures.error, figures.rows_in) == (None, 12)
    assert figures.invalid == {"malformed_json": 1, "missing:id": 1}

    send(place, name, range(10, 20))
    second = Run(spark, place, created)
    await_ids(place, f"{name}-out", evens(range(20)))
    assert second.drained().error is None

    # Once more, and this time to the end of what is there.
    send(place, name, range(20, 24), b"more rubbish")
    third = run(spark, place, as_available_now(created))
    assert (third.error, third.invalid) == (None, {"malformed_json": 1})
    assert set(ids(place, f"{name}-out")) == evens(range(24))
    filed = spark.read.format("delta").load(quarantine_table(place, created.name))
    assert filed.count() == filed.select("offset").distinct().count() == 3


def test_batches_do_not_continue_where_continuous_processing_stopped(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    place = target(broker, tmp_path)
    create_topics(place.kafka, {"unbatched-then": 1, "unbatched-then-out": 1})
    send(place, "unbatched-then", range(4))
    created = flow("unbatched-then", Continuous(until_done=True))
    assert run(spark, place, created).error is None

    error = run(spark, place, flow("unbatched-then", AvailableNow())).error
    assert isinstance(error, HeadraceError)
    assert (error.code, '{"unbatched-then":{"0":4}}' in error.state) == ("HR-223", True)


def test_a_flow_that_died_before_its_first_epoch_starts_at_the_same_offsets(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    place = target(broker, tmp_path)
    create_topics(place.kafka, {"unbatched-late": 1, "unbatched-late-out": 1})
    send(place, "unbatched-late", range(4))
    newest = Input(KafkaSource("unbatched-late", starting="latest"), schema=ROW)
    created = flow("unbatched-late", Continuous(until_done=True), inputs=newest)
    # The first start has noted its beginning, and died.
    record_start_offsets(created, place, Checkpoint.of(created.name, place))
    send(place, "unbatched-late", range(4, 8), b"rubbish")

    figures = run(spark, place, created)
    assert (figures.error, figures.rows_in, figures.invalid) == (None, 5, {"malformed_json": 1})
    assert set(ids(place, "unbatched-late-out")) == {"4", "6"}


def by_id(rows: DataFrame) -> DataFrame:
    return rows.groupBy("id").count()


def shouted(rows: DataFrame) -> DataFrame:
    return rows.withColumn("id", F.udf(str.upper, "string")("id"))


REFUSED: dict[str, tuple[Callable[[], Flow], str, str]] = {
    "state": (lambda: flow("unbatched-no", RealTime(), transform=by_id), "HR-203", "HRC-113"),
    "python": (lambda: flow("unbatched-no", RealTime(), transform=shouted), "HR-203", "HRC-113"),
    "state continuously": (lambda: flow("unbatched-no", Continuous(), transform=by_id), "HR-203", "HRC-113"),
    "delta": (lambda: flow("unbatched-no", RealTime(), sink=DeltaAppend("no")), "HR-203", "HRC-108"),
    "append": (lambda: flow("unbatched-no", RealTime(), output_mode="append"), "HR-203", "HRC-114"),
    "slots": (lambda: flow("unbatched-wide", RealTime()), "HR-222", "'unbatched_wide' 4"),
    "slots continuously": (lambda: flow("unbatched-wide", Continuous()), "HR-222", "'unbatched_wide' 4"),
}


def test_what_these_triggers_cannot_do_is_refused_before_spark_sees_it(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    place = target(broker, tmp_path)
    create_topics(place.kafka, {"unbatched-no": 1, "unbatched-no-out": 1, "unbatched-wide": 4, "unbatched-wide-out": 1})
    errors = {case: run(spark, place, make()).error for case, (make, _, _) in REFUSED.items()}
    actual = {case: (error.code, error.why) for case, error in errors.items() if error is not None}
    assert {case: code for case, (code, _) in actual.items()} == {case: code for case, (_, code, _) in REFUSED.items()}
    assert [case for case, (_, why) in actual.items() if REFUSED[case][2] not in why] == []
    assert not list(tmp_path.glob("checkpoints/*/spark/offsets"))


def test_real_time_mode_refuses_what_the_matrix_refuses_there(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    place = target(broker, tmp_path)
    create_topics(place.kafka, {"unbatched-cells": 1, "unbatched-cells-out": 1})
    send(place, "unbatched-cells", range(1))
    kinds = [
        OperatorKind.PYTHON,
        OperatorKind.PYTHON_MAP,
        OperatorKind.REPARTITION,
        OperatorKind.READ_TWICE,
        OperatorKind.AGGREGATE,
        OperatorKind.DEDUP_WITHIN,
    ]
    assert all(matrix.trigger_compatibility(kind)[1].verdict is Compatibility.REFUSED for kind in kinds)
    read = KafkaSource("unbatched-cells").for_continuous().stream(spark, place)
    rows = read.select(F.col("key").cast("string").alias("id"), F.lit(1).alias("n"), F.col("timestamp").alias("at"))
    marked = rows.withWatermark("at", "1 minute")

    def started(kind: OperatorKind) -> StreamingQuery:
        native = KafkaSink("unbatched-cells-out").native_write(EXAMPLES[kind](marked, marked), place)
        writer = native.rows.writeStream.format(native.format).options(**native.options).outputMode("update")
        writer = writer.option("checkpointLocation", str(tmp_path / kind.name))
        return writer.trigger(realTime="5 seconds").start()  # type: ignore[call-overload,no-any-return]

    queries = {kind: started(kind) for kind in kinds}
    for kind, query in queries.items():
        with pytest.raises(StreamingQueryException, match="STREAMING_REAL_TIME_MODE"):
            query.awaitTermination(PATIENCE_SECONDS)
        assert not query.isActive, kind


def test_spark_itself_leaves_partitions_without_a_slot_unread(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """What the refusal is for: Spark takes the query, says that it runs, and rows are not there."""
    place = target(broker, tmp_path)
    create_topics(place.kafka, {"unbatched-four": 4, "unbatched-rest": 1})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(4):
        producer.produce("unbatched-four", json.dumps({"id": str(partition)}), partition=partition)
    assert producer.flush(30) == 0
    native = KafkaSink("unbatched-rest").native_write(
        KafkaSource("unbatched-four")
        .for_continuous()
        .stream(spark, place)
        .select(F.get_json_object(F.col("value").cast("string"), "$.id").alias("id")),
        place,
    )
    query = (
        native.rows.writeStream.format(native.format)
        .options(**native.options)
        .option("checkpointLocation", str(tmp_path / "raw"))
        .trigger(continuous="1 second")
        .start()
    )
    try:
        # Two of the four are read by the two slots, concurrently; four seconds are four epochs.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(ids(place, "unbatched-rest")) < 2 and time.monotonic() < deadline:
            query.awaitTermination(0.2)
        query.awaitTermination(4)
        assert (query.isActive, len(ids(place, "unbatched-rest"))) == (True, 2)
    finally:
        query.stop()
    assert not (tmp_path / "raw" / "commits" / "0").exists()
