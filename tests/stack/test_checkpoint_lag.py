"""How far behind its topic a checkpoint is, asked of a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from headrace.clients.topics import create_topics
from headrace.flow.target import Target
from headrace.operate.checkpoint.offsets import next_reads
from headrace.runtime.checkpoint.checkpoint import Checkpoint

if TYPE_CHECKING:
    from conftest import Broker

pytestmark = pytest.mark.stack


def test_the_end_of_each_partition_is_shown_and_a_new_partition_counts_from_its_start(broker: Broker, tmp_path: Path):
    kafka = {"bootstrap.servers": broker.bootstrap}
    create_topics(kafka, {"lag": 3})
    producer = Producer(kafka)
    for partition, records in enumerate((5, 7, 2)):
        for number in range(records):
            producer.produce("lag", str(number).encode(), partition=partition)
    assert producer.flush(30) == 0
    # Partition 2 was added after the only batch.
    spark = tmp_path / "reader" / "spark"
    (spark / "offsets").mkdir(parents=True)
    (spark / "commits").mkdir()
    (spark / "offsets/0").write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":0}\n{"lag":{"0":5,"1":3}}')
    (spark / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    target = Target("dev", lake="unused", checkpoints=str(tmp_path), kafka=kafka)

    [source] = next_reads(Checkpoint.of("reader", target), target, ["rows"])

    reads = [(item.place, item.start, item.latest, item.records) for item in source.ranges]
    assert reads == [("lag[0]", 5, 5, 0), ("lag[1]", 3, 7, 4), ("lag[2]", 0, 2, 2)]
    assert source.unknown is None
