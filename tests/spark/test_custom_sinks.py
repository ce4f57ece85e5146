"""Sinks from a function and from a store's transactions, the memory sink and the noop sink: what each batch leaves."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from headrace.errors import FlowError, RecoveryError
from headrace.flow.flow import Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.inputs import Input
from headrace.flow.levers import AvailableNow, OutputMode
from headrace.flow.sink import Batch, Sink, TracksBatches
from headrace.flow.target import Target
from headrace.runtime.events import EventBus
from headrace.runtime.supervisor import Backoff, Supervisor
from headrace.sinks.custom import CustomExactlyOnceSink, CustomSink
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sinks.fan_out import FanOut
from headrace.sinks.memory import Memory
from headrace.sinks.noop import Noop
from headrace.sources.delta.source import DeltaSource

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))


def rows(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(item,) for item in ids], "id long").coalesce(1)


def counted(spark: SparkSession, *ids: int) -> tuple[DataFrame, Accumulator[int]]:
    """Return rows, and a counter of how often one of them was computed."""
    count = spark.sparkContext.accumulator(0)

    def of(row: object) -> object:
        count.add(1)
        return row

    return spark.createDataFrame(rows(spark, *ids).rdd.map(of), "id long"), count


def batch(target: Target, number: int, query_id: str = "q1", offsets: str = "") -> Batch:
    return Batch("rides", query_id, number, target, offsets=offsets or f"digest {number}")


@dataclass
class Calls:
    """A function that notes what it is handed, and fails as often as declared, after it took the rows."""

    failures: int = 0
    observed: list[tuple[int, list[int]]] = field(default_factory=list)

    def __call__(self, rows: DataFrame, batch: Batch) -> None:
        self.observed.append((batch.id, sorted(row.id for row in rows.collect())))
        if self.failures:
            self.failures -= 1
            raise ConnectionError("killed here")


# ---- a function ----


def test_a_function_is_handed_every_batch_and_none_that_is_complete(spark: SparkSession, target: Target):
    calls = Calls()
    sink = CustomSink("calls", calls)
    for number, ids in ((0, (1, 2)), (0, (1, 2)), (1, (3,)), (1, (3,))):
        sink.write(rows(spark, *ids), batch(target, number))

    assert calls.observed == [(0, [1, 2]), (1, [3])]
    assert sink.guarantee is Guarantee.AT_LEAST_ONCE
    assert not isinstance(sink, TracksBatches)


def test_a_batch_that_the_function_did_not_finish_is_handed_over_again(spark: SparkSession, target: Target):
    calls = Calls(failures=1)
    sink = CustomSink("calls", calls)
    with pytest.raises(ConnectionError):
        sink.write(rows(spark, 1), batch(target, 0))
    sink.write(rows(spark, 1), batch(target, 0))

    assert calls.observed == [(0, [1]), (0, [1])]


def test_a_ledger_that_does_not_fit_the_batch_is_refused(spark: SparkSession, target: Target):
    calls = Calls()
    sink = CustomSink("calls", calls)
    for number in range(2):
        sink.write(rows(spark, number), batch(target, number))
    for refused, why in (
        (batch(target, 0, "q2"), "HR-313.*another checkpoint"),
        (batch(target, 3), "HR-314.*last one is 1: those between are missing"),
        (batch(target, 0), "HR-314.*set back"),
        (batch(target, 1, offsets="other"), "HR-314.*set back"),
    ):
        with pytest.raises(RecoveryError, match=why):
            sink.write(rows(spark, 9), refused)

    assert calls.observed == [(0, [0]), (1, [1])]


def test_a_missing_ledger_starts_again_and_a_damaged_one_is_refused(spark: SparkSession, target: Target):
    calls = Calls()
    sink = CustomSink("calls", calls)
    sink.write(rows(spark, 7), batch(target, 7))
    ledger = Path(target.flow_folder("rides")) / "headrace" / "ledger-0.json"
    ledger.write_text(ledger.read_text()[:9])
    with pytest.raises(RecoveryError, match=r"HR-319.*cannot be read"):
        sink.write(rows(spark, 8), batch(target, 8))

    assert calls.observed == [(7, [7])]


def test_a_driver_that_a_later_one_has_overtaken_is_refused(spark: SparkSession, target: Target):
    calls = Calls()
    sink = CustomSink("calls", calls)
    sink.write(rows(spark, 1), Batch("rides", "q1", 0, target, fence=2))
    with pytest.raises(RecoveryError, match="HR-304"):
        sink.write(rows(spark, 2), Batch("rides", "q1", 1, target, fence=1))


@pytest.mark.parametrize("reads", [0, 1, 3])
def test_the_rows_are_computed_once_however_often_the_function_reads_them(
    spark: SparkSession, target: Target, reads: int
):
    def read(rows: DataFrame, _batch: Batch) -> None:
        for _ in range(reads):
            assert rows.count() == 3

    created, computed = counted(spark, 1, 2, 3)
    CustomSink("reads", read).write(created, batch(target, 0))

    assert computed.value == 3
    assert not created.is_cached


def test_a_sink_does_not_unpersist_the_rows_that_a_fan_out_has_persisted(spark: SparkSession, target: Target):
    """Each keeps its rows while it works; letting go of the fan-out's would have the next sink compute them again."""
    created, computed = counted(spark, 1, 2, 3)
    first, last = Calls(), Calls()
    keeping = [CustomSink("first", first), DeltaUpsert("table", key=["id"]), FanOut(Noop())]
    FanOut(*keeping, CustomSink("last", last)).write(created, batch(target, 0))

    assert computed.value == 3
    assert first.observed == last.observed == [(0, [1, 2, 3])]


# ---- a store with transactions ----


class Orders:
    """One transaction of an SQLite database: rows and record in one file, and one writer at a time."""

    def __init__(self, path: Path, *, dies: str = "") -> None:
        self._dies = dies
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("CREATE TABLE IF NOT EXISTS epochs (key TEXT PRIMARY KEY, text TEXT)")
        self._connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER)")
        self._connection.execute("BEGIN IMMEDIATE")

    def last(self, key: str) -> str | None:
        actual = self._connection.execute("SELECT text FROM epochs WHERE key = ?", (key,)).fetchone()
        return None if actual is None else str(actual[0])

    def write(self, rows: DataFrame, batch: Batch) -> None:
        self._connection.executemany("INSERT INTO orders VALUES (?)", ((row.id,) for row in rows.toLocalIterator()))
        self._die("write")

    def record(self, key: str, text: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO epochs VALUES (?, ?)", (key, text))
        self._die("record")

    def commit(self) -> None:
        self._connection.execute("COMMIT")
        # An answer that never arrives: committed, and not known to be.
        self._die("commit")
        self._connection.close()

    def abort(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._connection.close()

    def _die(self, here: str) -> None:
        if here == self._dies:
            raise ConnectionError("killed here")


def orders(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [actual for (actual,) in connection.execute("SELECT id FROM orders ORDER BY id")]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "orders.db"


@pytest.mark.parametrize("dies", ["write", "record", "commit"])
def test_a_transaction_that_breaks_anywhere_leaves_each_row_once(
    spark: SparkSession, target: Target, database: Path, dies: str
):
    sink = CustomExactlyOnceSink("orders", lambda _target: Orders(database))
    broken = CustomExactlyOnceSink("orders", lambda _target: Orders(database, dies=dies))
    sink.write(rows(spark, 1, 2), batch(target, 0))
    with pytest.raises(ConnectionError):
        broken.write(rows(spark, 3), batch(target, 1))
    assert orders(database) == ([1, 2, 3] if dies == "commit" else [1, 2])
    for _ in range(2):
        sink.write(rows(spark, 3), batch(target, 1))

    assert orders(database) == [1, 2, 3]
    assert sink.guarantee is Guarantee.EXACTLY_ONCE


def test_a_record_that_does_not_fit_the_batch_is_refused(spark: SparkSession, target: Target, database: Path):
    sink = CustomExactlyOnceSink("orders", lambda _target: Orders(database))
    with pytest.raises(RecoveryError, match=r"HR-314.*has no entry, and 1 batches were written before"):
        sink.write(rows(spark, 9), batch(target, 1))
    for number in range(2):
        sink.write(rows(spark, number), batch(target, number))
    for refused, why in (
        (batch(target, 0, "q2"), "HR-313"),
        (batch(target, 3), "HR-314.*missing"),
        (batch(target, 0), "HR-314.*set back"),
    ):
        with pytest.raises(RecoveryError, match=why):
            sink.write(rows(spark, 9), refused)

    assert orders(database) == [0, 1]


def test_a_batch_that_is_in_is_computed_all_the_same(spark: SparkSession, target: Target, database: Path):
    sink = CustomExactlyOnceSink("orders", lambda _target: Orders(database))
    sink.write(rows(spark, 1), batch(target, 0))
    created, computed = counted(spark, 1)
    sink.write(created, batch(target, 0))

    assert computed.value == 1
    assert orders(database) == [1]


def test_a_store_returns_its_committed_batches(spark: SparkSession, target: Target, database: Path):
    sink = CustomExactlyOnceSink("orders", lambda _target: Orders(database))
    assert isinstance(sink, TracksBatches)
    empty = sink.committed_batches(spark, "rides", "0", target)
    assert (empty.place, empty.identity, empty.last) == ("the store of custom:orders", None, {})
    for number in range(2):
        sink.write(rows(spark, number), batch(target, number))
    first = sink.committed_batches(spark, "rides", "0", target)
    database.unlink()
    sink.write(rows(spark, 0), batch(target, 0))

    assert first.last == {"q1": 1}
    assert sink.committed_batches(spark, "rides", "0", target).last == {"q1": 0}
    assert sink.committed_batches(spark, "rides", "0", target).identity not in (None, first.identity)
    assert sink.committed_batches(spark, "rides", "0.1", target).last == {}


# ---- memory, and nothing ----


def test_memory_stores_each_batch_once_in_the_order_of_batches(spark: SparkSession, target: Target):
    sink = Memory()
    for number, ids in ((0, (1,)), (1, (2, 3)), (0, (4,)), (2, ())):
        sink.write(rows(spark, *ids), batch(target, number))
    sink.write(rows(spark, 5), batch(target, 0, "q2"))

    assert [[row.id for row in part] for part in sink.batches()] == [[4], [2, 3], [], [5]]
    assert [row.id for row in sink.rows()] == [4, 2, 3, 5]
    sink.clear()
    assert sink.rows() == []


def test_memory_stores_the_last_result_in_complete_mode_and_every_change_in_update_mode(
    spark: SparkSession, target: Target
):
    def changes(*pairs: tuple[str, int]) -> DataFrame:
        return spark.createDataFrame(pairs, "city string, rides int").coalesce(1)

    for mode, all_rows, newest in (
        (OutputMode.COMPLETE, [("Oslo", 2)], [("Oslo", 2)]),
        (OutputMode.UPDATE, [("Oslo", 1), ("Rome", 1), ("Oslo", 2)], [("Oslo", 2), ("Rome", 1)]),
    ):
        sink = Memory()
        sink.write(changes(("Oslo", 1), ("Rome", 1)), Batch("rides", "q1", 0, target, mode=mode))
        sink.write(changes(("Oslo", 2)), Batch("rides", "q1", 1, target, mode=mode))
        assert [tuple(row) for row in sink.rows()] == all_rows
        assert sorted(tuple(row) for row in sink.newest("city")) == newest


def test_memory_refuses_a_batch_beyond_its_limit_and_retains_its_rows(spark: SparkSession, target: Target):
    sink = Memory(limit=3)
    sink.write(rows(spark, 1, 2), batch(target, 0))
    sink.write(rows(spark, 1, 2, 3), batch(target, 0))
    with pytest.raises(FlowError, match=r"HR-216.*3 rows at most, and had room for 0"):
        sink.write(rows(spark, 4), batch(target, 1))

    assert [row.id for row in sink.rows()] == [1, 2, 3]


def never_read(_rows: DataFrame, _batch: Batch) -> None:
    """A function that has no use for its rows."""


SINKS: list[Sink] = [Noop(), Memory(), CustomSink("never_read", never_read)]


@pytest.fixture
def numbers(spark: SparkSession, target: Target) -> DeltaSource:
    for first in (0, 10):
        spark.range(first, first + 10, 1, 1).write.format("delta").mode("append").save(target.table("numbers"))
    return DeltaSource("numbers", max_files_per_trigger=1, starting_version=0)


@pytest.mark.parametrize("sink", SINKS, ids=lambda sink: sink.name)
def test_a_flow_with_state_runs_into_every_sink_and_again_after_a_crash(
    spark: SparkSession, target: Target, numbers: DeltaSource, sink: Sink
):
    """Spark fails a batch whose state is not committed: one that is never read, or read in part."""

    def per_parity(rows: DataFrame) -> DataFrame:
        return rows.groupBy((F.col("id") % 2).alias("odd")).agg(F.count("*").alias("numbers"))

    flow = Flow("state", Input(numbers), per_parity, sink, output_mode="update", trigger=AvailableNow())

    def run() -> None:
        assert Supervisor(spark, target, [flow], EventBus(), backoff=Backoff(attempts=0)).run() == {}

    run()
    # A driver that died before the commit of the last batch.
    commits = Path(target.flow_folder("state")) / "spark" / "commits"
    for name in ("1", ".1.crc"):
        (commits / name).unlink()
    run()

    if isinstance(sink, Memory):
        assert sorted(tuple(row) for row in sink.newest("odd")) == [(0, 10), (1, 10)]
        assert [len(batch) for batch in sink.batches()] == [2, 2]
