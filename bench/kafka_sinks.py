"""How fast batches go into Kafka: Spark's own sink against the exactly-once one, with one slot and with several.

    python bench/kafka_sinks.py --rows 500000 --rounds 5 --slots 1 2 4

The same rows and the same transform for each sink, without a query around them: what the sinks themselves cost.
"""

from __future__ import annotations

import argparse
import itertools
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness import Contender, Floor, Workload, compared, environment, machine, write_json
from ride_work import PARTITIONS, RIDE_COLUMNS, completed

from headrace import KafkaExactlyOnceSink, KafkaSink, Target
from headrace.clients.topics import create_topics
from headrace.flow.sink import Batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN = "KafkaSink"


def sinks(spark: SparkSession, target: Target, slots: list[int]) -> Workload:
    """Return the workload: one batch of rides into a topic of its own per sink."""

    def contenders(rows: int) -> Mapping[str, Contender]:
        mark = uuid.uuid4().hex[:8]
        folder = f"{target.lake}/rides-{mark}"
        spark.range(0, rows, 1, PARTITIONS).selectExpr(*RIDE_COLUMNS).write.parquet(folder)
        sinks_by_name = {PLAIN: KafkaSink(f"bench-{mark}-plain", key="driver_id")} | {
            _named(slot_count): KafkaExactlyOnceSink(f"bench-{mark}-{slot_count}", key="driver_id", slots=slot_count)
            for slot_count in slots
        }
        create_topics(target.kafka, dict.fromkeys([sink.topic for sink in sinks_by_name.values()], PARTITIONS))

        def write(sink: KafkaSink | KafkaExactlyOnceSink, numbers: Iterator[int]) -> None:
            sink.write(completed(spark.read.parquet(folder)), Batch(sink.topic, "bench", next(numbers), target))

        # A ledger refuses batches that are not numbered one after the other.
        return {name: partial(write, sink, itertools.count()) for name, sink in sinks_by_name.items()}

    floors = tuple(Floor(_named(slot_count), PLAIN, 0.8) for slot_count in slots if slot_count <= 2)
    return Workload("sinks for Kafka", "one batch of rides, with the key of the driver", contenders, floors)


def _named(slots: int) -> str:
    return f"exactly once, {slots} slots" if slots > 1 else "exactly once, 1 slot"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=500_000, help="rows of a batch")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--slots", type=int, nargs="*", default=[1, 2, 4], help="numbers of slots to try")
    parser.add_argument("--bootstrap", help="a broker on this machine that is there already")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    with environment(options.bootstrap) as (spark, target):
        workload = sinks(spark, target, options.slots)
        comparison = compared(workload, rows=options.rows, warm_up_rows=options.rows, rounds=options.rounds)
    print("\n".join(comparison.lines()))
    if options.json:
        write_json(options.json, {"machine": machine(), "rounds": options.rounds, "results": [comparison.as_dict()]})


if __name__ == "__main__":
    main()
