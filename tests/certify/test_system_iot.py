"""The IoT pattern on a real broker, every row of every sink against the plain-Python model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event, Timer
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from killed_driver import forget_last_commit, run_until_killed, target_for
from past_traffic import NOW, Past
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.clients.topics import create_topics
from headrace.flow.flow import ONLY, Flow
from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.observe.flow_audit import late_table, quarantine_table
from headrace.operate.compare import Comparison, table_rows, topic_rows
from headrace.operate.demos.iot import IotDemo, compare, size
from headrace.operate.generate import Generated, generate
from headrace.operate.replayed import boundaries, consumed
from headrace.operate.run import Application
from headrace.operate.scene import DemoSettings, Scene
from headrace.patterns.iot.flows import IotSettings, flows
from headrace.patterns.iot.generator import generator
from headrace.patterns.iot.model import DEVICE_METRICS, DeviceMetrics, recomputed
from headrace.patterns.traffic import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]

MOST = 1500


def settings_for(name: str) -> IotSettings:
    return IotSettings(
        topic=f"{name}-telemetry",
        alerts_topic=f"{name}-alerts",
        status_topic=f"{name}-status",
        trigger=AvailableNow(),
        max_offsets=MOST,
        # Numbers of their own: the model has to hear of them.
        **({"window": "4 minutes", "watermark": "1 minute"} if name == "iot-killed" else {}),
    )


def flows_of(name: str) -> list[Flow]:
    return flows(settings_for(name))


@dataclass(frozen=True)
class Returned:
    """The past of a plant, and at its end a device that was offline for six hours and sends what it kept."""

    topic: ClassVar[str] = "unused"

    past: Past

    def events(self, from_: datetime, until: datetime | None = None) -> Iterator[Generated]:
        yield from self.past.events(from_, until)
        now = round(NOW.timestamp() * 1000)
        for minute in range(0, 360, 3):
            ts = NOW - timedelta(hours=6) + timedelta(minutes=minute)
            fields = {"device_id": "dev-back", "temperature": 85.5, "humidity": 40, "ts": ts.isoformat()}
            yield Record(b"dev-back", json.dumps(fields).encode(), round(ts.timestamp() * 1000), now, "returned")


def filled(target: Target, settings: IotSettings, *, rate: float) -> int:
    """Make the topics, send the records, and return how many there are."""
    create_topics(target.kafka, dict.fromkeys(settings.topics, 2))
    records = generator(rate=rate, late=0.02, duplicates=0.01, malformed=0.01, seed=11)
    return generate(Returned(Past(records, hours=1.5)), target, topic=settings.topic).records


def test_every_row_equals_the_model_and_a_device_that_was_offline_for_hours_is_repaired_into_gold(
    broker: Broker, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # 1.5 hours at 1.2 readings a second, in batches of about 20 minutes: windows close, and late rows come after them.
    settings = settings_for("iot-whole")
    target = target_for(tmp_path, broker.bootstrap)
    sent = filled(target, settings, rate=1.2)

    figures = Application(spark, target, flows(settings)).run()

    assert {name: figure.error for name, figure in figures.items()} == dict.fromkeys(figures)
    assert {figure.rows_in for figure in figures.values()} == {sent}
    demo, scene = IotDemo(settings=settings), Scene(DemoSettings(rate=50, backfill=timedelta(seconds=2)), target)
    verdict = demo.compare(scene, spark)
    found = verdict.comparison
    assert found.differences == []
    assert found.repeated == {}
    # Equal and empty would prove nothing.
    assert all(rows > 0 for rows in found.rows.values()), found.rows
    alerts = {(row["alert"]) for row in topic_rows(target, settings.alerts_topic)}
    assert alerts == {"HIGH_TEMP", "HIGH_HUMIDITY"}
    assert {row["status"] for row in topic_rows(target, settings.status_topic)} == {"SILENT", "BACK"}
    the_bound_holds(spark, target, settings, verdict.as_dict()["skew"])
    assert sent > 4 * MOST
    reasons = {
        row.reason for row in spark.read.format("delta").load(quarantine_table(target, "device_metrics")).collect()
    }
    assert reasons >= {"null_key", "malformed_json", "missing:humidity", "wrong_type:temperature"}

    # The readings that the device kept for six hours are late, but for those of the last two batches.
    late = spark.read.format("delta").load(late_table(target, "device_metrics"))
    kept = late.where("row like '%dev-back%'").count()
    assert kept > 90
    plan = repaired(tmp_path / "project", target, spark, monkeypatch)
    assert (plan["ok"], plan["left"]) == (True, [])
    assert sum(window["rows"] for window in plan["windows"]) == figures["device_metrics"].late
    whole = recomputed(consumed(target, settings.topic), DEVICE_METRICS)
    assert sum(row.device_id == "dev-back" and row.alert == "HIGH_TEMP" for row in whole) >= 70
    after = Comparison()
    after.add("gold", [asdict(row) for row in whole], table_rows(spark, "delta", target.table(settings.gold_table)))
    assert after.differences == []
    shown_is_what_is_there(spark, demo, scene, [row for row in whole if row.window_start == _ms(NOW) - 600_000])


def the_bound_holds(spark: SparkSession, target: Target, settings: IotSettings, skew: Any) -> None:
    """Every batch but the last is as large as it may be, and none is larger: of each flow, and of both partitions."""
    for flow in flows(settings):
        batches = [batch[ONLY] for batch in boundaries(spark, target, flow)]
        full = [batch for batch in batches if size(batch)][:-1]
        assert len(full) == 4
        # Each partition's share of the bound is rounded down.
        assert all(MOST - len(batch) < size(batch) <= MOST for batch in full), full
        assert max(map(size, batches)) == skew["largest_batch"][flow.name] <= MOST
        # The partition of the busiest device is longer, and no batch is without the other one.
        assert all(len(batch) == 2 and all(end > start for start, end in batch.values()) for batch in full), full
    records = consumed(target, settings.topic)
    rows = [sum(record.partition == each for record in records) for each in range(2)]
    assert skew["rows_by_partition"] == {"0": rows[0], "1": rows[1]}
    # 20 % by one device, and the rest by 39 of them and the one that is back.
    assert (skew["busiest_device"], skew["devices"]) == ("dev-0000", 41)
    assert skew["busiest_share"] == pytest.approx(0.2, abs=0.02)


def repaired(folder: Path, target: Target, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what `headrace late device_metrics --repair` of a project with these flows says."""
    monkeypatch.setattr("headrace.cli.session.opened_session", lambda *_words, **_named: spark)
    folder.mkdir()
    (folder / "plant_flows.py").write_text("from test_iot import flows_of\n\nplant = flows_of('iot-whole')\n")
    places = {"lake": target.lake, "checkpoints": target.checkpoints, "kafka": dict(target.kafka)}
    (folder / "headrace.yml").write_text(
        json.dumps({"name": "plant", "flows": ["plant_flows.py"], "targets": {"dev": places}})
    )
    words = ["late", "device_metrics", "--repair", "--yes", "--json", "--project", str(folder)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def shown_is_what_is_there(spark: SparkSession, demo: IotDemo, scene: Scene, newest: list[DeviceMetrics]) -> None:
    """The demo's line about the newest whole window, its table as declared, and its feed into the topic of its own."""
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
    assert all("window_start" in (said := row.operationParameters["predicate"]) and ">=" in said for row in merges)

    before, stop = len(consumed(scene.target, demo.settings.topic)), Event()
    Timer(1, stop.set).start()
    sent = demo.feed(scene, stop)
    assert sent.records > 0
    assert len(consumed(scene.target, demo.settings.topic)) - before == sent.records


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def test_a_driver_that_is_killed_in_the_middle_leaves_the_same_tables_and_tells_each_silence_once(
    broker: Broker, spark: SparkSession, tmp_path: Path
):
    settings = settings_for("iot-killed")
    target = target_for(tmp_path, broker.bootstrap)
    filled(target, settings, rate=1)
    # Its second batch is in the topic; the third, and those of the other flow, are under way.
    run_until_killed("test_iot", "iot-killed", target, flow="silent_devices", batch=1)

    Application(spark, target, flows(settings)).run()

    found, _ = compare(spark, target, flows(settings), settings)
    assert found.differences == []
    assert all(rows > 0 for place, rows in found.rows.items() if not place.startswith("late rows")), found.rows

    # Now as if it had died after the sinks had the last batch, before Spark noted it: the sinks skip the batch.
    forget_last_commit(target, "device_metrics")
    again = Application(spark, target, [replace(flows(settings)[0])]).run()

    assert (again["device_metrics"].error, again["device_metrics"].batches) == (None, 1)
    assert compare(spark, target, flows(settings), settings)[0].differences == []
