"""Three flows on a cluster until each has read a number of records, as a driver process of its own."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from headrace import (
    DeltaAppend,
    DeltaUpsert,
    Flow,
    Input,
    KafkaExactlyOnceSink,
    KafkaSource,
    OutputMode,
    Target,
    Watermark,
)
from headrace.clients.kafka import read_topic
from headrace.operate.run import Application, open_application
from headrace.runtime.events import BatchCommitted, FlowEvent
from systems.standalone_cluster import SHORT_LIVED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of a process that runs this module as a program.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
FLOWS = ("doubled", "minutes", "copied")
READING = StructType(
    [
        StructField("id", LongType(), nullable=False),
        StructField("sensor", StringType(), nullable=False),
        StructField("at", TimestampType(), nullable=False),
        StructField("value", LongType(), nullable=False),
    ]
)


def doubled(rows: DataFrame) -> DataFrame:
    """Pass every second reading on, with a column that Python workers on the executors compute."""
    double = F.udf(lambda value: value * 2, LongType())
    return rows.where("id % 2 = 0").select("id", "sensor", double("value").alias("double"))


def per_minute(rows: DataFrame) -> DataFrame:
    """Count and add up the readings of each sensor and minute."""
    minute = F.window("at", "1 minute")
    return (
        rows.groupBy(minute, "sensor")
        .agg(F.count("*").alias("readings"), F.sum("value").alias("total"))
        .select(F.col("window.start").alias("minute"), "sensor", "readings", "total")
    )


def flows_for(name: str, max_offsets: int) -> list[Flow]:
    plain = Input(KafkaSource(f"{name}-readings", max_offsets_per_trigger=max_offsets), schema=READING)
    timed = Input(plain.source, schema=READING, watermark=Watermark("at", "1 hour"))
    return [
        Flow("doubled", plain, doubled, DeltaAppend("doubled")),
        Flow(
            "minutes",
            timed,
            per_minute,
            DeltaUpsert("minutes", key=("minute", "sensor"), sequence="readings"),
            output_mode=OutputMode.UPDATE,
        ),
        Flow(
            "copied",
            plain,
            lambda rows: rows.select("id", "sensor"),
            KafkaExactlyOnceSink(f"{name}-copy", key="sensor"),
        ),
    ]


def target_for(folder: Path, bootstrap: str, master: str) -> Target:
    spark = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "768m",
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        "spark.ui.enabled": "false",
        # The flows begin when both executors are there, so that the one that dies has had its share.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    return Target(
        "cluster",
        lake=str(folder / "lake"),
        checkpoints=str(folder / "checkpoints"),
        master=master,
        kafka={"bootstrap.servers": bootstrap},
        spark=spark,
    )


START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def reading(number: int) -> dict[str, object]:
    at = START + timedelta(milliseconds=100 * number)
    return {"id": number, "sensor": f"s{number * 7 % 13}", "at": at.isoformat(), "value": number * number % 101}


def send(topic: str, bootstrap: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        record = reading(number)
        producer.produce(topic, json.dumps(record), str(record["sensor"]))
        producer.poll(0)
    assert producer.flush(30) == 0


def count(read: dict[str, int], batch: dict[str, object]) -> None:
    read[str(batch["flow"])] = int(str(batch["read"]))


def require_results(spark: SparkSession, target: Target, name: str, readings: int) -> None:
    """Compare the tables and the topic with what the readings make in plain Python."""
    sent = [reading(number) for number in range(readings)]
    expected = [(item["id"], item["sensor"], item["value"] * 2) for item in sent if item["id"] % 2 == 0]
    table = spark.read.format("delta").load(target.table("doubled"))
    assert sorted(tuple(row) for row in table.collect()) == sorted(expected)

    minutes: dict[tuple[datetime, object], list[int]] = {}
    for item in sent:
        minute = datetime.fromisoformat(item["at"]).replace(second=0, microsecond=0)
        figures = minutes.setdefault((minute, item["sensor"]), [0, 0])
        figures[0] += 1
        figures[1] += item["value"]
    rows = (
        spark.read.format("delta")
        .load(target.table("minutes"))
        .selectExpr("unix_seconds(minute) AS minute", "sensor", "readings", "total")
    )
    assert sorted(tuple(row) for row in rows.collect()) == sorted(
        (int(minute.timestamp()), sensor, readings, total) for (minute, sensor), (readings, total) in minutes.items()
    )

    copies = [json.loads(message.value() or b"") for message in read_topic(target, f"{name}-copy")]
    assert sorted((item["id"], item["sensor"]) for item in copies) == [(item["id"], item["sensor"]) for item in sent]


class Until:
    """Tells of every batch, and drains the application when every flow has read all records."""

    def __init__(self, application: Application, records: int) -> None:
        self._application, self._records = application, records
        self._read: Counter[str] = Counter()

    def __call__(self, event: FlowEvent) -> None:
        if isinstance(event, BatchCommitted):
            self._read[event.flow] = _position(event)
            print(json.dumps({"flow": event.flow, "read": self._read[event.flow]}), flush=True)  # noqa: T201
            if len(self._read) == 3 and set(self._read.values()) == {self._records}:
                self._application.drain()


def _position(event: BatchCommitted) -> int:
    """Return how many records of the topic lie behind the flow.

    Spark's count of rows will not do: where the files of a lost executor are recomputed, it counts rows twice.
    """
    (source,) = json.loads(str(event.progress["json"]))["sources"]
    return sum(offset for partitions in source["endOffset"].values() for offset in partitions.values())


def main() -> None:
    name, max_offsets, records, folder, bootstrap, master = sys.argv[1:]
    target = target_for(Path(folder), bootstrap, master)
    application, _spark = open_application(flows_for(name, int(max_offsets)), target, log=Path(folder) / "spark.log")
    application.bus.subscribe(Until(application, int(records)))
    failed = [figures.error for figures in application.run().values() if figures.error]
    if failed:
        sys.exit(str(failed[0]))


if __name__ == "__main__":
    main()
