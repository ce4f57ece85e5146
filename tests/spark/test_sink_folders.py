"""One flow writes a folder of files, another reads it: committed files only, as they were written."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from headrace.clients.file_sink_log import FileFormat, committed_files
from headrace.errors import HeadraceError
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import AvailableNow
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.runtime.events import EventBus
from headrace.runtime.supervisor import Backoff, Supervisor
from headrace.sinks.files import FileSink
from headrace.sinks.memory import Memory
from headrace.sources.files import FileSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

RIDE = StructType(
    [
        StructField("id", LongType()),
        StructField("note", StringType()),
        StructField("at", TimestampType()),
        StructField("hour", StringType()),
    ]
)
AT = datetime(2024, 5, 6, 7, 30, 0, 250_001, tzinfo=UTC)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))


def rides(spark: SparkSession, *notes: tuple[int, str | None]) -> DataFrame:
    return spark.createDataFrame([(*note, AT) for note in notes], "id long, note string, at timestamp").coalesce(1)


def write(spark: SparkSession, target: Target, sink: FileSink, number: int, *notes: tuple[int, str | None]) -> None:
    sink.write(rides(spark, *notes), Batch("write", "q1", number, target))


def run(spark: SparkSession, target: Target, source: FileSource, sink: Memory) -> dict[str, HeadraceError]:
    flow = Flow("read", Input(source), lambda rows: rows, sink, trigger=AvailableNow())
    return Supervisor(spark, target, [flow], EventBus(), backoff=Backoff(attempts=0)).run()


def source(path: str, file_format: FileFormat = "csv", **more: Any) -> FileSource:
    return FileSource(path, file_format, RIDE, max_files_per_trigger=1, **more)


@pytest.mark.parametrize("file_format", ["csv", "json", "parquet", "orc"])
def test_a_flow_reads_what_another_has_committed_and_nothing_else(
    spark: SparkSession, target: Target, file_format: FileFormat
):
    """An attempt that never committed leaves its files: here those of batch 1, whose entry in the log is removed."""
    sink, memory = FileSink("rides", file_format, hourly="at"), Memory()
    folder = Path(target.table("rides"))
    write(spark, target, sink, 0, (1, "a,\n'b\""), (2, None))
    write(spark, target, sink, 1, (9, "never committed"))
    for entry in (folder / "_spark_metadata").glob("*1*"):
        entry.unlink()
    assert len([*folder.glob(f"date=2024-05-06/hour=07/*.{file_format}")]) == 2

    assert run(spark, target, source("rides", file_format), memory) == {}
    write(spark, target, sink, 1, (3, ""))
    assert run(spark, target, source("rides", file_format), memory) == {}

    actual = [[(row.id, row.note, row.at.timestamp(), row.hour) for row in batch] for batch in memory.batches()]
    moment = AT.timestamp()
    assert actual == [[(1, "a,\n'b\"", moment, "07"), (2, None, moment, "07")], [(3, "", moment, "07")]]
    assert len(committed_files(str(folder))) == 2


@pytest.mark.parametrize("path", ["rides/*", "rides/date=2024-05-06", "ride[s]", "*", "rides/date=*/hour=07/*.csv"])
def test_a_path_of_which_spark_would_not_read_the_log_is_refused(spark: SparkSession, target: Target, path: str):
    write(spark, target, FileSink("rides", "csv", hourly="at"), 0, (1, "a"))
    error = run(spark, target, source(path), Memory())["read"]

    assert error.code == "HR-210"
    assert f"{target.table('rides')}, and choose rows" in error.remedy


def test_another_format_than_the_sink_writes_is_refused(spark: SparkSession, target: Target):
    write(spark, target, FileSink("rides", "json"), 0, (1, "a"))

    assert run(spark, target, source("rides"), Memory())["read"].code == "HR-210"


def test_a_folder_with_partitions_is_not_read_before_they_are_known(spark: SparkSession, target: Target):
    """Spark would take the folders' columns for columns of the files, and hand on nulls for them."""
    write(spark, target, FileSink("rides", "csv", hourly="at"), 0)
    error = run(spark, target, source("rides"), Memory())["read"]

    assert error.code == "HR-516"
    assert "partitioned by date, hour" in error.why
