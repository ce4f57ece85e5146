"""The command line as a user meets it: whole runs, and one clear message for what cannot run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.clients.topics import create_topics
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


@pytest.fixture
def here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Return a command line in this process, on its Spark: as `headrace`, without the start of a JVM."""
    monkeypatch.setattr("headrace.operate.run.open_session", lambda *_words, **_named: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _self: None)

    def run(*words: str, cwd: Path) -> tuple[int, dict[str, Any]]:
        done = CliRunner().invoke(app, [*words, "--project", str(cwd), "--json"], catch_exceptions=False)
        return done.exit_code, last_line(done.stdout)

    return run


def test_a_project_runs_is_not_run_twice_at_once_drains_and_continues_where_it_stopped(
    project: Path, broker: Broker, here: Callable[..., tuple[int, dict[str, Any]]]
):
    topic = f"orders-{project.parent.name}"
    orders(broker, topic, [order(1, 30), order(2, 30), b"rubbish", order(3, 1)])
    with subprocess.Popen([*HEADRACE, "run"], cwd=project, stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr is not None
        # The second batch closes the minute of half an hour ago; that of order 3 is still open.
        lines = list(takewhile_including(lambda line: "batch 1" not in line, first.stderr))

        code, second = here("run", cwd=project)

        assert code == TERMINAL
        error = second["flows"]["orders_per_minute"]["error"]
        assert error["code"] == "HR-302"
        assert str(first.pid) in error["why"]
        # SIGTERM drains: the command ends by itself, in order.
        first.terminate()
        rest = first.stderr.read()
    assert first.returncode == 0, (lines, rest)
    assert "stopped" in rest
    # The figures of the run: read, written, and one row in quarantine.
    assert re.search(r"orders_per_minute\W+\d+\W+4\W+1\W", rest), rest
    assert "malformed_json" in "".join([*lines, rest])

    code, again = here("run", "--until-done", cwd=project)

    assert (code, again["flows"]["orders_per_minute"]["rows_in"]) == (0, 0)
    orders(broker, topic, [order(4, 0)])
    code, more = here("run", "--until-done", cwd=project)
    assert (code, more["flows"]["orders_per_minute"]["rows_in"]) == (0, 1)


def takewhile_including(condition: Callable[[str], bool], lines: Iterable[str]) -> Iterator[str]:
    """Yield lines up to and including the first that does not meet the condition."""
    for line in lines:
        yield line
        if not condition(line):
            return


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
    short = ["--for", "10s", "--rate", "10"]
    done = headrace("demo", "rides", *short, "--json", "--port", "0", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    result = last_line(done.stdout)
    assert result["model"]["equal"] is True
    assert result["model"]["differences"] == []
    assert min(result["rows_in"].values()) > 50_000
    assert result["rows_out"]["kafka:city-ride-metrics"] > 0
    assert min(sum(bad.values()) for bad in result["bad"].values()) > 0
    assert [part.state for part in LocalStack(tmp_path / ".headrace").ps()] == ["stopped"]
