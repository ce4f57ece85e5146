"""The IoT pattern on a real broker: what its tests send, run and compare."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.clients.topics import create_topics
from headrace.demos.feeder import generate
from headrace.demos.iot import IotDemo, size
from headrace.demos.protocol import DemoContext
from headrace.demos.records_demo import batch_ranges, read_records
from headrace.flow.flow import SINGLE_INPUT, Flow
from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.patterns.iot.flows import IotSettings, flows
from headrace.patterns.iot.generator import generator
from headrace.patterns.iot.model import DeviceMetrics
from headrace.patterns.traffic import GeneratedRecord
from systems.past_traffic import NOW, Past, set_by_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MOST = 1500


KILLED = "iot-killed"
# The flows of the driver that is killed, each with the batch in which that happens.
KILLED_IN = {"silent_devices": 1}


def settings_for(name: str) -> IotSettings:
    return IotSettings(
        topic=f"{name}-telemetry",
        alerts_topic=f"{name}-alerts",
        status_topic=f"{name}-status",
        trigger=AvailableNow(),
        max_offsets=MOST,
        # Numbers of their own: the model has to know them.
        **({"window": "4 minutes", "watermark": "1 minute"} if name == KILLED else {}),
    )


def flows_of(name: str) -> list[Flow]:
    return flows(settings_for(name))


def flows_to_kill() -> list[Flow]:
    return [flow for flow in flows_of(KILLED) if flow.name in KILLED_IN]


def send_before_the_kill(target: Target) -> None:
    filled(target, settings_for(KILLED), rate=1)


@dataclass(frozen=True)
class Returned:
    """The past of a plant, and at its end a device that was offline for six hours and sends what it buffered."""

    topic: ClassVar[str] = "unused"

    past: Past

    def events(self, from_: datetime, until: datetime | None = None) -> Iterator[GeneratedRecord]:
        yield from self.past.events(from_, until)
        now = round(NOW.timestamp() * 1000)
        for minute in range(0, 360, 3):
            ts = NOW - timedelta(hours=6) + timedelta(minutes=minute)
            fields = {"device_id": "dev-back", "temperature": 85.5, "humidity": 40, "ts": ts.isoformat()}
            yield GeneratedRecord(
                b"dev-back", json.dumps(fields).encode(), round(ts.timestamp() * 1000), now, "returned"
            )


def filled(target: Target, settings: IotSettings, *, rate: float) -> int:
    """Make the topics, send the records, and return how many there are."""
    create_topics(target.kafka, dict.fromkeys(settings.topics, 2))
    records = generator(rate=rate, late=0.02, duplicates=0.01, malformed=0.01, seed=11)
    return generate(Returned(Past(records, hours=1.5)), target, topic=settings.topic).records


def the_bound_holds(spark: SparkSession, target: Target, settings: IotSettings, skew: Any) -> None:
    """Every batch but the last is as large as it may be, and none is larger: of each flow, and of both partitions."""
    for flow in flows(settings):
        batches = [batch[SINGLE_INPUT] for batch in batch_ranges(spark, target, flow)]
        full = [batch for batch in batches if size(batch)][:-1]
        assert len(full) == 4
        # Each partition's share of the bound is rounded down.
        assert all(MOST - len(batch) < size(batch) <= MOST for batch in full), full
        assert max(map(size, batches)) == skew["largest_batch"][flow.name] <= MOST
        # The partition of the busiest device is longer, and no batch is without the other one.
        assert all(len(batch) == 2 and all(end > start for start, end in batch.values()) for batch in full), full
    records = read_records(target, settings.topic)
    rows = [sum(record.partition == number for record in records) for number in range(2)]
    assert skew["rows_by_partition"] == {"0": rows[0], "1": rows[1]}
    # 20 % by one device, and the rest by 39 of them and the one that is back.
    assert (skew["busiest_device"], skew["devices"]) == ("dev-0000", 41)
    assert skew["busiest_share"] == pytest.approx(0.2, abs=0.02)


def repaired(folder: Path, target: Target) -> dict[str, Any]:
    """Return what `headrace late device_metrics --repair` of a project with these flows says."""
    folder.mkdir()
    (folder / "plant_flows.py").write_text("from systems.iot import flows_of\n\nplant = flows_of('iot-whole')\n")
    places = {"lake": target.lake, "checkpoints": target.checkpoints, "kafka": dict(target.kafka)}
    (folder / "headrace.yml").write_text(
        json.dumps({"name": "plant", "flows": ["plant_flows.py"], "targets": {"dev": places}})
    )
    words = ["late", "device_metrics", "--repair", "--yes", "--json", "--project", str(folder)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    actual: dict[str, Any] = json.loads(done.stdout)
    return actual


def shown_is_what_is_there(spark: SparkSession, demo: IotDemo, scene: DemoContext, newest: list[DeviceMetrics]) -> None:
    """The demo's line about the newest complete window, its table as declared, and its feed into its own topic."""
    (line,) = demo.status(scene, spark)
    readings = sum(row.reading_count for row in newest)
    busiest = max(newest, key=lambda row: row.reading_count)
    assert line.startswith(
        f"window 2026-03-02 17:50Z: {len(newest)} devices, {readings} readings, "
        f"{busiest.reading_count / readings:.0%} of them by {busiest.device_id}; alerts: "
    )
    assert all(f"{row.device_id} {row.alert}" in line for row in newest if row.alert)
    gold = f"delta.`{scene.target.table(demo.settings.gold_table)}`"
    assert spark.sql(f"DESCRIBE DETAIL {gold}").collect()[0].clusteringColumns == ["window_start"]
    # A batch without rows looks for nothing.
    with_rows = "operation = 'MERGE' AND operationMetrics.numSourceRows > 0"
    merges = spark.sql(f"DESCRIBE HISTORY {gold}").where(with_rows).collect()
    assert len(merges) >= 5
    assert all(
        "window_start" in (message := row.operationParameters["predicate"]) and ">=" in message for row in merges
    )

    before = len(read_records(scene.target, demo.settings.topic))
    sent = demo.feed(scene, set_by_records(scene.target, demo.settings.topic))
    assert sent.records > 0
    assert len(read_records(scene.target, demo.settings.topic)) - before == sent.records


def to_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
