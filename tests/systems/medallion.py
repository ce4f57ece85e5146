"""The medallion on a real broker: what its tests send, run and compare."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from headrace.audit.flow_audit import quarantine_table
from headrace.clients.topics import create_topics
from headrace.demos.compare import Row, table_rows
from headrace.demos.feeder import generate
from headrace.demos.records_demo import read_records
from headrace.flow.flow import SINGLE_INPUT, Flow
from headrace.flow.levers import AvailableNow, Every
from headrace.flow.target import Target
from headrace.operate.run import Application, FlowMetrics
from headrace.patterns.medallion import model
from headrace.patterns.medallion.flows import MedallionSettings, flows
from headrace.patterns.medallion.generator import generator
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.sinks.delta.policy import TablePolicy
from headrace.sources.delta.bronze import BronzeSource
from systems.past_traffic import NOW, Past

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


RETAINED = {"delta.logRetentionDuration": "interval 3650 days", "delta.checkpointInterval": "100"}


KILLED = "layers-killed"
# The flows of the driver that is killed, each with the batch in which that happens.
KILLED_IN = {"bronze": 3, "silver": 1, "gold": 0}


def settings_for(name: str) -> MedallionSettings:
    return MedallionSettings(
        topic=f"{name}-orders",
        max_offsets=1500,
        max_files=4,
        bronze_trigger=AvailableNow(),
        silver_trigger=AvailableNow(),
        gold_trigger=AvailableNow(),
        silver_policy=TablePolicy(RETAINED, retention=None, small_files=2),
    )


def flows_to_kill() -> list[Flow]:
    """Return the flows of the driver that is killed: silver and gold read what the layer before has written so far."""
    soon = Every("1 second")
    small = replace(settings_for(KILLED), max_offsets=100, bronze_trigger=soon)
    return flows(replace(small, silver_trigger=soon, gold_trigger=soon))


def send_before_the_kill(target: Target) -> None:
    filled(target, settings_for(KILLED), rate=1)


def filled(target: Target, settings: MedallionSettings, *, rate: float) -> int:
    """Make the topic, send orders of an hour and a half, and return how many there are."""
    create_topics(target.kafka, {settings.topic: 2})
    records = generator(rate=rate, late=0.03, duplicates=0.02, malformed=0.02, seed=11)
    return generate(Past(records, hours=1.5), target, topic=settings.topic).records


def send(target: Target, topic: str, order: Mapping[str, object], headers: Mapping[str, bytes]) -> None:
    producer = Producer({"bootstrap.servers": target.kafka["bootstrap.servers"], "partitioner": "murmur2_random"})
    now = round(NOW.timestamp() * 1000)
    producer.produce(topic, json.dumps(order).encode(), b"c-1", timestamp=now, headers=dict(headers))
    assert producer.flush(10) == 0


def run_layers(spark: SparkSession, target: Target, layers: list[Flow]) -> dict[str, FlowMetrics]:
    """Run one layer to its end after the other."""
    figures = {flow.name: Application(spark, target, [flow]).run()[flow.name] for flow in layers}
    assert {name: figure.error for name, figure in figures.items()} == dict.fromkeys(figures)
    return figures


def forget_all_behind_bronze(target: Target, settings: MedallionSettings) -> None:
    for name in ("silver", "gold"):
        shutil.rmtree(target.flow_folder(name))
    for path in (settings.silver_table, settings.gold_table):
        shutil.rmtree(target.table(path))
    shutil.rmtree(quarantine_table(target, "silver"))


def quarantined(spark: SparkSession, target: Target) -> list[Row]:
    return table_rows(spark, "delta", quarantine_table(target, "silver"))


def order_of(row: Row) -> dict[str, str]:
    value = row["value"]
    assert isinstance(value, bytes | bytearray)
    return json.loads(bytes(value))


def rows_of(spark: SparkSession, target: Target, path: str) -> list[Row]:
    return table_rows(spark, "delta", target.table(path))


def violations(spark: SparkSession, target: Target, settings: MedallionSettings, first: int) -> dict[str, int]:
    """Return how many rows of silver's batches, from the first to the last, break each rule."""
    checkpoint, source = silver_checkpoint(target), flows(settings)[1].named_inputs[SINGLE_INPUT].source
    assert isinstance(source, BronzeSource)
    end = checkpoint.offset_entry(checkpoint.committed_batches()[-1]).offsets[0]
    start = checkpoint.offset_entry(first - 1).offsets[0] if first else source.start_offset(end or "")
    read = {(row["partition"], row["offset"]) for row in source.batch(spark, target, start or "", end or "").collect()}
    records = [record for record in read_records(target, settings.topic) if (record.partition, record.offset) in read]
    return dict(model.silver(records).violations)


def silver_checkpoint(target: Target) -> Checkpoint:
    return Checkpoint.of("silver", target)
