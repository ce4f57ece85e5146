"""A checkpoint and its tables belong together: what a flow is refused over, with real queries and tables."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headrace.errors import HeadraceError
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import AvailableNow
from headrace.flow.sink import Batch, Sink
from headrace.flow.target import Target
from headrace.runtime.events import EventBus
from headrace.runtime.supervisor import Supervisor
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sinks.delta.write import DeltaAppend, DeltaOverwrite
from headrace.sinks.fan_out import FanOut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class Place:
    """A folder of lines that a flow appends to a table, one file a batch."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root, self.lines = spark, root, root / "lines"
        self.target = Target("test", lake=str(root / "lake"), checkpoints=str(root / "checkpoints"))
        self.checkpoint, self.table = root / "checkpoints" / "letters", root / "lake" / "letters"
        self.lines.mkdir()

    def run(self, *letters: str, sink: Sink | None = None, target: Target | None = None) -> HeadraceError | None:
        """Add a file per letter, run the flow to the end of them, and return what it failed with."""
        for letter in letters:
            file = self.lines / f"{letter}.txt"
            file.write_text(f"{letter}\n")
            # Spark takes files by their times, in milliseconds: two written within one come in any order.
            os.utime(file, (ord(letter), ord(letter)))
        flow = Flow("letters", Input(Lines(str(self.lines))), lambda rows: rows, sink or DeltaAppend("letters"))
        flow = replace(flow, trigger=AvailableNow())
        # A start is a new process: nothing of a table is remembered.
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        return Supervisor(self.spark, target or self.target, [flow], EventBus()).run().get("letters")

    def stored(self, table: str = "letters") -> list[str]:
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        return sorted(row.value for row in self.spark.read.format("delta").load(self.target.table(table)).collect())

    def refused(self, code: str, *words: str, **declared: Target) -> None:
        error = self.run(**declared)
        assert error is not None
        assert error.code == code, error
        assert [word for word in words if word not in str(error)] == []


class Lines:
    """A folder of text files as a stream: one file a batch."""

    name = "lines"
    carries_payload = False

    def __init__(self, path: str) -> None:
        self.path = path

    def preflight(self, target: Target) -> None: ...

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        return spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(self.path)

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        raise AssertionError("nothing here is audited")


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def exchange(put: Path, over: Path) -> None:
    shutil.rmtree(over, ignore_errors=True)
    shutil.copytree(put, over)


@pytest.mark.parametrize("sink", [DeltaAppend("t"), DeltaUpsert("t", key=("id",)), DeltaOverwrite("t")], ids=str)
def test_a_table_returns_its_identity_and_the_last_batch_of_each_checkpoint(
    spark: SparkSession, tmp_path: Path, sink: Sink
):
    target = Target("test", lake=str(tmp_path), checkpoints="unused")
    schema = StructType([StructField("id", LongType(), False), StructField("city", StringType())])
    assert sink.committed_batches(spark, "f", "0", target).identity is None
    assert sink.committed_batches(spark, "f", "0", target).last == {}
    for query_id, flow, step, number, rows in (
        ("q1", "f", "0", 0, [(1, "a")]),
        ("q1", "f", "0", 1, []),
        ("q2", "f", "0", 0, []),
        ("q1", "other", "0", 7, [(2, "b")]),
        ("q1", "f", "0.1", 8, [(3, "c")]),
    ):
        sink.write(spark.createDataFrame(rows, schema), Batch(flow, query_id, number, target, step=step))
    stored = sink.committed_batches(spark, "f", "0", target)
    first = [json.loads(line) for line in (tmp_path / "t" / "_delta_log" / f"{0:020}.json").read_text().splitlines()]
    assert stored.identity == next(item["metaData"]["id"] for item in first if "metaData" in item)
    assert stored.last == {"q1": 1, "q2": 0}


def test_a_matching_checkpoint_continues_also_after_a_crash_between_two_sinks(place: Place):
    both = FanOut(DeltaAppend("letters"), DeltaAppend("copies"))
    assert place.run("a", "b", sink=both) is None
    record = json.loads((place.checkpoint / "headrace" / "identity.json").read_text())
    assert record["location"] == str(place.checkpoint)
    # The second sink had not written batch 1, and Spark had not committed it.
    log, commits = place.root / "lake" / "copies" / "_delta_log", place.checkpoint / "spark" / "commits"
    for entry in (*log.glob(f"*{1:020}*"), *commits.glob("*1*")):
        entry.unlink()
    assert place.run("c", sink=both) is None
    assert place.stored() == place.stored("copies") == ["a", "b", "c"]


def test_a_new_flow_may_write_a_table_that_others_write(place: Place):
    place.spark.createDataFrame([("x",)], "value string").write.format("delta").save(str(place.table))
    assert place.run("a") is None
    assert place.stored() == ["a", "x"]


def test_a_new_checkpoint_is_refused_over_the_batches_of_the_one_before(place: Place):
    assert place.run("a", "b") is None
    query_id = json.loads((place.checkpoint / "spark" / "metadata").read_text())["id"]
    shutil.rmtree(place.checkpoint)
    place.refused("HR-331", f"{query_id} up to batch 1", str(place.table))
    assert place.stored() == ["a", "b"]
    shutil.rmtree(place.table)
    assert place.run() is None
    assert place.stored() == ["a", "b"]


def test_a_table_that_is_missing_or_was_recreated_is_refused(place: Place):
    assert place.run("a") is None
    shutil.move(place.table, place.root / "away")
    place.refused("HR-332", "is not there", "1 batches")
    place.spark.createDataFrame([("x",)], "value string").write.format("delta").save(str(place.table))
    place.refused("HR-332", "holds none")
    exchange(place.root / "away", place.table)
    assert place.run("b") is None
    assert place.stored() == ["a", "b"]


def test_a_checkpoint_that_was_set_back_is_refused(place: Place):
    assert place.run("a") is None
    shutil.copytree(place.checkpoint, place.root / "backup")
    assert place.run("b", "c") is None
    exchange(place.root / "backup", place.checkpoint)
    place.refused("HR-333", "has batch 2", "ends at batch 0", "Batches 1 to 2")
    assert place.stored() == ["a", "b", "c"]


def test_a_table_that_was_set_back_is_refused(place: Place):
    assert place.run("a") is None
    shutil.copytree(place.table, place.root / "backup")
    assert place.run("b", "c") is None
    exchange(place.root / "backup", place.table)
    place.refused("HR-334", "ends at batch 0", "committed batch 2", "batches 1 to 2")


def test_a_copy_of_a_checkpoint_is_refused_until_a_user_declares_it_the_original(place: Place):
    assert place.run("a") is None
    shutil.copytree(place.root / "checkpoints", place.root / "copies")
    elsewhere = replace(place.target, checkpoints=str(place.root / "copies"))
    place.refused("HR-335", str(place.checkpoint), "identity.json", target=elsewhere)
    (place.root / "copies" / "letters" / "headrace" / "identity.json").unlink()
    assert place.run("b", target=elsewhere) is None
    assert place.stored() == ["a", "b"]
    # The original has not seen batch 1.
    place.refused("HR-333", "has batch 1")


def test_a_record_of_identities_that_is_torn_is_refused(place: Place):
    assert place.run("a") is None
    (place.checkpoint / "headrace" / "identity.json").write_text('{"location":')
    place.refused("HR-338", "identity.json")
