"""How fast batches go into Kafka: Spark's own sink against the exactly-once one, with one slot and with several.

    python bench/kafka_sinks.py --rows 500000 --rounds 5 --slots 1 2 4

The same rows and the same transform for each sink, in turn, so that a machine that is busy with other things is busy
for all of them. A ratio compares two runs of one round; the first round warms up and does not count. Starts a broker of
its own on loopback, or takes the one given with `--bootstrap`, and removes what it made.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from confluent_kafka.admin import AdminClient

from headrace import KafkaExactlyOnce, KafkaTopic, Target
from headrace.clients.topics import create_topics
from headrace.flow.sink import Batch
from headrace.runtime.session import open_session
from headrace.stack.jars import JarCache
from headrace.stack.local import LocalStack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
PLAIN = "KafkaTopic"

# A ride of about 200 bytes as JSON.
RIDE = (
    "id as ride_id",
    "concat('driver-', pmod(xxhash64(id), 5000)) as driver_id",
    "concat('city ', id % 50) as city",
    "timestamp_millis(1760000000000 + id) as requested_at",
    "round(rand(7) * 30, 2) as distance_km",
    "round(rand(8) * 90, 2) as fare",
    "if(id % 3 = 0, 'card', 'cash') as payment",
    "array('accepted', 'completed')[id % 2] as status",
)


def transformed(rides: DataFrame) -> DataFrame:
    return rides.where("fare >= 0").selectExpr("*", "round(fare / greatest(distance_km, 0.1), 2) as fare_per_km")


@contextmanager
def broker(given: str | None, home: Path) -> Iterator[str]:
    if given:
        yield given
        return
    stack = LocalStack(home)
    try:
        yield stack.up().bootstrap
    finally:
        stack.wipe()


def cpu_seconds() -> float:
    """What this process and all below it have used: the driver, the JVM, the Python workers. Not the broker."""
    used = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += times.user + times.system + times.children_user + times.children_system
    return used


def measured(run: Callable[[], None]) -> tuple[float, float]:
    cpu, began = cpu_seconds(), time.monotonic()
    run()
    return time.monotonic() - began, cpu_seconds() - cpu


def compared(spark: SparkSession, target: Target, rows: int, rounds: int, slots: list[int]) -> dict[str, object]:
    mark = uuid.uuid4().hex[:8]
    source = f"{target.lake}/rides"
    spark.range(0, rows, 1, PARTITIONS).selectExpr(*RIDE).write.parquet(source)
    sinks = {PLAIN: KafkaTopic(f"bench-{mark}-plain", key="driver_id")} | {
        f"KafkaExactlyOnce, {each} slot(s)": KafkaExactlyOnce(f"bench-{mark}-{each}", key="driver_id", slots=each)
        for each in slots
    }
    topics = [sink.topic for sink in sinks.values()]
    create_topics(target.kafka, dict.fromkeys(topics, PARTITIONS))
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in sinks}
    try:
        for number in range(rounds + 1):
            for name, sink in sinks.items():
                batch = Batch(sink.topic, "bench", number, target)
                figures = measured(lambda: sink.write(transformed(spark.read.parquet(source)), batch))  # noqa: B023
                if number > 0:
                    runs[name].append(figures)
    finally:
        admin = AdminClient(dict(target.kafka))
        for answer in admin.delete_topics([*topics, *(f"headrace-ledger-{each}" for each in topics[1:])]).values():
            answer.result()
    return {
        name: {
            "rows_per_second": round(rows / statistics.median(wall for wall, _ in taken)),
            "cpu_seconds_per_million": round(statistics.median(cpu for _, cpu in taken) / rows * 1e6, 1),
            "ratio": round(
                statistics.median(own[0] / each[0] for own, each in zip(runs[PLAIN], taken, strict=True)), 2
            ),
            "cpu_ratio": round(
                statistics.median(own[1] / each[1] for own, each in zip(runs[PLAIN], taken, strict=True)), 2
            ),
        }
        for name, taken in runs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=500_000, help="rows of a batch")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--slots", type=int, nargs="*", default=[1, 2, 4], help="numbers of slots to try")
    parser.add_argument("--bootstrap", help="a broker on this machine that is there already")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder, broker(given.bootstrap, Path(folder)) as at:
        target = Target(
            "bench",
            lake=f"{folder}/lake",
            checkpoints=f"{folder}/cp",
            kafka={"bootstrap.servers": at},
            master="local[*]",
        )
        cache = JarCache()
        cache.sync(("spark",))
        spark = open_session(target, cache.verify("spark"), app_name="headrace-bench", log=Path(folder) / "jvm.log")
        try:
            found = compared(spark, target, given.rows, given.rounds, given.slots)
        finally:
            spark.stop()
    if given.json:
        print(json.dumps({"rows": given.rows, "rounds": given.rounds, "cores": os.cpu_count(), "sinks": found}))
        return
    print(f"{given.rows:,} rows per batch, {given.rounds} rounds, {os.cpu_count()} cores")
    print(f"{'sink':32} {'rows/s':>10} {'ratio':>6} {'cpu s/M rows':>13} {'cpu ratio':>10}")
    for name, figures in found.items():
        rate, cpu, ratio, cpu_ratio = (
            figures[each] for each in ("rows_per_second", "cpu_seconds_per_million", "ratio", "cpu_ratio")
        )  # type: ignore[index]
        print(f"{name:32} {rate:>10,} {ratio:>6} {cpu:>13} {cpu_ratio:>10}")


if __name__ == "__main__":
    main()
