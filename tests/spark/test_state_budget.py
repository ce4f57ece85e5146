"""State on real Spark: the budget stops a flow cleanly, and what the first batch froze is not passed over."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from live_run import Brittle, Folder, Hands, run
from pyspark.sql import functions as F

from headrace import AvailableNow, DeltaSource, Flow, InMemory, Input, RocksDB, StateBudget, Target, Watermark
from headrace.audit.flow_audit import quarantine_table
from headrace.flow.levers import State
from headrace.runtime.events import BatchCommitted, SettingPinned, StateNearBudget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))


def ids(rows: DataFrame) -> DataFrame:
    """Each id once. Every id is a row of state until the watermark has passed it by ten minutes."""
    return rows.dropDuplicatesWithinWatermark(["id"]).select("id")


def distinct(folder: Folder, sink: Brittle, state: State) -> Flow:
    watermark = Watermark("at", "10 minutes")
    return Flow("ids", Input(folder.source, watermark=watermark), ids, sink, trigger=AvailableNow(), state=state)


@pytest.mark.parametrize("store", [RocksDB, InMemory])
def test_a_flow_stops_after_the_batch_that_exceeds_its_budget_and_continues_exactly_when_it_is_raised(
    spark: SparkSession, target: Target, tmp_path: Path, store: type[RocksDB | InMemory]
):
    folder, sink, clock = Folder(tmp_path / "in"), Brittle(), Hands(60)
    # Ten ids a file, all within ten minutes, and each file repeats one id of the file before.
    for number in range(8):
        folder.put(*((10 * number + item, number) for item in range(-1 if number else 0, 10)))
    state = store(shuffle_partitions=1, budget=StateBudget(rows=34))
    stopped = run(spark, target, distinct(folder, sink, state), clock)
    error = stopped.figures["ids"].error
    assert error is not None
    assert error.code == "HR-228"
    # 10, 20, 30 rows, then 40: the fourth batch is the one that exceeds it. The 30 were above four fifths.
    batches = [event for event in stopped.of(BatchCommitted) if isinstance(event, BatchCommitted)]
    assert [sum(item.rows for item in event.state) for event in batches] == [10, 20, 30, 40]
    assert [event.used for event in stopped.of(StateNearBudget) if isinstance(event, StateNearBudget)] == [30]
    assert all(item.memory > 0 for event in batches for item in event.state)
    assert {item.bytes == item.memory for event in batches for item in event.state} == {store is InMemory}
    assert sorted(row[0] for row in sink.rows()) == list(range(40))

    refused = run(spark, target, distinct(folder, sink, state), clock).figures["ids"]
    assert refused.error is not None
    assert (refused.error.code, refused.batches) == ("HR-229", 0)

    raised = replace(state, budget=StateBudget(rows=1000))
    figures = run(spark, target, distinct(folder, sink, raised), clock).figures["ids"]
    assert figures.error is None
    assert sorted(row[0] for row in sink.rows()) == list(range(80))
    assert [(item.operator, item.rows) for item in figures.state] == [("dedupeWithinWatermark", 80)]
    assert figures.as_dict()["state"] == [asdict(item) for item in figures.state]


def test_a_change_of_a_pinned_setting_is_refused_or_reported(spark: SparkSession, target: Target, tmp_path: Path):
    folder, sink, clock = Folder(tmp_path / "in"), Brittle(), Hands(60)
    folder.put((1, 0))
    # A target that says otherwise about watermarks of several inputs is ignored: one input must not drop another's
    # rows.
    policy = "spark.sql.streaming.multipleWatermarkPolicy"
    spark.sparkContext._jsc.sc().conf().set(policy, "max")
    try:
        assert run(spark, target, distinct(folder, sink, RocksDB(2)), clock).figures["ids"].error is None
    finally:
        spark.sparkContext._jsc.sc().conf().remove(policy)
    entry = Path(target.flow_folder("ids"), "spark", "offsets", "0").read_text().split("\n")[1]
    assert json.loads(entry)["conf"][policy] == "min"

    refused = run(spark, target, distinct(folder, sink, InMemory(2)), clock).figures["ids"].error
    assert refused is not None
    assert refused.code == "HR-344"

    folder.put((2, 0))
    again = run(spark, target, distinct(folder, sink, RocksDB(5)), clock)
    assert again.figures["ids"].error is None
    assert again.of(SettingPinned) == [SettingPinned("ids", "shuffle partitions", declared="5", checkpoint_value="2")]
    assert sink.rows() == [(1,), (2,)]


def counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("at", "5 minutes")).count().select(F.minute("window.start"), "count")


# Minutes from March 2026 into the year 2099, past any clock that these tests run under.
FAR = 38_500_000.0


def test_a_row_from_2099_in_a_folder_does_not_move_the_watermark_and_is_in_the_quarantine(
    spark: SparkSession, target: Target, tmp_path: Path
):
    folder, sink = Folder(tmp_path / "in"), Brittle()
    for rows in ([(1, 1), (2, FAR)], [(3, 2)], [(4, 30)]):
        folder.put(*rows)
    flow = Flow(
        "guarded",
        Input(folder.source, watermark=Watermark("at", "1 minute")),
        counted,
        sink,
        trigger=AvailableNow(),
        state=RocksDB(1),
    )
    figures = run(spark, target, flow, Hands(60)).figures["guarded"]
    assert (figures.error, figures.late, figures.invalid) == (None, 0, {"event_time_in_future": 1})
    assert sink.rows() == [(0, 2)]


def test_a_row_from_2099_in_a_table_is_in_the_quarantine(spark: SparkSession, target: Target, tmp_path: Path):
    table, sink = target.table("in"), Brittle()

    def append(*rows: str) -> None:
        spark.sql(" UNION ALL ".join(rows)).coalesce(1).write.format("delta").mode("append").save(table)

    append("SELECT 1L AS id, timestamp'2026-03-02 12:01:00Z' AS at")
    append("SELECT 2L AS id, timestamp'2099-01-01 00:00:00Z' AS at", "SELECT 3L, timestamp'2026-03-02 12:02:00Z'")
    append("SELECT 4L AS id, timestamp'2026-03-02 12:30:00Z' AS at")
    flow = Flow(
        "guarded",
        Input(DeltaSource("in", max_files_per_trigger=1, starting_version=0), watermark=Watermark("at", "1 minute")),
        counted,
        sink,
        trigger=AvailableNow(),
        state=RocksDB(1),
    )
    figures = run(spark, target, flow, Hands(60)).figures["guarded"]
    assert (figures.error, figures.late, figures.invalid) == (None, 0, {"event_time_in_future": 1})
    assert sink.rows() == [(0, 2)]
    (filed,) = spark.read.format("delta").load(quarantine_table(target, "guarded")).collect()
    assert (filed.input, json.loads(bytes(filed.value))["id"]) == ("rows", 2)
