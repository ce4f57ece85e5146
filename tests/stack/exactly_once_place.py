"""Where the tests of exactly-once into Kafka write to, and what they write."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.clients.kafka import read_topic
from headrace.clients.topics import create_topics
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.sinks.batch.ledger import LedgerEntry
from headrace.sinks.kafka.exactly_once import KafkaExactlyOnceSink
from headrace.sinks.kafka.ledger import create_ledger, last_entries
from headrace.sinks.kafka.transaction import TransactionSlot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from conftest import Broker


class Place:
    """A topic, a ledger and a flow of one test, all named after it."""

    def __init__(self, name: str, target: Target) -> None:
        self.name, self.target = name, target
        create_topics(target.kafka, {name: 2})
        self.sink = KafkaExactlyOnceSink(name, key="city")

    @classmethod
    def of(cls, request: pytest.FixtureRequest, broker: Broker, folder: Path) -> Place:
        words = request.node.name.removeprefix("test_").replace("_", "-").partition("[")[0]
        # Names that begin alike, in another file too, must not share a topic of the broker that all tests share.
        name = f"{words[:50]}-{zlib.crc32(request.node.nodeid.encode()):08x}"
        kafka = {"bootstrap.servers": broker.bootstrap}
        return cls(name, Target("test", lake=str(folder / "lake"), checkpoints=str(folder / "cp"), kafka=kafka))

    def batch(self, number: int, query_id: str = "q1", **more: Any) -> Batch:
        return Batch(self.name, query_id, number, self.target, **more)

    @property
    def ledger(self) -> str:
        return f"headrace-ledger-{self.name}"

    def slot(self, number: int) -> TransactionSlot:
        """Return what a task sends of a batch, for those tests that look at the transaction without Spark."""
        create_ledger(self.target, self.ledger)
        return TransactionSlot(self.batch(number), self.name, self.ledger)

    def stored_ids(self) -> list[int]:
        """Return the ids that a reader of committed records sees."""
        return sorted(json.loads(message.value() or b"")["id"] for message in read_topic(self.target, self.name))

    def recorded(self) -> LedgerEntry | None:
        return last_entries(self.target, self.ledger, f"hr.test.{self.name}.0", [0], 10).get(0)


def rows(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(item, f"city {item % 2}") for item in ids], "id long, city string")
