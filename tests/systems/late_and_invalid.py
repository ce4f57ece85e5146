"""Late and invalid rows of a flow that reads Kafka: shown, repaired and sent again, by commands, through kills.

A test module imports everything here and provides the fixture `interrupted`, a function that runs a command up to a
moment of `late_run` and ends it there: by an exception, or by SIGKILL in a process of its own.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Message, Producer, TopicPartition
from typer.testing import CliRunner

from headrace import HeadraceError
from headrace.cli.main import app
from headrace.cli.project import load_project
from headrace.clients.kafka import admin_client, read_to_last_stable_offset, read_topic
from headrace.clients.topics import create_topics
from headrace.flow.target import Target
from headrace.operate.late.repair import Repair
from headrace.operate.quarantine.redrive import Redrive, open_redrive
from headrace.operate.run import Application
from systems import late_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from conftest import Broker

Interrupted = Callable[..., None]

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
FLOWS = """
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, StringType, StructField, StructType, TimestampType
from headrace import AvailableNow, DeltaAppend, Flow, InMemory, Input, KafkaSource, Watermark

ORDER = StructType([
    StructField("shop", StringType(), nullable={nullable}),
    StructField("price", DecimalType(10, 2)),
    StructField("at", TimestampType(), nullable=False),
])

def totals(orders):
    grouped = orders.groupBy(F.window("at", "5 minutes"), "shop")
    return grouped.agg(F.sum("price").alias("total")).select(F.col("window.end").alias("until"), "shop", "total")

flow = Flow(
    "totals",
    Input(KafkaSource("{topic}", max_offsets_per_trigger=3), schema=ORDER, watermark=Watermark("at", "10 minutes")),
    totals,
    DeltaAppend("gold"),
    trigger=AvailableNow(),
    state=InMemory(shuffle_partitions=1),
)
"""


def order(shop: str, minute: float, price: str) -> bytes:
    at = NOON + timedelta(minutes=minute)
    return json.dumps({"shop": shop, "price": price, "at": at.isoformat()}).encode()


def without_shop(minute: float) -> bytes:
    return json.dumps({"price": "1.00", "at": (NOON + timedelta(minutes=minute)).isoformat()}).encode()


# Three records are a batch. The watermark of batch 2 is 12:30, by which batch 3 recognizes its late rows.
RECORDS = [
    *(order("north", 1, "1.00"), order("south", 2, "2.00"), b'{"shop": "north", "price": "abc", "at": "2026-03-02"}'),
    *(order("north", 40, "4.00"), without_shop(3), b"\x1b[31mnot json"),
    *(order("south", 41, "8.00"), without_shop(41), order("north", 41, "16.00")),
    *(order("north", 3, "32.00"), order("east", 2, "64.00"), order("south", 29, "128.00")),
]
IN_TIME = {("north", 5): Decimal("1.00"), ("south", 5): Decimal("2.00")}
REPAIRED = {**IN_TIME, ("north", 5): Decimal("33.00"), ("east", 5): Decimal("64.00"), ("south", 30): Decimal("128.00")}


@dataclass
class Place:
    """Two projects over one lake: the second one has the declaration after the fix."""

    spark: SparkSession
    folder: Path
    topic: str

    @property
    def project(self) -> Path:
        return self.folder / "first"

    @property
    def fixed(self) -> Path:
        return self.folder / "fixed"

    def table(self) -> dict[tuple[str, int], Decimal]:
        rows = self.spark.read.format("delta").load(str(self.folder / "lake" / "gold")).collect()
        stored = {(row.shop, round((row.until.astimezone(UTC) - NOON).seconds / 60)): row.total for row in rows}
        assert len(stored) == len(rows)
        return stored

    def run_json(self, *words: str, code: int = 0) -> dict[str, object]:
        """Run a command in this process, with the session of the tests, and return its object."""
        ran = CliRunner().invoke(app, [*words, "--json"])
        assert ran.exit_code == code, (ran.output, ran.exception)
        return json.loads(ran.stdout.strip().splitlines()[-1])

    def sent(self, read: Callable[[Target, str], Iterator[Message]] = read_topic) -> list[tuple[bytes, str]]:
        """Return value and header of every record of the topic that was sent again."""
        kafka = load_project(self.project, None, ["totals"])[1]
        return sorted(
            (message.value() or b"", dict(message.headers() or [])["headrace-redrive"].decode())
            for message in read(kafka, self.topic)
            if message.headers()
        )


class Interruption(BaseException):
    """Nothing handles it: the command ends where it is raised."""


def by_exception(moment: str, *words: str) -> None:
    """Run a command in this process until it is interrupted at a moment."""
    with pytest.MonkeyPatch.context() as patched:
        for owner, name, raising in late_run.interruption(moment, Interruption):
            patched.setattr(owner, name, raising)
        with pytest.raises(Interruption):
            CliRunner().invoke(app, [*words, "--json"])


def by_sigkill(moment: str, *words: str) -> None:
    """Run a command in a process of its own, which kills itself at a moment."""
    command = [sys.executable, late_run.__file__, moment, *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == -signal.SIGKILL, ran.stdout + ran.stderr


def create_project(folder: Path, topic: str, bootstrap: str, nullable: bool) -> None:
    folder.mkdir(parents=True)
    # Each file is imported under its own name, in one process.
    file = f"flows_{topic.replace('-', '_')}_{folder.name}.py"
    (folder / file).write_text(FLOWS.format(topic=topic, nullable=nullable))
    (folder / "headrace.yml").write_text(
        f"name: shop\nflows: [{file}]\ndefault_target: dev\ntargets:\n  dev:\n    master: local[2]\n"
        f"    lake: {folder.parent}/lake\n    checkpoints: {folder.parent}/checkpoints\n"
        f"    kafka:\n      bootstrap.servers: '{bootstrap}'\n"
    )


@pytest.fixture
def place(spark: SparkSession, broker: Broker, tmp_path: Path) -> Place:
    """The flow after it has read everything."""
    topic = f"orders-{tmp_path.name.replace('_', '-')}"
    create_topics({"bootstrap.servers": broker.bootstrap}, {topic: 1})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number, value in enumerate(RECORDS):
        producer.produce(topic, value, f"k{number}")
    assert producer.flush(30) == 0
    for name, nullable in (("first", False), ("fixed", True)):
        create_project(tmp_path / name, topic, broker.bootstrap, nullable)
    _, target, flows = load_project(tmp_path / "first", None, ["totals"])
    assert Application(spark, target, flows).run()["totals"].error is None
    return Place(spark, tmp_path, topic)


def test_a_repair_that_was_killed_after_it_changed_the_table_changes_nothing_more(
    place: Place, interrupted: Interrupted
):
    assert place.table() == IN_TIME
    message = place.run_json("late", "totals", "--project", str(place.project))
    assert (message["rows"], message["repaired"], message["by_batch"]) == (3, 0, {"3": 3})
    assert place.run_json("late", "totals", "--repair", "--project", str(place.project), code=2)["ok"] is False

    words = ("late", "totals", "--repair", "--yes", "--project", str(place.project))
    interrupted("before the mark", *words)
    assert place.table() == REPAIRED

    plan = place.run_json(*words)
    windows = plan["windows"]
    assert isinstance(windows, list)
    assert sorted(window["rows"] for window in windows) == [1, 2]
    assert (plan["changed"], plan["added"], plan["removed"]) == (0, 0, 0)
    assert place.table() == REPAIRED
    assert place.run_json(*words)["windows"] == []
    message = place.run_json("late", "totals", "--project", str(place.project))
    assert (message["rows"], message["repaired"]) == (3, 3)


def test_a_window_whose_rows_are_missing_is_not_repaired_and_the_others_are(place: Place):
    _, target, (flow,) = load_project(place.project, None, ["totals"])
    client = admin_client(target.kafka)
    truncated = client.delete_records([TopicPartition(place.topic, 0, 3)])
    assert [item.result().low_watermark for item in truncated.values()] == [3]

    with Repair.open(place.spark, target, flow) as work:
        plan = work.plan()
        work.apply(plan)

    # The deleted ones were read in batch 0, whose newest event is of 12:02: it cannot belong to the window from 12:25.
    assert [start.astimezone(UTC).minute for start, _ in plan.windows] == [25]
    (left,) = plan.left
    assert left.window is not None
    assert (left.window[0].astimezone(UTC).minute, left.rows) == (0, 2)
    assert f"{place.topic}-0 [0, 3)" in left.why
    assert place.table() == {**IN_TIME, ("south", 30): Decimal("128.00")}


def test_rows_that_are_good_after_a_fix_are_sent_again_once_wherever_a_run_comes_to_its_end(
    place: Place, interrupted: Interrupted, monkeypatch: pytest.MonkeyPatch
):
    listed = place.run_json("quarantine", "totals", "--project", str(place.project))
    assert (listed["rows"], listed["redriven"]) == (4, 0)
    examples = listed["examples"]
    assert isinstance(examples, list)
    assert "\\x1b[31mnot json" in {example["value"] for example in examples}
    words = ("quarantine", "totals", "--redrive", "--project", str(place.fixed))
    plan = place.run_json(*words, "--dry-run")
    assert (plan["rows"], plan["sent"]) == (2, 0)
    assert plan["still_invalid"] == {"malformed_json": 1, "wrong_type:price": 1}
    # 12:03 is behind the watermark of 12:31; 12:41 is not.
    assert plan["late"] == 1
    assert place.run_json(*words, code=2)["ok"] is False

    _, target, (flow,) = load_project(place.fixed, None, ["totals"])
    with pytest.raises(HeadraceError) as refused, open_redrive(place.spark, target, flow) as work:
        work.plan(to=f"{place.topic}-nowhere")
    assert refused.value.code == "HR-501"

    interrupted("before the commit", *words, "--yes")
    # A killed process leaves its transaction open, until the next one with its id begins.
    assert place.sent(read_to_last_stable_offset) == []

    # The next run sends what was staged, and comes to its end between the commit and the note of it.
    noted = Redrive._append

    def raising(self: Redrive, rows: DataFrame, location: str, number: int) -> None:
        assert location.endswith("redriven")
        raise KeyboardInterrupt

    monkeypatch.setattr(Redrive, "_append", raising)
    with open_redrive(place.spark, target, flow) as work:
        rest = work.plan()
        assert (rest.rows, rest.unfinished) == (0, 2)
        with pytest.raises(KeyboardInterrupt):
            work.apply(rest)
    monkeypatch.setattr(Redrive, "_append", noted)
    expected = sorted((RECORDS[number], f"totals/{place.topic}/0/{number}") for number in (4, 7))
    assert place.sent() == expected

    done = place.run_json(*words, "--yes")
    assert (done["unfinished"], done["sent"]) == (2, 2)
    assert place.sent() == expected
    again = place.run_json(*words, "--yes")
    assert (again["rows"], again["unfinished"], again["sent"]) == (0, 0, 0)
    assert place.sent() == expected
    assert place.run_json("quarantine", "totals", "--project", str(place.project))["redriven"] == 2
