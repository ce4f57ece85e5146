"""A topic that becomes idle, on a real broker: its last window closes, and later records are counted right."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from headrace import Every, Flow, Input, KafkaSource, Memory, RocksDB, Target, Watermark
from headrace.clients.topics import create_topics
from headrace.operate.run import Application
from headrace.runtime.events import BatchCommitted, FlowEvent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.spark, pytest.mark.stack]

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
# The first query of a session takes seconds to begin, on a busy machine many of them.
PATIENCE_SECONDS = 240.0
RIDE = StructType([StructField("id", LongType(), nullable=False), StructField("at", TimestampType(), nullable=False)])


def test_the_last_window_of_an_idle_topic_closes(broker: Broker, spark: SparkSession, tmp_path: Path):
    topic = "a-topic-that-goes-quiet"
    target = Target(
        "test",
        lake=str(tmp_path / "lake"),
        checkpoints=str(tmp_path / "checkpoints"),
        kafka={"bootstrap.servers": broker.bootstrap},
    )
    # Two partitions, one of them always empty: it must not hold anything back either.
    create_topics(target.kafka, {topic: 2})

    def send(*minutes: float) -> None:
        producer = Producer(dict(target.kafka))
        for number, minute in enumerate(minutes):
            value = json.dumps({"id": number, "at": (NOON + timedelta(minutes=minute)).isoformat()})
            producer.produce(topic, value, partition=0)
        assert producer.flush(30) == 0

    clock, expected, met = {"minute": 8.0}, {"in": 3, "out": 1}, threading.Event()
    observed = {"in": 0, "out": 0}

    def on_event(event: FlowEvent) -> None:
        if isinstance(event, BatchCommitted):
            observed["in"] += event.rows_in
            observed["out"] += event.rows_out
            if observed["in"] >= expected["in"] and observed["out"] >= expected["out"]:
                met.set()

    sink = Memory()
    rides = Flow(
        "quiet",
        Input(KafkaSource(topic), schema=RIDE, watermark=Watermark("at", "1 minute", idle_timeout="2 seconds")),
        lambda rows: rows.groupBy(F.window("at", "5 minutes")).count().select(F.minute("window.start"), "count"),
        sink,
        trigger=Every("100 ms"),
        state=RocksDB(shuffle_partitions=1),
    )
    send(1, 2, 6)
    application = Application(
        spark, target, [rides], clock=lambda: round((NOON + timedelta(minutes=clock["minute"])).timestamp() * 1000)
    )
    application.bus.subscribe(on_event)
    figures = {}
    running = threading.Thread(target=lambda: figures.update(application.run()))
    running.start()
    try:
        assert met.wait(PATIENCE_SECONDS), observed
        assert sorted(map(tuple, sink.rows())) == [(0, 2)]
        # In this order: a batch without rows may be reported between any two of these.
        expected["out"] = 2
        met.clear()
        clock["minute"] = 20
        assert met.wait(PATIENCE_SECONDS), observed
        assert sorted(map(tuple, sink.rows())) == [(0, 2), (5, 1)]
        expected["in"] = 5
        met.clear()
        send(20, 21)
        assert met.wait(PATIENCE_SECONDS), observed
    finally:
        application.drain()
        running.join(PATIENCE_SECONDS)
    assert (figures["quiet"].rows_in, figures["quiet"].late, figures["quiet"].error) == (5, 0, None)
