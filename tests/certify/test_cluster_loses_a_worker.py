"""Flows on a real standalone cluster, one of whose workers dies in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster_run import target_for
from confluent_kafka import Producer
from standalone_cluster import standalone_cluster

from headrace.clients.kafka import read_topic
from headrace.clients.topics import create_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]

FLOWS = ("doubled", "minutes", "copied")
READINGS = 12_000
PER_BATCH = 1_500
START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def reading(number: int) -> dict[str, object]:
    at = START + timedelta(milliseconds=100 * number)
    return {"id": number, "sensor": f"s{number * 7 % 13}", "at": at.isoformat(), "value": number * number % 101}


def send(topic: str, bootstrap: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        each = reading(number)
        producer.produce(topic, json.dumps(each), str(each["sensor"]))
        producer.poll(0)
    assert producer.flush(30) == 0


def count(read: dict[str, int], batch: dict[str, object]) -> None:
    read[str(batch["flow"])] = int(str(batch["read"]))


def test_a_worker_that_dies_loses_nothing_and_doubles_nothing(broker: Broker, spark: SparkSession, tmp_path: Path):
    name, half = "cluster", READINGS // 2
    kafka = {"bootstrap.servers": broker.bootstrap}
    create_topics(kafka, {f"{name}-readings": 2, f"{name}-copy": 2})
    send(f"{name}-readings", broker.bootstrap, range(half))

    read = dict.fromkeys(FLOWS, 0)
    with standalone_cluster(tmp_path / "cluster", workers=2) as cluster:
        target = target_for(tmp_path, broker.bootstrap, cluster.master)
        script = Path(__file__).with_name("cluster_run.py")
        arguments = [name, str(PER_BATCH), str(READINGS), tmp_path, broker.bootstrap, cluster.master]
        with subprocess.Popen([sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdout is not None
            batches = (json.loads(line) for line in driver.stdout)
            try:
                while any(read[flow] < half for flow in FLOWS):
                    count(read, next(batches))
                send(f"{name}-readings", broker.bootstrap, range(half, READINGS))
                count(read, next(batches))
                cluster.workers[0].die()
                left = {flow: READINGS - read[flow] for flow in FLOWS}
                for batch in batches:
                    count(read, batch)
            except BaseException:
                driver.kill()
                raise
        assert driver.wait() == 0, (tmp_path / "spark.log").read_text()[-4000:]

    # The worker died in the middle: it had an executor, and every flow had records to read.
    assert "Lost executor" in (tmp_path / "spark.log").read_text()
    assert all(left[flow] > 0 for flow in FLOWS), left
    assert read == dict.fromkeys(FLOWS, READINGS)

    sent = [reading(number) for number in range(READINGS)]
    expected = [(each["id"], each["sensor"], each["value"] * 2) for each in sent if each["id"] % 2 == 0]
    table = spark.read.format("delta").load(target.table("doubled"))
    assert sorted(tuple(row) for row in table.collect()) == sorted(expected)

    minutes: dict[tuple[datetime, object], list[int]] = {}
    for each in sent:
        minute = datetime.fromisoformat(each["at"]).replace(second=0, microsecond=0)
        figures = minutes.setdefault((minute, each["sensor"]), [0, 0])
        figures[0] += 1
        figures[1] += each["value"]
    rows = (
        spark.read.format("delta")
        .load(target.table("minutes"))
        .selectExpr("unix_seconds(minute) AS minute", "sensor", "readings", "total")
    )
    assert sorted(tuple(row) for row in rows.collect()) == sorted(
        (int(minute.timestamp()), sensor, readings, total) for (minute, sensor), (readings, total) in minutes.items()
    )

    copies = [json.loads(message.value() or b"") for message in read_topic(target, f"{name}-copy")]
    assert sorted((each["id"], each["sensor"]) for each in copies) == [(each["id"], each["sensor"]) for each in sent]
