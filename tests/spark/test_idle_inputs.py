"""Inputs that become idle: the last windows close, exactly, and rows that were still to be read are not made late."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from live_run import NOON, PATIENCE, Brittle, Folder, Hands, live, run
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from headrace import AsFastAsPossible, AvailableNow, Flow, Input, KafkaSink, KafkaSource, RocksDB, Target, Watermark
from headrace.runtime.events import BatchCommitted, FlowStarted
from headrace.testing import Arrive, rehearse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

# Spark reports an idle trigger every quarter of the idle timeout: a short one keeps tests short. The clock is fake.
QUIET = Watermark("at", "1 minute", idle_timeout="2 seconds")
STATE = RocksDB(shuffle_partitions=1)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))


def per_five_minutes(rows: DataFrame) -> DataFrame:
    # Spark would move this filter below the watermark, where it takes out what has no shop.
    counted = (
        rows.where("shop = 'north'")
        .groupBy(F.window("at", "5 minutes"))
        .agg(F.count("*").alias("n"), F.count("shop").alias("shops"))
    )
    return counted.select(F.minute("window.start").alias("minute"), "n", "shops")


def windows(folder: Folder, sink: Brittle, watermark: Watermark = QUIET, trigger: object = None) -> Flow:
    return Flow(
        "windows",
        Input(folder.source, watermark=watermark),
        per_five_minutes,
        sink,
        trigger=trigger or AsFastAsPossible(),  # type: ignore[arg-type]
        state=STATE,
    )


def model(*minutes: float) -> list[tuple[int, int, int]]:
    """Count the rows of each five minutes."""
    starts = [int(minute // 5) * 5 for minute in minutes]
    return sorted(((start, starts.count(start), starts.count(start)) for start in set(starts)), key=str)


def idle_tick_files(target: Target, name: str = "rows") -> list[str]:
    folder = Path(target.flow_folder("windows"), "headrace", "idle_ticks", name)
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_the_last_window_of_an_idle_input_closes_and_only_real_rows_are_counted(
    spark: SparkSession, target: Target, tmp_path: Path
):
    folder, sink, clock = Folder(tmp_path / "in"), Brittle(), Hands(8)
    folder.put((1, 1), (2, 2), (3, 6))
    with live(spark, target, windows(folder, sink), clock) as running:
        running.wait_rows(read=3, written=1)
        assert sink.rows() == model(1, 2)
        # The window of 12:05 ends at 12:10, and the watermark is a minute and two seconds behind the clock.
        clock.minute = 11.5
        running.wait_rows(written=2)
        assert sink.rows() == model(1, 2, 6)
        folder.put((4, 12))
        running.wait_rows(read=4)
        clock.minute = 60
        running.wait_rows(written=3)
    assert sink.rows() == model(1, 2, 6, 12)
    figures = running.figures["windows"]
    assert (figures.rows_in, figures.rows_out, figures.late, figures.invalid, figures.error) == (4, 3, 0, {}, None)
    # With an empty state nothing waits for the watermark: there are no ticks, and Spark deletes those it has read.
    assert len(idle_tick_files(target)) <= 1
    assert sum(item.rows for item in figures.state) == 0


def test_an_input_with_a_backlog_gets_no_idle_tick_however_far_the_clock_is(
    spark: SparkSession, target: Target, tmp_path: Path
):
    folder, clock = Folder(tmp_path / "in"), Hands(30)
    observed: list[list[str]] = []

    def hours_pass() -> None:
        clock.minute += 60
        observed.append(idle_tick_files(target))

    sink, minutes = Brittle(on_write=hours_pass), [1, 3, 6, 8, 7, 11, 16, 15.5]
    for number, minute in enumerate(minutes):
        folder.put((number, minute))
    with live(spark, target, windows(folder, sink), clock) as running:
        running.wait_rows(read=len(minutes))
        read = len([event for event in running.of(BatchCommitted) if event.rows_in])
        hours_pass()
        running.wait_rows(written=4)
    assert read == len(minutes)
    assert sink.rows() == model(*minutes)
    assert running.figures["windows"].late == 0
    assert sum(event.dropped for event in running.of(BatchCommitted)) == 0
    # All rows were read before the first idle tick.
    first = next((number for number, actual in enumerate(observed) if actual), len(observed))
    assert first >= len(minutes)


def test_a_driver_that_dies_during_and_after_an_idle_tick_changes_nothing(
    spark: SparkSession, target: Target, tmp_path: Path
):
    folder, clock = Folder(tmp_path / "in"), Hands(8)
    folder.put((1, 1), (2, 6))
    # Batch 0 has the rows, 1 closes the first window, 2 reads the idle tick, and 3 closes the second window.
    sink = Brittle(breaks={2, 3})
    for deaths in range(2):
        with live(spark, target, windows(folder, sink), clock) as running:
            running.wait(lambda events: any(isinstance(event, FlowStarted) for event in events))
            if deaths == 0:
                running.wait_rows(read=2, written=1)
            clock.minute += 30
            running.thread.join(PATIENCE)
        assert running.figures["windows"].error is not None
    assert sink.breaks == set()
    assert sink.rows() == model(1)
    folder.put((3, 71), (4, 72))
    with live(spark, target, windows(folder, sink), clock) as running:
        running.wait_rows(read=2, written=1)
        assert sink.rows() == model(1, 6)
    # Stopped amid an open window and started again with nothing to read.
    with live(spark, target, windows(folder, sink), clock) as running:
        running.wait(lambda events: any(isinstance(event, FlowStarted) for event in events))
        clock.minute += 60
        running.wait_rows(written=1)
    assert sink.rows() == sorted([*model(1, 6), (10, 2, 2)], key=str)
    assert running.figures["windows"].late == 0


def test_an_idle_side_of_a_join_no_longer_delays_the_other(spark: SparkSession, target: Target, tmp_path: Path):
    """Orders without a payment come out with none once a payment could not come any more; no payment ever comes."""
    orders, payments = Folder(tmp_path / "orders"), Folder(tmp_path / "payments")
    sink, clock = Brittle(), Hands(10)

    def unpaid(orders: DataFrame, payments: DataFrame) -> DataFrame:
        # The right side first: sources are numbered as the plan reads them, not as they are declared.
        paid = payments.select(F.col("id").alias("paid"), F.col("at").alias("paid_at"))
        within = "id = paid AND paid_at BETWEEN at AND at + INTERVAL 10 MINUTES"
        return paid.join(orders, F.expr(within), "right_outer").select("id", "paid")

    flow = Flow(
        "windows",
        {"orders": Input(orders.source, watermark=QUIET), "payments": Input(payments.source, watermark=QUIET)},
        unpaid,
        sink,
        state=STATE,
    )
    orders.put((1, 0), (2, 1))
    payments.put((2, 2))
    with live(spark, target, flow, clock) as running:
        running.wait_rows(read=3, written=1)
        assert sink.rows() == [(2, 2)]
        # Orders continue, payments are idle: without idle ticks the watermark would stay at 12:01.
        clock.minute = 30
        orders.put((3, 29))
        running.wait_rows(read=4, written=2)
        assert sink.rows() == [(1, None), (2, 2)]
    record = json.loads(Path(target.flow_folder("windows"), "headrace", "order.json").read_text())
    assert [(item["input"], item["role"]) for item in record["sources"]] == [
        ("payments", "rows"),
        ("payments", "idle ticks"),
        ("orders", "rows"),
        ("orders", "idle ticks"),
    ]
    assert running.figures["windows"].rows_in == 4


def test_idle_cannot_be_added_to_a_checkpoint_and_can_be_taken_away(
    spark: SparkSession, target: Target, tmp_path: Path
):
    folder, sink, clock = Folder(tmp_path / "in"), Brittle(), Hands(8)
    folder.put((1, 1))
    plain = Watermark("at", "1 minute")
    once = AvailableNow()
    assert run(spark, target, windows(folder, sink, plain, once), clock).figures["windows"].error is None
    refused = run(spark, target, windows(folder, sink, QUIET, once), clock).figures["windows"].error
    assert refused is not None
    assert refused.code == "HR-343"
    assert "idle ticks of rows" in refused.why
    elsewhere = Target("elsewhere", lake=target.lake, checkpoints=f"{target.checkpoints}-2")
    assert run(spark, elsewhere, windows(folder, Brittle(), QUIET, once), clock).figures["windows"].error is None
    folder.put((2, 3))
    again = run(spark, elsewhere, windows(folder, Brittle(), plain, once), clock).figures["windows"]
    assert (again.error, again.rows_in) == (None, 1)


PAYLOAD = StructType(
    [StructField("id", LongType(), nullable=False), StructField("at", TimestampType(), nullable=False)]
)


def test_invalid_rows_are_quarantined_under_their_input_whatever_the_transform_reads_first(
    spark: SparkSession, tmp_path: Path
):
    watermark = Watermark("at", "1 minute", idle_timeout="5 minutes")
    flow = Flow(
        "swapped",
        {name: Input(KafkaSource(name), schema=PAYLOAD, watermark=watermark) for name in ("first", "second")},
        lambda first, second: second.select("id").union(first.select("id")),
        KafkaSink("out"),
    )
    good = {"id": 1, "at": NOON}
    actual = rehearse(
        flow,
        [Arrive(first=[good, "{"], second=[good]), Arrive(first=[good], second=["not json", good])],
        spark=spark,
        folder=tmp_path,
    )
    assert sorted((row.input, bytes(row.value).decode()) for row in actual.quarantine) == [
        ("first", "{"),
        ("second", "not json"),
    ]
    assert len(actual.rows) == 4
