"""How the IoT pattern takes more readings than one batch may hold, and a device that sends nearly all of them.

    python bench/iot.py --only skew --rows 200000 --rounds 3
    python bench/iot.py --only sustained --rate 3000 --for 180

- skew: the same number of readings twice, a fifth of them by one device, then nine tenths. Each flow drains both topics
  in turn. Reported: how much longer the second one takes.
- sustained: a backlog of four batches, and readings that continue to arrive. Reported: the size and the time of every
  batch, and how many readings wait behind it. The bound holds when no batch is larger, and less waits at the end.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from harness import environment, machine, measured, write_json

from headrace import AvailableNow, Every, Target
from headrace.clients.topics import create_topics
from headrace.demos.feeder import generate
from headrace.flow.flow import Flow
from headrace.operate.run import Application
from headrace.patterns.iot.flows import IotSettings, flows
from headrace.patterns.iot.generator import IotTraffic
from headrace.runtime.events import BatchCommitted, FlowEvent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
EVEN, HOT = 0.2, 0.9
_RATE = 200.0  # readings a second of the past
_NOTHING = timedelta(0)


def settings_for(name: str, target: Target) -> IotSettings:
    """Return the pattern with topics and a table of its own, which are made."""
    settings = IotSettings(
        f"{name}-telemetry", gold_table=name, alerts_topic=f"{name}-alerts", status_topic=f"{name}-status"
    )
    create_topics(target.kafka, dict.fromkeys(settings.topics, PARTITIONS))
    return settings


def named(flow: Flow, name: str) -> Flow:
    """Return the flow under another name: a checkpoint of its own."""
    return replace(flow, name=name)


# ---- skew ----


def skew(spark: SparkSession, target: Target, rows: int, rounds: int) -> dict[str, object]:
    """Drain an even topic and one with a hot device, in turn, with each flow."""
    topics = dict[float, IotSettings]()
    for busiest in (EVEN, HOT):
        topics[busiest] = settings_for(f"skew-{busiest:g}", target)
        readings = IotTraffic(rate=_RATE, busiest=busiest)
        generate(readings, target, topic=topics[busiest].topic, backfill=timedelta(seconds=rows / _RATE), live=_NOTHING)
    ratios_by_flow = dict[str, object]()
    for number, flow in enumerate(flows()):
        ratios = list[float]()
        for turn in range(-1, rounds):
            took = {}
            for busiest in (EVEN, HOT) if turn % 2 else (HOT, EVEN):
                took[busiest] = _drained(spark, target, topics[busiest], number, turn)
            if turn >= 0:
                ratios.append(took[HOT] / took[EVEN])
            print(f"  {flow.name}: even {took[EVEN]:.1f} s, hot {took[HOT]:.1f} s", file=sys.stderr)
        ratios_by_flow[flow.name] = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
        print(
            f"{flow.name}: {HOT:.0%} of the readings by one device take {statistics.median(ratios):.2f} times the time "
            f"({min(ratios):.2f}-{max(ratios):.2f})"
        )
    return ratios_by_flow


def _drained(spark: SparkSession, target: Target, topic: IotSettings, number: int, turn: int) -> float:
    name = f"{topic.gold_table.replace('.', '-')}-{number}-{turn + 1}"
    own = replace(topic, trigger=AvailableNow(), gold_table=name, status_topic=name)
    create_topics(target.kafka, {name: PARTITIONS})
    flow = named(flows(own)[number], name)

    def drain() -> None:
        error = Application(spark, target, [flow]).run()[name].error
        if error is not None:
            raise error

    return measured(drain, 1).wall


# ---- sustained ----


def sustained(spark: SparkSession, target: Target, rate: float, seconds: float, bound: int) -> dict[str, object]:
    """Begin with a backlog of four batches, let readings continue to arrive, and return the time of every batch."""
    settings = replace(settings_for("sustained", target), max_offsets=bound, trigger=Every("10 seconds"))
    readings = IotTraffic(rate=rate)
    generate(readings, target, topic=settings.topic, backfill=timedelta(seconds=4 * bound / rate), live=_NOTHING)
    application = Application(spark, target, flows(settings))
    began, taken, batches = time.monotonic(), dict[str, int](), list[dict[str, object]]()
    stop = threading.Event()

    def record_batch(event: FlowEvent) -> None:
        if isinstance(event, BatchCommitted) and event.rows_in:
            at = time.monotonic() - began
            taken[event.flow] = taken.get(event.flow, 0) + event.rows_in
            waiting = 4 * bound + int(min(at, seconds) * rate) - taken[event.flow]
            batches.append(
                {
                    "flow": event.flow,
                    "at": round(at),
                    "rows": event.rows_in,
                    "ms": event.duration_ms,
                    "waiting": waiting,
                }
            )
            print(
                f"  {at:4.0f} s  {event.flow:16} {event.rows_in:>8,} rows  {event.duration_ms / 1000:5.1f} s  "
                f"{waiting:>9,} waiting"
            )

    application.bus.subscribe(record_batch)
    sender = threading.Thread(
        target=lambda: generate(readings, target, topic=settings.topic, live=timedelta(seconds=seconds), stop=stop)
    )
    ender = threading.Timer(seconds, application.drain)
    sender.start()
    ender.start()
    try:
        errors = [figures.error for figures in application.run().values() if figures.error]
    finally:
        stop.set()
        sender.join()
        ender.cancel()
    if errors:
        raise errors[0]
    return {"bound": bound, "rate": rate, "batches": batches}


def main() -> None:
    """Run one part or both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("skew", "sustained"))
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=2000.0)
    parser.add_argument("--for", dest="seconds", type=float, default=180.0)
    parser.add_argument("--bound", type=int, default=100_000)
    parser.add_argument("--bootstrap", help="a broker to use instead of one of its own")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = dict[str, object]()
    with environment(options.bootstrap) as (spark, target):
        if options.only != "sustained":
            figures["skew"] = skew(spark, target, options.rows, options.rounds)
        if options.only != "skew":
            figures["sustained"] = sustained(spark, target, options.rate, options.seconds, options.bound)
    if options.json:
        write_json(options.json, {"machine": machine(), **figures})


if __name__ == "__main__":
    main()
