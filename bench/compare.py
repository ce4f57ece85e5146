"""Headrace against PySpark alone, as tutorials write it and tuned by hand, on the same rows in one run.

    python bench/compare.py --quick                       three workloads, within ten minutes on two cores
    python bench/compare.py --only windowed --rows 1000000 --rounds 5 --json windowed.json

A run of Headrace is a run of its application: checks of sources, lease, manifest, counters and audit are in its time.
Starts a broker of its own on loopback, or takes the one given with `--bootstrap`.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from harness import Contender, Floor, Workload, compared, environment, machine, write_json
from plain_spark import TUTORIAL, Job, Style, tuned
from ride_work import PARTITIONS, WATERMARK, Rides, checked, completed, filled, parsed, pass_through, per_city

from headrace import (
    AvailableNow,
    DeltaAppend,
    Flow,
    Input,
    KafkaExactlyOnceSink,
    KafkaSink,
    KafkaSource,
    Noop,
    Target,
    Watermark,
)
from headrace.clients.topics import create_topics
from headrace.flow.sink import Sink
from headrace.operate.run import Application
from headrace.patterns.rides.flows import RIDE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BY_TUTORIAL, BY_HAND, UNCHECKED = "tutorial", "hand-tuned", "hand-tuned, unchecked"
OURS, OURS_ONCE = "Headrace", "Headrace, exactly once"

# Within 3 percent of what a person tunes by hand: one who keeps records out that cannot be read, one who does not look.
_AS_GOOD = (Floor(OURS, BY_HAND, 0.97), Floor(OURS, UNCHECKED, 0.97))
_SLOW = frozenset({BY_TUTORIAL})


class Bench:
    """The workloads over one session and one broker. Topics with rides are filled once per number of rows."""

    def __init__(self, spark: SparkSession, target: Target) -> None:
        self._spark, self._target = spark, target
        self._filled: dict[int, Rides] = {}

    def workloads(self) -> list[Workload]:
        return [
            Workload(
                "windowed",
                "count rides per city in windows of five minutes, update mode, results let go",
                self._windowed,
                (Floor(OURS, BY_TUTORIAL, 8.0), *_AS_GOOD),
                _SLOW,
            ),
            Workload("bronze", "parse rides and append them to a Delta table", self._bronze, _AS_GOOD, _SLOW),
            Workload(
                "kafka",
                "keep completed rides and send them on as JSON; at least once, and Headrace also exactly once",
                self._kafka,
                _AS_GOOD + tuple(Floor(OURS_ONCE, floor.against, floor.ratio) for floor in _AS_GOOD),
                _SLOW,
            ),
        ]

    def _windowed(self, rows: int) -> Mapping[str, Contender]:
        rides = self._rides(rows)
        watermarked = Input(KafkaSource(rides.topic), schema=RIDE, watermark=Watermark("event_time", WATERMARK))
        return {
            BY_TUTORIAL: lambda: Job(*self._at, rides, TUTORIAL).window_into_nothing(per_city),
            BY_HAND: lambda: Job(*self._at, rides, self._tuned(checked)).window_into_nothing(per_city),
            UNCHECKED: lambda: Job(*self._at, rides, self._tuned(parsed)).window_into_nothing(per_city),
            OURS: self._flow(watermarked, per_city, lambda _name: Noop(), "update"),
        }

    def _bronze(self, rows: int) -> Mapping[str, Contender]:
        rides = self._rides(rows)

        def table(name: str) -> str:
            return f"{self._target.lake}/{name}"

        return {
            BY_TUTORIAL: lambda: Job(*self._at, rides, TUTORIAL).into_delta(pass_through, table(_new("plain"))),
            BY_HAND: lambda: Job(*self._at, rides, self._tuned(checked)).into_delta(pass_through, table(_new("tuned"))),
            UNCHECKED: lambda: Job(*self._at, rides, self._tuned(parsed)).into_delta(
                pass_through, table(_new("tuned"))
            ),
            OURS: self._flow(
                Input(KafkaSource(rides.topic), schema=RIDE), pass_through, lambda name: DeltaAppend(table(name))
            ),
        }

    def _kafka(self, rows: int) -> Mapping[str, Contender]:
        rides = self._rides(rows)
        input_ = Input(KafkaSource(rides.topic), schema=RIDE)
        return {
            BY_TUTORIAL: lambda: Job(*self._at, rides, TUTORIAL).into_topic(completed, self._topic(), "driver_id"),
            BY_HAND: lambda: Job(*self._at, rides, self._tuned(checked)).into_topic(
                completed, self._topic(), "driver_id"
            ),
            UNCHECKED: lambda: Job(*self._at, rides, self._tuned(parsed)).into_topic(
                completed, self._topic(), "driver_id"
            ),
            OURS: self._flow(input_, completed, lambda _name: KafkaSink(self._topic(), key="driver_id")),
            OURS_ONCE: self._flow(
                input_, completed, lambda _name: KafkaExactlyOnceSink(self._topic(), key="driver_id")
            ),
        }

    @property
    def _at(self) -> tuple[SparkSession, Target]:
        return self._spark, self._target

    def _tuned(self, read: Callable[[DataFrame], DataFrame]) -> Style:
        return tuned(self._spark.sparkContext.defaultParallelism, read)

    def _flow(
        self,
        input_: Input,
        transform: Callable[[DataFrame], DataFrame],
        sink: Callable[[str], Sink],
        mode: str = "append",
    ) -> Contender:
        def run() -> None:
            name = _new("flow")
            flow = Flow(name, input_, transform, sink(name), trigger=AvailableNow(), output_mode=mode)  # type: ignore[arg-type]
            figures = Application(self._spark, self._target, [flow]).run()[name]
            if figures.error is not None:
                raise figures.error

        return run

    def _rides(self, rows: int) -> Rides:
        if rows not in self._filled:
            self._filled[rows] = filled(self._spark, self._target, rows)
        return self._filled[rows]

    def _topic(self) -> str:
        name = _new("bench-out")
        create_topics(self._target.kafka, {name: PARTITIONS})
        return name


def _new(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:12]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: within ten minutes on two cores")
    parser.add_argument("--only", nargs="*", choices=("windowed", "bronze", "kafka"), help="workloads to run; else all")
    parser.add_argument("--rows", type=int, help="rows of a run (900,000; quick too)")
    parser.add_argument("--rounds", type=int, help="rounds that count (5; quick 3)")
    parser.add_argument("--bootstrap", help="a broker on this machine that is there already")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a floor is missed")
    options = parser.parse_args()
    # Fewer rows would measure how long a query takes to start; more would not go into one batch.
    rows = options.rows or 900_000
    rounds = options.rounds or (3 if options.quick else 5)
    comparisons = []
    with environment(options.bootstrap) as (spark, target):
        for workload in Bench(spark, target).workloads():
            if options.only and workload.name not in options.only:
                continue
            comparison = compared(workload, rows=rows, warm_up_rows=min(rows, 100_000), rounds=rounds)
            print("\n".join(comparison.lines()), flush=True)
            comparisons.append(comparison)
    if options.json:
        write_json(
            options.json,
            {"machine": machine(), "rounds": rounds, "results": [comparison.as_dict() for comparison in comparisons]},
        )
    if options.strict and not all(
        comparison.reached(floor) for comparison in comparisons for floor in comparison.workload.floors
    ):
        sys.exit(1)


if __name__ == "__main__":
    main()
