"""The command line as a user meets it: whole runs, and one clear message for what cannot run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from headrace.clients.topics import create_topics
from headrace.patterns.cdc.generator import KEYS, OPENING, Shop
from headrace.patterns.cdc.model import replayed
from headrace.stack.local import LocalStack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]

HEADRACE = [sys.executable, "-m", "headrace"]
TERMINAL, TRANSIENT, INTERRUPTED = 3, 4, 130


def headrace(*words: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HEADRACE, *words],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=600,  # a demo on a busy machine; whatever hangs, hangs longer
        check=False,
    )


def last_line(printed: str) -> dict[str, object]:
    return json.loads(printed.strip().splitlines()[-1])


@pytest.fixture
def project(tmp_path: Path, broker: Broker) -> Path:
    """The project of `headrace init`, pointed at the shared broker and at a topic of its own."""
    assert headrace("init", "shop", cwd=tmp_path).returncode == 0
    folder = tmp_path / "shop"
    settings = (folder / "headrace.yml").read_text()
    (folder / "headrace.yml").write_text(settings.replace("servers: local", f"servers: '{broker.bootstrap}'"))
    flows = (folder / "flows.py").read_text()
    (folder / "flows.py").write_text(flows.replace('Kafka("orders")', f'Kafka("orders-{tmp_path.name}")'))
    return folder


def orders(broker: Broker, topic: str, values: Sequence[bytes]) -> None:
    create_topics({"bootstrap.servers": broker.bootstrap}, {topic: 1})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value, b"key")
    assert producer.flush(10) == 0


def order(number: int, minutes_ago: float) -> bytes:
    at = datetime.now(UTC) - timedelta(minutes=minutes_ago)
    fields = {"order_id": str(number), "country": "PT", "amount": 1.25, "ordered_at": at.isoformat()}
    return json.dumps(fields).encode()


def test_a_new_project_runs_its_flow_and_goes_on_where_it_stopped(project: Path, broker: Broker):
    topic = f"orders-{project.parent.name}"
    orders(broker, topic, [order(1, 30), order(2, 30), b"rubbish", order(3, 1)])

    first = headrace("run", "--until-done", "--json", cwd=project)
    again = headrace("run", "--until-done", "--json", cwd=project)

    assert first.returncode == 0, first.stderr
    figures = last_line(first.stdout)["flows"]["orders_per_minute"]
    # The minute of half an hour ago is closed and put out; that of order 3 is still open.
    assert (figures["rows_in"], figures["rows_out"]) == (4, 1)
    assert figures["bad"] == {"malformed_json": 1}
    assert again.returncode == 0, again.stderr
    assert last_line(again.stdout)["flows"]["orders_per_minute"]["rows_in"] == 0


def test_a_flow_cannot_be_run_twice_at_once(project: Path, broker: Broker):
    topic = f"orders-{project.parent.name}"
    orders(broker, topic, [order(1, 1)])
    with subprocess.Popen([*HEADRACE, "run"], cwd=project, stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr is not None
        assert any("batch 0" in line for line in first.stderr)

        second = headrace("run", "--json", cwd=project)

        assert second.returncode == TERMINAL
        error = last_line(second.stdout)["flows"]["orders_per_minute"]["error"]
        assert error["code"] == "HR-302"
        assert str(first.pid) in error["why"]
        # SIGTERM drains: the command ends by itself, in order.
        first.terminate()
        rest = first.stderr.read()
    assert "stopped" in rest
    assert first.returncode == 0


def test_a_missing_topic_is_one_message_and_nothing_is_made(project: Path):
    done = headrace("run", "--json", cwd=project)

    assert done.returncode == TERMINAL
    assert last_line(done.stdout)["code"] == "HR-501"
    assert "headrace topics create" in str(last_line(done.stdout)["remedy"])
    assert not (project / ".headrace").exists()


def test_a_broker_that_is_down_is_said_to_be_down(project: Path):
    settings = (project / "headrace.yml").read_text()
    # Port 1 is never a broker.
    (project / "headrace.yml").write_text(settings.replace(settings.split("'")[1], "127.0.0.1:1"))

    done = headrace("run", "--json", cwd=project)

    assert done.returncode == TRANSIENT
    assert last_line(done.stdout)["code"] == "HR-601"
    assert not (project / ".headrace").exists()


def test_a_lake_that_cannot_be_written_is_named_before_anything_starts(project: Path):
    settings = (project / "headrace.yml").read_text()
    # Nobody, not even root, makes a folder below a file.
    (project / "headrace.yml").write_text(settings.replace(".headrace/lake", str(project / "flows.py" / "lake")))

    done = headrace("run", "--json", cwd=project)

    assert done.returncode == TERMINAL
    assert last_line(done.stdout)["code"] == "HR-111"
    assert "flows.py" in str(last_line(done.stdout)["what"])


def test_every_mistake_in_the_settings_is_told_at_once(project: Path):
    (project / "headrace.yml").write_text("name: shop\nflow: [a.py]\ntargets: {dev: {laek: x}}\ndefault_target: dv\n")

    done = headrace("check", "--json", cwd=project)

    why = str(last_line(done.stdout)["why"])
    assert done.returncode == TERMINAL
    assert "'flow' is unknown. Did you mean 'flows'?" in why
    assert "'targets.dev.laek' is unknown. Did you mean 'lake'?" in why


def test_the_check_looks_at_the_plans_and_says_when_it_does_not(project: Path):
    flows = (project / "flows.py").read_text()
    (project / "flows.py").write_text(flows.replace('F.sum("amount")', 'F.sum("amont")'))

    looked = headrace("check", "--json", cwd=project)
    said = last_line(looked.stdout)
    assert (looked.returncode, said["planned"]) == (1, [])
    (found,) = said["findings"]
    assert (found["code"], "amont" in found["reason"]) == ("HRC-118", True)

    quick = headrace("check", "--quick", cwd=project)
    assert quick.returncode == 0
    assert "The plans of 1 flows were not looked at, by --quick." in quick.stdout


def test_with_a_wrong_java_nothing_is_started_and_the_packages_are_named(tmp_path: Path):
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)

    done = headrace("up", "--json", cwd=tmp_path, env={"HEADRACE_JAVA": str(old)})

    said = last_line(done.stdout)
    assert (done.returncode, said["code"]) == (TERMINAL, "HR-401")
    for package in ("openjdk-17", "openjdk@17", "java-17-openjdk"):
        assert package in f"{said['why']} {said['remedy']}"
    assert not (tmp_path / ".headrace").exists()


def test_the_demo_ends_with_one_object_that_says_it_equals_the_model(tmp_path: Path):
    done = headrace("demo", "rides", "--for", "45s", "--json", "--port", "0", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    result = last_line(done.stdout)
    assert result["model"]["equal"] is True
    assert result["model"]["differences"] == []
    assert min(result["rows_in"].values()) > 100_000
    assert result["rows_out"]["kafka:city-ride-metrics"] > 0
    assert min(sum(bad.values()) for bad in result["bad"].values()) > 0
    assert [part.state for part in LocalStack(tmp_path / ".headrace").ps()] == ["stopped"]


def test_the_cdc_demo_ends_with_mirrors_that_equal_their_tables_and_goes_on_the_next_time(
    tmp_path: Path, spark: SparkSession
):
    shown = headrace("demo", "cdc", "--for", "12s", cwd=tmp_path)

    assert shown.returncode == 0, shown.stderr
    assert re.search(r"demo_shop.orders +[\d,]+ rows at the source, +[\d,]+ in the mirror, ", shown.stderr)
    assert "Every mirror equals its table." in shown.stdout
    before = int(re.findall(r"what ([\d,]+) transactions make", shown.stdout)[0].replace(",", ""))

    again = headrace("demo", "cdc", "--for", "1s", "--json", cwd=tmp_path)

    assert again.returncode == 0, again.stderr
    (line,) = again.stdout.splitlines()
    result = json.loads(line)
    assert sorted(result["tables"]) == ["demo_shop.customers", "demo_shop.items", "demo_shop.orders"]
    for table in result["tables"].values():
        assert (table["equal"], table["differences"], table["lacking"], table["not_compared"]) == (True, [], [], [])
        assert re.fullmatch(r"\d{20}", table["position"])
    assert result["model"]["equal"] is True
    assert result["model"]["transactions"] > before > OPENING
    # It read on: a flow that began anew would have read the whole history.
    assert 0 < result["rows_in"]["cdc_demo_shop"] < sum(table["rows"] for table in result["tables"].values())
    assert {part.state for part in LocalStack(tmp_path / ".headrace").ps()} == {"stopped"}

    # And the tables in the lake hold what the shop's history makes in plain Python.
    expected = replayed(islice(Shop(7).history(), result["model"]["transactions"]))
    for table, rows in expected.items():
        mirror = spark.read.format("delta").load(f"{tmp_path}/.headrace/demo/cdc/lake/silver/shop/{table}")
        found = [row.asDict() for row in mirror.drop("_headrace_position").collect()]
        assert {tuple(row[name] for name in KEYS[table]): plain(row) for row in found} == rows
        assert len(found) == len(rows)


def plain(row: dict[str, object]) -> dict[str, object]:
    """Return a row of a mirror with the values that the model has: documents read, times with their zone."""
    return {
        name: json.loads(value)
        if name in ("profile", "details") and isinstance(value, str)
        else value.astimezone(UTC)
        if isinstance(value, datetime)
        else value
        for name, value in row.items()
    }


def test_ctrl_c_ends_the_demo_in_order_and_keeps_its_data(tmp_path: Path):
    command = [*HEADRACE, "demo", "rides", "--for", "10m", "--backfill", "5m", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stderr is not None
        assert any("batch 0" in line for line in demo.stderr)
        demo.send_signal(signal.SIGINT)
        rest = demo.stderr.read()

    assert demo.returncode == INTERRUPTED
    assert rest.count("stopped") >= 4, rest  # three flows and the broker
    assert "Traceback" not in rest
    assert [part.state for part in LocalStack(tmp_path / ".headrace").ps()] == ["stopped"]
    assert (tmp_path / ".headrace/demo/rides/checkpoints/city_rides/spark/commits/0").exists()
