"""The command line as a user meets it: complete runs, and one clear message for what cannot run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from headrace.cli.main import main
from headrace.clients.topics import create_topics
from headrace.stack.local import LocalStack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]

HEADRACE = [sys.executable, "-m", "headrace"]
TERMINAL, TRANSIENT, INTERRUPTED = 3, 4, 130


class CommandLine:
    """`headrace` in this process, on its Spark. It saves the start of Python and of a JVM, and nothing else."""

    def __init__(
        self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        monkeypatch.setattr("headrace.operate.run.open_session", lambda *_words, **_named: spark)
        monkeypatch.setattr(type(spark), "stop", lambda _self: None)

    def __call__(self, *words: str, cwd: Path) -> tuple[int, str]:
        """Return the exit code and what was printed."""
        self._monkeypatch.chdir(cwd)
        self._monkeypatch.setattr(sys, "argv", ["headrace", *words])
        # The flows of another project.
        self._monkeypatch.delitem(sys.modules, "flows", raising=False)
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), self._capsys.readouterr().out

    def json(self, *words: str, cwd: Path) -> tuple[int, dict[str, Any]]:
        """Return the exit code and the one JSON object."""
        code, printed = self(*words, "--json", cwd=cwd)
        return code, last_line(printed)


@pytest.fixture
def headrace(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(spark, monkeypatch, capsys)


def last_line(printed: str) -> dict[str, object]:
    return json.loads(printed.strip().splitlines()[-1])


@pytest.fixture
def project(tmp_path: Path, broker: Broker, headrace: CommandLine) -> Path:
    """The project of `headrace init`, pointed at the shared broker and at a topic of its own."""
    assert headrace("init", "shop", cwd=tmp_path)[0] == 0
    folder = tmp_path / "shop"
    settings = (folder / "headrace.yml").read_text()
    (folder / "headrace.yml").write_text(settings.replace("servers: local", f"servers: '{broker.bootstrap}'"))
    flows = (folder / "flows.py").read_text()
    (folder / "flows.py").write_text(flows.replace('KafkaSource("orders")', f'KafkaSource("orders-{tmp_path.name}")'))
    return folder


def orders(broker: Broker, topic: str, values: Sequence[bytes]) -> None:
    create_topics({"bootstrap.servers": broker.bootstrap}, {topic: 1})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value, b"key")
    assert producer.flush(30) == 0


def order(number: int, minutes_ago: float, now: datetime) -> bytes:
    at = now - timedelta(minutes=minutes_ago)
    fields = {"order_id": str(number), "country": "PT", "amount": 1.25, "ordered_at": at.isoformat()}
    return json.dumps(fields).encode()


def test_a_project_runs_once_drains_and_resumes(project: Path, broker: Broker, headrace: CommandLine):
    topic = f"orders-{project.parent.name}"
    # In one batch: both orders of half an hour ago are of one minute.
    now = datetime.now(UTC)
    orders(broker, topic, [order(1, 30, now), order(2, 30, now), b"rubbish", order(3, 1, now)])
    with subprocess.Popen([*HEADRACE, "run"], cwd=project, stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr is not None
        # The second batch closes the minute of half an hour ago; that of order 3 is still open.
        lines = list(takewhile_including(lambda line: "batch 1" not in line, first.stderr))

        code, second = headrace.json("run", cwd=project)

        assert code == TERMINAL
        error = second["flows"]["orders_per_minute"]["error"]
        assert error["code"] == "HR-302"
        assert str(first.pid) in error["why"]
        # SIGTERM drains: the command ends in order.
        first.terminate()
        rest = first.stderr.read()
    assert first.returncode == 0, (lines, rest)
    assert "stopped" in rest
    # Rows in and out, batches, late and invalid rows.
    assert re.search(r"orders_per_minute\W+4\W+1\W+2\W+0\W+1\W", rest), rest
    code, quarantined = headrace.json("quarantine", "orders_per_minute", cwd=project)
    assert (code, quarantined["reasons"]) == (0, [{"reason": "malformed_json", "rows": 1, "redriven": 0}])

    code, again = headrace.json("run", "--until-done", cwd=project)

    assert (code, again["flows"]["orders_per_minute"]["rows_in"]) == (0, 0)
    orders(broker, topic, [order(4, 0, now)])
    code, more = headrace.json("run", "--until-done", cwd=project)
    assert (code, more["flows"]["orders_per_minute"]["rows_in"]) == (0, 1)


def takewhile_including(condition: Callable[[str], bool], lines: Iterable[str]) -> Iterator[str]:
    """Yield lines up to and including the first that does not meet the condition."""
    for line in lines:
        yield line
        if not condition(line):
            return


def test_a_missing_topic_is_one_message_and_creates_nothing(project: Path, headrace: CommandLine):
    code, error = headrace.json("run", cwd=project)

    assert (code, error["code"]) == (TERMINAL, "HR-501")
    assert "headrace topics create" in error["remedy"]
    assert not (project / ".headrace").exists()


def test_a_broker_that_is_down_is_reported(project: Path, headrace: CommandLine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.clients.kafka._ANSWER_WITHIN_SECONDS", 1.0)
    settings = (project / "headrace.yml").read_text()
    # Port 1 is never a broker.
    (project / "headrace.yml").write_text(settings.replace(settings.split("'")[1], "127.0.0.1:1"))

    code, error = headrace.json("run", cwd=project)

    assert (code, error["code"]) == (TRANSIENT, "HR-601")
    assert not (project / ".headrace").exists()


def test_a_read_only_lake_is_reported_before_the_start(project: Path, headrace: CommandLine):
    settings = (project / "headrace.yml").read_text()
    # Nobody, not even root, makes a folder below a file.
    (project / "headrace.yml").write_text(settings.replace(".headrace/lake", str(project / "flows.py" / "lake")))

    code, error = headrace.json("run", cwd=project)

    assert (code, error["code"]) == (TERMINAL, "HR-111")
    assert "flows.py" in error["what"]


def test_all_mistakes_in_the_settings_are_reported_together(project: Path, headrace: CommandLine):
    (project / "headrace.yml").write_text("name: shop\nflow: [a.py]\ntargets: {dev: {laek: x}}\ndefault_target: dv\n")

    code, error = headrace.json("check", cwd=project)

    why = error["why"]
    assert code == TERMINAL
    assert "'flow' is unknown. Did you mean 'flows'?" in why
    assert "'targets.dev.laek' is unknown. Did you mean 'lake'?" in why


def test_the_check_plans_the_flows_unless_quick(project: Path, headrace: CommandLine):
    flows = (project / "flows.py").read_text()
    (project / "flows.py").write_text(flows.replace('F.sum("amount")', 'F.sum("amont")'))

    code, answer = headrace.json("check", cwd=project)
    assert (code, answer["planned"]) == (1, [])
    (finding,) = answer["findings"]
    assert (finding["code"], "amont" in finding["reason"]) == ("HRC-118", True)

    code, printed = headrace("check", "--quick", cwd=project)
    assert code == 0
    assert "The plans of 1 flows were not checked, by --quick." in printed


def test_a_wrong_java_starts_nothing_and_names_the_packages(
    tmp_path: Path, headrace: CommandLine, monkeypatch: pytest.MonkeyPatch
):
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)

    monkeypatch.setenv("HEADRACE_JAVA", str(old))
    code, answer = headrace.json("up", cwd=tmp_path)

    assert (code, answer["code"]) == (TERMINAL, "HR-401")
    for package in ("openjdk-17", "openjdk@17", "java-17-openjdk"):
        assert package in f"{answer['why']} {answer['remedy']}"
    assert not (tmp_path / ".headrace").exists()


def test_the_demo_prints_one_object_with_its_comparison(tmp_path: Path):
    short = ["--for", "10s", "--rate", "4"]
    command = [*HEADRACE, "demo", "rides", *short, "--json", "--port", "0"]
    # It ends within two minutes on a busy machine; whatever hangs, hangs longer.
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)

    assert done.returncode == 0, done.stderr
    result = last_line(done.stdout)
    assert result["model"]["equal"] is True
    assert result["model"]["differences"] == []
    assert min(result["rows_in"].values()) > 20_000
    assert result["rows_out"]["kafka:city-ride-metrics"] > 0
    assert min(sum(invalid.values()) for invalid in result["invalid"].values()) > 0
    assert [part.state for part in LocalStack(tmp_path / ".headrace").ps()] == ["stopped"]
