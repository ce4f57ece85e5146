"""The late ledger of flows that run: every kind of state, compared with a model in plain Python.

The model is the rule itself: a row of batch N is late when what is compared, its event time or the end of its window,
is at or before the watermark of batch N-1, which is the newest event time of the batches before that less the delay.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from headrace import (
    AvailableNow,
    DeltaSource,
    EventTime,
    FileSource,
    Flow,
    InMemory,
    Input,
    KafkaSource,
    KeyedState,
    Memory,
    Noop,
    RocksDB,
    Target,
    Timers,
    ValueState,
    Watermark,
    per_key,
)
from headrace.audit.flow_audit import BatchToAudit, FlowAudit, late_table, unexplained_table
from headrace.operate.run import Application, FlowMetrics
from headrace.runtime.events import BatchCommitted, EventBus, FlowEvent, FlowStarted
from headrace.runtime.session import flow_session
from headrace.runtime.supervisor import Supervisor
from headrace.testing import Arrive, rehearse

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.spark

DELAY = 10
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
EVENT = StructType(
    [
        StructField("id", LongType(), nullable=False),
        StructField("who", StringType(), nullable=False),
        StructField("at", TimestampType(), nullable=False),
    ]
)
# Minutes after noon, batch by batch. Batch 3 and 4 hold rows on both sides of every bound.
MINUTES: list[list[float]] = [[0, 7, 12], [40], [41, 33], [29, 30, 31, 24, 26.5, 3], [45, 29.999, 30, 20, 34, 4]]
FIRST = InMemory(shuffle_partitions=1)


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


def event(number: int, minute: float, who: str = "ann") -> dict[str, object]:
    return {"id": number, "who": who, "at": at(minute)}


def script(batches: Sequence[Sequence[float]]) -> list[Arrive]:
    return [
        Arrive(*(event(100 * number + place, minute) for place, minute in enumerate(batch)))
        for number, batch in enumerate(batches)
    ]


def expected(batches: Sequence[Sequence[float]], bound: Callable[[float], float]) -> list[tuple[int, float, float]]:
    """Return (batch, minute, minutes behind the watermark) of each late row."""
    result = []
    for number, batch in enumerate(batches):
        observed = [minute for before in batches[: max(0, number - 1)] for minute in before]
        for minute in batch:
            if observed and bound(minute) <= max(observed) - DELAY:
                result.append((number, minute, round(max(observed) - DELAY - minute, 6)))
    return sorted(result)


def filed(rows: Sequence[Row]) -> list[tuple[int, float, float]]:
    def minutes(row: Row) -> float:
        return round((row["event_time"].astimezone(UTC) - NOON).total_seconds() / 60, 6)

    return sorted((row["batch_id"], minutes(row), round(row["late_by"] / 60, 6)) for row in rows)


def flow(name: str, transform: Callable[..., DataFrame], **others: Any) -> Flow:
    input_ = Input(KafkaSource("events"), schema=EVENT, watermark=Watermark("at", f"{DELAY} minutes"))
    return Flow(name, input_, transform, Noop(), **{"state": FIRST, **others})


def sessions_and_a_chain(rows: DataFrame) -> DataFrame:
    """Return the results of three operators: sessions, and windows that are fed by windows."""
    sessions = rows.groupBy(F.session_window("at", "3 minutes"), "who").count()
    # Nothing of a record but these two columns reaches the window: its position in Kafka is recorded all the same.
    five = rows.select("at", F.lit("x").alias("y")).groupBy(F.window("at", "5 minutes"), "y").count()
    ten_of_five = five.groupBy(F.window(F.window_time("window"), "10 minutes")).agg(F.sum("count").alias("count"))
    return sessions.select("count").union(ten_of_five.select("count"))


# The operators in the order of the plan, and what each compares with the watermark.
BOUNDS: dict[int, tuple[str, Callable[[float], float]]] = {
    0: ("session window", lambda minute: minute + 3),
    # Operator 1 is fed by operator 2, and what comes out of that is never late.
    2: ("window", lambda minute: minute // 5 * 5 + 5),
}


def test_the_ledger_contains_exactly_the_rows_of_the_model(spark: SparkSession, tmp_path: Path):
    result = rehearse(flow("ledger", sessions_and_a_chain), script(MINUTES), spark=spark, folder=tmp_path, sink=Noop())

    places = {(number, minute): place for number, b in enumerate(MINUTES) for place, minute in enumerate(b)}
    by_operator = {number: [row for row in result.late if row["operator_number"] == number] for number in range(3)}
    assert by_operator.pop(1) == []
    for operator, rows in by_operator.items():
        words, bound = BOUNDS[operator]
        late = expected(MINUTES, bound)
        assert filed(rows) == late
        assert {(row["operator"], row["input"], row["topic"], row["partition"]) for row in rows} == {
            (words, "rows", "rows", 0)
        }
        # The script numbers offsets by batch and place, as this does.
        assert sorted(row["offset"] for row in rows) == sorted(
            number * 1_000_000 + places[number, minute] for number, minute, _ in late
        )
    assert result.table(unexplained_table(result.target, "ledger")) == []


def test_the_ledger_contains_the_late_rows_of_two_operators_with_the_same_input(spark: SparkSession, tmp_path: Path):
    def twice(rows: DataFrame) -> DataFrame:
        return (
            by_id(rows)
            .select(F.lit(0).alias("n"), "id", "at")
            .union(by_id_for_a_while(rows).select(F.lit(1), "id", "at"))
        )

    memory = Memory()
    result = rehearse(flow("twice", twice), script(MINUTES), spark=spark, folder=tmp_path, sink=memory)

    late = expected(MINUTES, lambda minute: minute)
    for operator in (0, 1):
        assert filed([row for row in result.late if row["operator_number"] == operator]) == late
        # Neither has taken one of them in.
        rows_ = [row for row in memory.rows() if row["n"] == operator]
        assert len(rows_) == sum(len(batch) for batch in MINUTES) - len(late)


def test_each_side_of_a_join_has_late_rows_of_its_own(spark: SparkSession, tmp_path: Path):
    left = [[0, 5], [50], [51], [39, 40, 41], [52]]
    right = [[1], [45], [52], [35, 34.999, 36], [52]]

    def joined(orders: DataFrame, payments: DataFrame) -> DataFrame:
        orders, payments = orders.alias("o"), payments.alias("p")
        in_time = F.expr("p.at BETWEEN o.at AND o.at + INTERVAL 1 HOUR")
        return orders.join(payments, (F.col("o.id") == F.col("p.id")) & in_time).select("o.id", "o.at")

    input_ = Input(KafkaSource("x"), schema=EVENT, watermark=Watermark("at", f"{DELAY} minutes"))
    join = Flow("joined", {"orders": input_, "payments": input_}, joined, Noop(), state=FIRST)
    arrivals = [
        Arrive(orders=[event(1, minute) for minute in orders], payments=[event(1, minute) for minute in payments])
        for orders, payments in zip(left, right, strict=True)
    ]
    result = rehearse(join, arrivals, spark=spark, folder=tmp_path, sink=Noop())

    # The slower input holds the watermark: it is 45 - 10 for batch 3, by the batches up to 1.
    late = {(row["input"], row["operator"], (row["event_time"].astimezone(UTC) - NOON).seconds) for row in result.late}
    assert late == {("payments", "join, right side", 35 * 60), ("payments", "join, right side", 2099)}
    assert result.table(unexplained_table(result.target, "joined")) == []


def counting() -> StatefulProcessor:
    """Return a counter of events. A class within a function goes to the workers by value: they cannot import tests."""

    class Counting(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.count = handle.getValueState("count", StructType([StructField("n", LongType())]))

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
            before = self.count.get()[0] if self.count.exists() else 0
            number = before + sum(len(row) for row in rows)
            self.count.update((number,))
            yield pd.DataFrame({"who": [key[0]], "n": [number]})

        def close(self) -> None: ...

    return Counting()


@dataclass
class Count:
    who: str
    n: int


class Clicks(KeyedState[Count, Count]):
    clock = EventTime("at")

    def handle_rows(self, key: Row, rows: list[Row], state: ValueState[Count], timers: Timers) -> Iterator[Count]:
        state.value = Count(key.who, (state.value.n if state.value else 0) + len(rows))
        yield state.value


def test_late_rows_of_a_keyed_state_class_are_recorded(spark: SparkSession, tmp_path: Path):
    def counted(rows: DataFrame) -> DataFrame:
        return per_key(rows, Clicks(), "who")

    memory = Memory()
    custom = flow("custom", counted, output_mode="update", state=RocksDB(shuffle_partitions=1))
    result = rehearse(custom, script(MINUTES), spark=spark, folder=tmp_path, sink=memory)

    late = expected(MINUTES, lambda minute: minute)
    assert filed(result.late) == late
    assert {row["operator"] for row in result.late} == {"custom state"}
    assert max(row["n"] for row in memory.rows()) == sum(len(batch) for batch in MINUTES) - len(late)


def test_late_rows_of_custom_state_are_recorded(spark: SparkSession, tmp_path: Path):
    def counted(rows: DataFrame) -> DataFrame:
        return rows.groupBy("who").transformWithStateInPandas(
            statefulProcessor=counting(),
            outputStructType="who string, n long",
            outputMode="Update",
            timeMode="eventTime",
        )

    custom = flow("custom", counted, output_mode="update", state=RocksDB(shuffle_partitions=1))
    memory = Memory()
    result = rehearse(custom, script(MINUTES), spark=spark, folder=tmp_path, sink=memory)

    late = expected(MINUTES, lambda minute: minute)
    assert filed(result.late) == late
    assert {row["operator"] for row in result.late} == {"custom state"}
    # What Spark took in is the rest.
    assert max(row["n"] for row in memory.rows()) == sum(len(batch) for batch in MINUTES) - len(late)


def written(spark: SparkSession, target: Target, source: str) -> None:
    """Put the rows where a source finds them, a batch in each file."""
    folder = Path(target.table("bronze"))
    for number, batch in enumerate(MINUTES):
        rows = [(100 * number + place, "ann", at(minute)) for place, minute in enumerate(batch)]
        if source != "files":
            spark.createDataFrame(rows, EVENT).coalesce(1).write.format("delta").mode("append").save(str(folder))
            continue
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"id": item, "who": who, "at": when.isoformat()}) for item, who, when in rows]
        (folder / f"{number}.json").write_text("\n".join(lines))
        # Spark takes the oldest file first.
        os.utime(folder / f"{number}.json", (number + 1, number + 1))


def by_id(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["id"])


def by_id_for_a_while(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicatesWithinWatermark(["id"])


def once(
    spark: SparkSession,
    target: Target,
    source: DeltaSource | FileSource,
    transform: Callable[[DataFrame], DataFrame] = by_id,
) -> FlowMetrics:
    input_ = Input(source, watermark=Watermark("at", f"{DELAY} minutes"))
    silver = Flow("silver", input_, transform, Noop(), state=FIRST, trigger=AvailableNow())
    return Application(spark, target, [silver]).run()["silver"]


def test_late_rows_of_a_source_with_its_own_columns_are_recorded_too(spark: SparkSession, tmp_path: Path):
    target = Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    written(spark, target, "delta")
    figures = once(spark, target, DeltaSource("bronze", max_files_per_trigger=1, starting_version=0))

    assert figures.error is None
    late = expected(MINUTES, lambda minute: minute)
    rows = spark.read.format("delta").load(late_table(target, "silver")).collect()
    assert filed(rows) == late
    assert {row["offset"] for row in rows} == {None}
    assert Counter(json.loads(row["row"])["id"] // 100 for row in rows) == Counter(number for number, _, _ in late)
    assert (figures.late, figures.late_unexplained) == (len(late), [])


def test_what_spark_counted_is_not_needed_after_a_kill(spark: SparkSession, tmp_path: Path):
    target = Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    written(spark, target, "files")
    source = FileSource("bronze", "json", EVENT, max_files_per_trigger=1)
    late = expected(MINUTES, lambda minute: minute)
    assert once(spark, target, source, by_id_for_a_while).late == len(late)

    # As a kill leaves it that comes after the last commit and before the first audit.
    (Path(target.flow_folder("silver")) / "headrace" / "audited.json").unlink()
    shutil.rmtree(late_table(target, "silver"))
    figures = once(spark, target, source, by_id_for_a_while)

    assert (figures.error, figures.late_unexplained) == (None, [])
    assert filed(spark.read.format("delta").load(late_table(target, "silver")).collect()) == late


def test_late_rows_of_a_batch_that_is_not_replayable_are_reported_and_recorded(spark: SparkSession, tmp_path: Path):
    target = Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    written(spark, target, "delta")
    # The table as it was at the first start: only the stream knows in which order it read the files.
    figures = once(spark, target, DeltaSource("bronze", max_files_per_trigger=1))

    counts = Counter(number for number, _, _ in expected(MINUTES, lambda minute: minute))
    assert figures.error is None
    assert figures.late == 0
    assert {gap.batch_id: gap.dropped for gap in figures.late_unexplained} == dict(counts)
    rows_ = spark.read.format("delta").load(unexplained_table(target, "silver")).collect()
    assert {row["batch_id"]: row["dropped"] for row in rows_} == dict(counts)
    assert "as it was at the flow's first start" in rows_[0]["why"]


def test_an_audit_that_lags_behind_does_not_lose_what_spark_counted(spark: SparkSession, tmp_path: Path):
    target = Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    written(spark, target, "delta")
    source = Input(DeltaSource("bronze", max_files_per_trigger=1), watermark=Watermark("at", f"{DELAY} minutes"))
    silver = Flow("silver", source, by_id, Noop(), state=FIRST, trigger=AvailableNow())
    bus, events = EventBus(), list[FlowEvent]()
    bus.subscribe(events.append)
    # Every batch is committed before the first one is audited.
    assert Supervisor(spark, target, [silver], bus).run() == {}

    audit = FlowAudit(flow_session(spark, silver), target, silver)
    for event in events:
        if isinstance(event, BatchCommitted):
            audit.audit_batches(
                [BatchToAudit(event.batch_id, invalid=False, late=event.dropped > 0, dropped=event.dropped_by_operator)]
            )

    counts = Counter(number for number, _, _ in expected(MINUTES, lambda minute: minute))
    assert {gap.batch_id: gap.dropped for gap in audit.audit_counts().unexplained} == dict(counts)


def test_a_start_names_the_last_batch_of_the_run_before(spark: SparkSession, tmp_path: Path):
    target = Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    written(spark, target, "delta")
    source = Input(DeltaSource("bronze", max_files_per_trigger=1), watermark=Watermark("at", f"{DELAY} minutes"))
    silver = Flow("silver", source, by_id, Noop(), state=FIRST, trigger=AvailableNow())
    bus, starts = EventBus(), list[int | None]()
    bus.subscribe(lambda event: starts.append(event.last_batch) if isinstance(event, FlowStarted) else None)

    for _ in range(2):
        assert Supervisor(spark, target, [silver], bus).run() == {}

    # One batch for each file, and one without rows that closes what the watermark has passed.
    assert starts == [None, len(MINUTES)]
