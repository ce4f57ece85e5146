"""Every source but Kafka in real queries: rows arrive once, batches respect their bound, a restart continues."""

from __future__ import annotations

import os
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from live_run import PATIENCE
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from headrace.errors import DataError, HeadraceError, ServiceUnavailable
from headrace.flow.flow import Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.inputs import Input
from headrace.flow.levers import AsFastAsPossible, AvailableNow, OutputMode
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch
from headrace.flow.source import Source
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.events import BatchCommitted, EventBus, FlowEvent
from headrace.runtime.supervisor import Backoff, Supervisor
from headrace.sources.delta.changes import DeltaChangesSource
from headrace.sources.delta.source import DeltaSource
from headrace.sources.files import FileSource
from headrace.sources.rate import RateSource
from headrace.sources.socket import SocketSource

pytestmark = pytest.mark.spark

ORDER = StructType([StructField("id", IntegerType()), StructField("city", StringType())])


@dataclass
class CollectingSink:
    """Keeps the rows of each batch in memory, sorted."""

    columns: tuple[str, ...]
    batches: list[list[tuple[Any, ...]]] = field(default_factory=list)
    name: str = "kept"
    guarantee: ClassVar[Guarantee] = Guarantee.BEST_EFFORT
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset(OutputMode)

    def preflight(self, target: Target) -> None: ...

    def prepare(self, spark: SparkSession, target: Target, cache: RunCache) -> None: ...

    def write(self, rows: DataFrame, batch: Batch) -> None:
        self.batches.append(sorted(tuple(row) for row in rows.select(*self.columns).collect()))


@dataclass(frozen=True)
class Workspace:
    """A target, and flows named `read` in it."""

    spark: SparkSession
    target: Target

    def drain(self, source: Source, *columns: str) -> list[list[tuple[Any, ...]]]:
        """Run a flow over what is there, and return the rows of each batch of this start."""
        sink = CollectingSink(columns)
        errors = self._supervised(source, sink).run()
        assert errors == {}
        return sink.batches

    def failure(self, source: Source) -> HeadraceError:
        """Run a flow that has to fail, and return its error."""
        return self._supervised(source, CollectingSink(("*",))).run()["read"]

    def run_until(self, source: Source, column: str, rows: int) -> list[Any]:
        """Run a flow that has no end until so many rows are committed, and return the values of a column."""
        sink, bus, enough = CollectingSink((column,)), EventBus(), threading.Event()
        observed = 0

        def on_event(event: FlowEvent) -> None:
            nonlocal observed
            observed += event.rows_in if isinstance(event, BatchCommitted) else 0
            if observed >= rows:
                enough.set()

        bus.subscribe(on_event)
        flow = Flow("read", Input(source), lambda rows: rows, sink, trigger=AsFastAsPossible())
        supervisor = Supervisor(self.spark, self.target, [flow], bus, backoff=Backoff(attempts=0))
        running = threading.Thread(target=supervisor.run)
        running.start()
        arrived = enough.wait(PATIENCE)
        supervisor.drain()
        running.join(PATIENCE)
        assert arrived
        return [value for batch in sink.batches for (value,) in batch]

    def read_again(self, source: Source, batch_id: int, *columns: str) -> list[tuple[Any, ...]]:
        """Return the rows of a batch after the first, by the offsets that Spark logged for it."""
        checkpoint = Checkpoint.of("read", self.target, self.spark)
        offsets = checkpoint.offset_range(batch_id, 0)
        assert offsets is not None
        rows = source.batch(self.spark, self.target, *offsets)
        return sorted(tuple(row) for row in rows.select(*columns).collect())

    def path(self, path: str) -> Path:
        return Path(self.target.table(path))

    def append(self, first: int, last: int, files: int = 1) -> None:
        """Append the numbers from `first` to `last` to the table `numbers`, in one version."""
        rows = self.spark.range(first, last + 1, 1, files)
        rows.write.format("delta").mode("append").save(self.target.table("numbers"))

    def sql(self, text: str, table: str = "numbers") -> None:
        self.spark.sql(text.replace("TABLE_HERE", f"delta.`{self.target.table(table)}`"))

    def _supervised(self, source: Source, sink: CollectingSink) -> Supervisor:
        flow = Flow("read", Input(source), lambda rows: rows, sink, trigger=AvailableNow())
        return Supervisor(self.spark, self.target, [flow], EventBus(), backoff=Backoff(attempts=0))


@pytest.fixture
def workspace(spark: SparkSession, tmp_path: Path) -> Workspace:
    return Workspace(spark, Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints")))


# ---- files ----


@pytest.fixture
def landing(workspace: Workspace) -> Path:
    """Three files of CSV, one order each, a minute apart."""
    folder = workspace.path("landing")
    folder.mkdir(parents=True)
    for number, city in enumerate(["Oslo", "Rome", "Kyiv"], start=1):
        put(folder, f"{number}.csv", f"{number},{city}\n", minute=number)
    return folder


def put(folder: Path, name: str, text: str, *, minute: int) -> None:
    (folder / name).write_text(text)
    # A time of its own, in the year 2023: the order of files is that of their times.
    os.utime(folder / name, (1_700_000_000 + 60 * minute,) * 2)


def test_files_arrive_oldest_first_in_batches_of_the_bound(workspace: Workspace, landing: Path):
    actual = workspace.drain(FileSource("landing", "csv", ORDER, max_files_per_trigger=2), "id", "city")

    assert actual == [[(1, "Oslo"), (2, "Rome")], [(3, "Kyiv")]]


def test_a_bound_in_bytes_ends_a_batch_of_files(workspace: Workspace, landing: Path):
    # Each file has 7 bytes: a second one would make 14.
    actual = workspace.drain(FileSource("landing", "csv", ORDER, max_bytes_per_trigger=8), "id")

    assert actual == [[(1,)], [(2,)], [(3,)]]


def test_a_restart_reads_only_files_that_are_new_even_if_their_time_is_old(workspace: Workspace, landing: Path):
    source = FileSource("landing", "csv", ORDER, max_files_per_trigger=9)
    workspace.drain(source, "id")
    put(landing, "moved_here.csv", "4,Bonn\n", minute=-60 * 24 * 30)

    assert workspace.drain(source, "id") == [[(4,)]]


@pytest.mark.parametrize("file_format", ["json", "parquet", "orc"])
def test_other_formats_are_read_by_the_same_schema(workspace: Workspace, file_format: str):
    rows = workspace.spark.createDataFrame([(1, "Oslo"), (2, None)], ORDER).coalesce(1)
    rows.write.format(file_format).save(str(workspace.path("landing")))

    actual = workspace.drain(FileSource("landing", file_format, ORDER, max_files_per_trigger=9), "id", "city")  # type: ignore[arg-type]

    assert actual == [[(1, "Oslo"), (2, None)]]


@pytest.mark.parametrize(("file_format", "line"), [("csv", "one,Oslo\n"), ("json", '{"id": "one"}\n')])
def test_a_line_that_cannot_be_read_stops_the_flow(workspace: Workspace, landing: Path, file_format: str, line: str):
    put(workspace.path("landing"), f"bad.{file_format}", line, minute=9)

    source = FileSource(f"landing/*.{file_format}", file_format, ORDER, max_files_per_trigger=9)  # type: ignore[arg-type]

    assert workspace.failure(source).code == "HR-514"


def test_a_line_that_cannot_be_read_becomes_nulls_if_the_options_allow_it(workspace: Workspace, landing: Path):
    put(landing, "bad.csv", "one,Oslo\n", minute=9)
    source = FileSource("landing/bad*.csv", "csv", ORDER, max_files_per_trigger=9, options={"MODE": "PERMISSIVE"})

    assert workspace.drain(source, "id", "city") == [[(None, "Oslo")]]


# ---- Delta tables ----


def test_a_table_is_read_completely_and_then_by_its_appended_rows(workspace: Workspace):
    source = DeltaSource("numbers", max_files_per_trigger=9)
    workspace.append(1, 2)
    workspace.append(3, 3)

    first = workspace.drain(source, "id")
    workspace.append(4, 5)

    assert first == [[(1,), (2,), (3,)]]
    assert workspace.drain(source, "id") == [[(4,), (5,)]]


def test_a_bound_in_files_splits_a_version_and_each_part_can_be_read_again(workspace: Workspace):
    source = DeltaSource("numbers", max_files_per_trigger=2, starting_version=1)
    workspace.append(1, 1)
    workspace.append(2, 4, files=3)
    workspace.append(5, 7, files=3)

    actual = workspace.drain(source, "id")
    workspace.sql("OPTIMIZE TABLE_HERE")

    assert actual == [[(2,), (3,)], [(4,), (5,)], [(6,), (7,)]]
    assert workspace.read_again(source, 1, "id") == [(4,), (5,)]
    assert workspace.read_again(source, 2, "id") == [(6,), (7,)]


def test_a_bound_in_bytes_ends_a_batch_of_a_table(workspace: Workspace):
    workspace.append(1, 3, files=3)

    assert len(workspace.drain(DeltaSource("numbers", max_bytes_per_trigger=1), "id")) == 3


def test_compacting_a_table_changes_nothing_for_who_reads_it(workspace: Workspace):
    source = DeltaSource("numbers", max_files_per_trigger=9)
    workspace.append(1, 2, files=2)
    workspace.drain(source, "id")
    workspace.sql("OPTIMIZE TABLE_HERE")
    workspace.append(3, 3)

    assert [row for batch in workspace.drain(source, "id") for row in batch] == [(3,)]


def test_a_partitioned_table_with_odd_values_is_read_again(workspace: Workspace):
    source = DeltaSource("numbers", max_files_per_trigger=1, starting_version=0)
    rows = workspace.spark.createDataFrame([(1, "a b/c%"), (2, "é")], ORDER).coalesce(1)
    rows.write.format("delta").partitionBy("city").save(str(workspace.path("numbers")))

    actual = workspace.drain(source, "id", "city")

    assert sorted(actual) == [[(1, "a b/c%")], [(2, "é")]]
    assert workspace.read_again(source, 1, "id", "city") == actual[1]


def test_a_deleted_row_stops_a_flow_that_reads_appends(workspace: Workspace):
    source = DeltaSource("numbers", max_files_per_trigger=9)
    workspace.append(1, 2)
    workspace.drain(source, "id")
    workspace.sql("DELETE FROM TABLE_HERE WHERE id = 1")

    assert workspace.failure(source).code == "HR-512"


def test_the_table_of_the_first_start_cannot_be_read_again(workspace: Workspace):
    source = DeltaSource("numbers", max_files_per_trigger=1)
    workspace.append(1, 2, files=2)
    workspace.drain(source, "id")

    with pytest.raises(DataError, match=r"HR-511.*first start"):
        workspace.read_again(source, 1, "id")


def test_another_table_in_the_same_place_is_not_read_in_its_stead(workspace: Workspace):
    source = DeltaSource("numbers", max_files_per_trigger=1, starting_version=0)
    workspace.append(1, 2, files=2)
    workspace.drain(source, "id")
    workspace.path("numbers").rename(workspace.path("moved"))
    workspace.append(1, 2, files=2)

    with pytest.raises(DataError, match=r"HR-511.*not the one that was read"):
        workspace.read_again(source, 1, "id")


# ---- changes of Delta tables ----

CHANGE = ("_commit_version", "_change_type", "id", "city")


@pytest.fixture
def customers(workspace: Workspace) -> str:
    """Version 0 makes the table, 1 inserts two rows, 2 updates one, 3 deletes the other."""
    workspace.sql(
        "CREATE TABLE TABLE_HERE (id INT, city STRING) USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)",
        "customers",
    )
    workspace.sql(
        "INSERT INTO TABLE_HERE SELECT /*+ COALESCE(1) */ * FROM VALUES (1, 'Oslo'), (2, 'Rome')", "customers"
    )
    workspace.sql("UPDATE TABLE_HERE SET city = 'Kyiv' WHERE id = 1", "customers")
    workspace.sql("DELETE FROM TABLE_HERE WHERE id = 2", "customers")
    return "customers"


INSERTED = [(1, "insert", 1, "Oslo"), (1, "insert", 2, "Rome")]
UPDATED = [(2, "update_postimage", 1, "Kyiv"), (2, "update_preimage", 1, "Oslo")]
DELETED = [(3, "delete", 2, "Rome")]


def test_inserts_updates_and_deletes_arrive_in_the_order_of_versions(workspace: Workspace, customers: str):
    source = DeltaChangesSource(customers, starting_version=0, max_files_per_trigger=1)

    assert workspace.drain(source, *CHANGE) == [INSERTED, UPDATED, DELETED]
    assert workspace.read_again(source, 1, *CHANGE) == UPDATED
    assert workspace.read_again(source, 2, *CHANGE) == DELETED


def test_one_batch_takes_several_versions_within_the_bound(workspace: Workspace, customers: str):
    source = DeltaChangesSource(customers, starting_version=2, max_files_per_trigger=9)

    assert workspace.drain(source, *CHANGE) == [UPDATED + DELETED]


def test_a_restart_reads_only_changes_that_are_new(workspace: Workspace, customers: str):
    source = DeltaChangesSource(customers, starting_version=0, max_files_per_trigger=9)
    workspace.drain(source, *CHANGE)
    workspace.sql("INSERT INTO TABLE_HERE VALUES (3, 'Bonn')", customers)

    assert workspace.drain(source, *CHANGE) == [[(4, "insert", 3, "Bonn")]]
    assert workspace.read_again(source, 1, *CHANGE) == [(4, "insert", 3, "Bonn")]


def test_a_batch_within_a_version_of_inserts_cannot_be_read_again(workspace: Workspace, customers: str):
    rows = workspace.spark.range(3, 5, 1, 2).selectExpr("CAST(id AS INT) AS id", "'Bonn' AS city")
    rows.write.format("delta").mode("append").save(str(workspace.path(customers)))
    source = DeltaChangesSource(customers, starting_version=4, max_files_per_trigger=1)

    assert sorted(workspace.drain(source, *CHANGE)) == [[(4, "insert", 3, "Bonn")], [(4, "insert", 4, "Bonn")]]
    with pytest.raises(DataError, match=r"HR-511.*within version 4"):
        workspace.read_again(source, 1, *CHANGE)


def test_a_version_that_changes_many_files_is_replayed_completely(workspace: Workspace, customers: str):
    rows = workspace.spark.range(3, 6, 1, 3).selectExpr("CAST(id AS INT) AS id", "'Bonn' AS city")
    rows.write.format("delta").mode("append").save(str(workspace.path(customers)))
    workspace.sql("UPDATE TABLE_HERE SET city = 'Bern' WHERE id > 2", customers)
    source = DeltaChangesSource(customers, starting_version=4, max_files_per_trigger=3)
    inserted = [(4, "insert", id, "Bonn") for id in (3, 4, 5)]
    updated = [(5, "update_postimage", id, "Bern") for id in (3, 4, 5)]
    updated += [(5, "update_preimage", id, "Bonn") for id in (3, 4, 5)]
    deleted = [(6, "delete", 1, "Kyiv"), *((6, "delete", id, "Bern") for id in (3, 4, 5))]

    actual = workspace.drain(source, *CHANGE)
    workspace.sql("DELETE FROM TABLE_HERE", customers)
    after = workspace.drain(DeltaChangesSource(customers, starting_version=4, max_files_per_trigger=9), *CHANGE)

    assert actual == [inserted, updated]
    assert workspace.read_again(source, 1, *CHANGE) == updated
    assert after == [deleted]
    assert workspace.read_again(source, 2, *CHANGE) == deleted


def test_a_table_without_a_change_feed_stops_the_flow(workspace: Workspace):
    workspace.append(1, 1)

    assert (
        workspace.failure(DeltaChangesSource("numbers", starting_version=0, max_files_per_trigger=9)).code == "HR-513"
    )


# ---- rows for trying things out ----


def test_a_rate_source_counts_without_gaps_and_continues_after_a_restart(workspace: Workspace):
    source = RateSource(rows_per_second=5, partitions=2)

    values = workspace.run_until(source, "value", rows=5)
    values += workspace.run_until(source, "value", rows=5)

    assert sorted(values) == list(range(len(values)))
    assert len(values) % 5 == 0, "whole seconds only"


class _Lines(socketserver.BaseRequestHandler):
    """Sends two lines to who stays, and holds the line until the test ends."""

    over = threading.Event()

    def handle(self) -> None:
        self.request.sendall(b"one\ntwo\n")
        self.over.wait()


@pytest.fixture
def port() -> Iterator[int]:
    _Lines.over.clear()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Lines) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        _Lines.over.set()
        server.shutdown()


def test_lines_of_a_socket_arrive(workspace: Workspace, port: int):
    assert sorted(workspace.run_until(SocketSource("127.0.0.1", port), "value", rows=2)) == ["one", "two"]


def test_a_socket_that_went_away_is_a_transient_error(workspace: Workspace):
    with socketserver.TCPServer(("127.0.0.1", 0), _Lines) as server:
        free = server.server_address[1]

    error = workspace.failure(SocketSource("127.0.0.1", free))

    assert isinstance(error, ServiceUnavailable)
    assert error.code == "HR-611"
