"""Batches appended to a folder of files, behind the log of what is committed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from headrace.clients.file_sink_log import FileFormat, committed_files
from headrace.errors import DataError, FlowError, RecoveryError
from headrace.flow.sink import Batch, CommittedBatches
from headrace.flow.target import Target
from headrace.sinks.files import FileSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SINK = FileSink("gold/rides")


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))


def rows(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(item, f"city {item % 2}") for item in ids], "id long, city string").coalesce(1)


def batch(target: Target, number: int) -> Batch:
    return Batch("rides", "q1", number, target)


def stored_rows(spark: SparkSession, target: Target) -> list[int]:
    return sorted(row["id"] for row in spark.read.parquet(target.table(SINK.path)).collect())


def on_disk(target: Target) -> list[int]:
    """Return what lies in the folder, committed or not."""
    files = Path(target.table(SINK.path)).glob("**/*.parquet")
    return sorted(item for file in files for item in pq.ParquetFile(file).read()["id"].to_pylist())


def test_a_batch_that_is_run_again_is_written_once(spark: SparkSession, target: Target) -> None:
    SINK.write(rows(spark, 1, 2), batch(target, 0))
    SINK.write(rows(spark, 1, 2), batch(target, 0))
    SINK.write(rows(spark, 3), batch(target, 1))
    assert stored_rows(spark, target) == on_disk(target) == [1, 2, 3]


def test_a_reader_sees_only_the_files_of_batches_that_committed(spark: SparkSession, target: Target) -> None:
    """A driver killed before the commit leaves files behind that no log names: here batch 1, its log entry removed."""
    SINK.write(rows(spark, 1), batch(target, 0))
    SINK.write(rows(spark, 2), batch(target, 1))
    for entry in (Path(target.table(SINK.path)) / "_spark_metadata").glob("*1*"):
        entry.unlink()
    assert on_disk(target) == [1, 2]
    assert stored_rows(spark, target) == [1]
    SINK.write(rows(spark, 2), batch(target, 1))
    assert stored_rows(spark, target) == [1, 2]


def test_a_batch_that_fails_half_way_is_not_seen_and_is_written_when_it_is_run_again(
    spark: SparkSession, target: Target
) -> None:
    SINK.write(rows(spark, 1), batch(target, 0))
    failing = rows(spark, 2, 3).selectExpr("if(id = 3, raise_error('lost'), id) as id", "city")
    with pytest.raises(Exception, match="lost"):
        SINK.write(failing, batch(target, 1))
    assert stored_rows(spark, target) == [1]
    SINK.write(rows(spark, 2, 3), batch(target, 1))
    assert stored_rows(spark, target) == [1, 2, 3]


def test_files_are_parquet_that_other_readers_understand(spark: SparkSession, target: Target) -> None:
    moment = datetime(2024, 5, 6, 12, 0, 0, 250_000, tzinfo=UTC)
    created = spark.createDataFrame(
        [(moment, Decimal("12.345678"), "Zürich", None)], "at timestamp, fare decimal(14,6), city string, riders long"
    )
    SINK.write(created.coalesce(1), batch(target, 0))
    (file,) = Path(target.table(SINK.path)).glob("*.parquet")
    assert pq.ParquetFile(file).read().to_pylist() == [
        {"at": moment, "fare": Decimal("12.345678"), "city": "Zürich", "riders": None}
    ]


def test_partitions_are_folders(spark: SparkSession, target: Target) -> None:
    FileSink(SINK.path, partition_by=("city",)).write(rows(spark, 1, 2, 3), batch(target, 0))
    folder = Path(target.table(SINK.path))
    assert sorted(item.name for item in folder.iterdir() if item.name.startswith("city=")) == [
        "city=city 0",
        "city=city 1",
    ]
    assert stored_rows(spark, target) == [1, 2, 3]


def test_a_batch_without_rows_makes_no_difference(spark: SparkSession, target: Target) -> None:
    SINK.write(rows(spark, 1), batch(target, 0))
    SINK.write(rows(spark), batch(target, 1))
    assert stored_rows(spark, target) == [1]


def test_the_batches_of_another_checkpoint_are_refused_and_not_lost(spark: SparkSession, target: Target) -> None:
    SINK.write(rows(spark, 1), Batch("rides", "q1", 0, target))
    with pytest.raises(RecoveryError, match="HR-305"):
        SINK.write(rows(spark, 2), Batch("rides", "q2", 0, target))
    assert stored_rows(spark, target) == [1]


def test_a_folder_that_a_query_without_headrace_wrote_is_refused(spark: SparkSession, target: Target) -> None:
    SINK.write(rows(spark, 1), batch(target, 0))
    (Path(target.table(SINK.path)) / "_headrace").unlink()
    with pytest.raises(RecoveryError, match="HR-305"):
        SINK.write(rows(spark, 2), batch(target, 1))


def test_batches_have_to_follow_each_other(spark: SparkSession, target: Target) -> None:
    """A folder that was set back lacks rows; the rows of a checkpoint that was set back would be lost by skipping."""
    first, again, other = (
        Batch("rides", "q1", number, target, offsets=digest) for number, digest in ((0, "a"), (1, "b"), (1, "c"))
    )
    with pytest.raises(RecoveryError, match=r"HR-314.*has no entry, and 3 batches were written before"):
        SINK.write(rows(spark, 9), batch(target, 3))
    SINK.write(rows(spark, 1), first)
    with pytest.raises(RecoveryError, match=r"HR-314.*last one is 0: those between"):
        SINK.write(rows(spark, 9), batch(target, 2))
    SINK.write(rows(spark, 2), again)
    with pytest.raises(RecoveryError, match=r"HR-314.*set back"):
        SINK.write(rows(spark, 9), first)
    with pytest.raises(RecoveryError, match=r"HR-314.*set back"):
        SINK.write(rows(spark, 9), other)
    SINK.write(rows(spark, 2), again)
    assert stored_rows(spark, target) == on_disk(target) == [1, 2]


def test_a_folder_returns_the_committed_batches_of_each_checkpoint(spark: SparkSession, target: Target) -> None:
    def account() -> CommittedBatches:
        return SINK.committed_batches(spark, "rides", "0", target)

    folder = target.table(SINK.path)
    assert account() == CommittedBatches(f"the folder {folder}", None, {})
    SINK.write(rows(spark, 1), batch(target, 0))
    SINK.write(rows(spark, 2), batch(target, 1))
    first = account()
    assert first.last == {"q1": 1}
    shutil.rmtree(folder)
    SINK.write(rows(spark, 1), batch(target, 0))
    assert account().last == {"q1": 0}
    assert account().identity not in (None, first.identity)


# ---- formats ----

MOMENT = datetime(2024, 5, 6, 12, 0, 0, 123_456, tzinfo=UTC)
LOCAL = MOMENT.replace(tzinfo=None)
FLAT = (
    "id long, name string, small tinyint, ratio double, fare decimal(14,6), ok boolean, "
    "day date, at timestamp, local timestamp_ntz"
)
# What texts come to grief over: null and nothing, quotes, separators, line ends, spaces, what looks like a null.
TEXTS = [
    None,
    "",
    "a,b",
    'say "hi"',
    "\\",
    '\\"',
    "one\ntwo",
    "cr\r\nlf\r",
    " spaced ",
    "#",
    "null",
    "\\N",
    "Zürich",
    "\t",
]
FLAT_ROWS: list[tuple[Any, ...]] = [
    *((number, text, None, None, None, None, None, None, None) for number, text in enumerate(TEXTS)),
    (98, "x", -128, 0.1, Decimal("12.345678"), True, date(2024, 5, 6), MOMENT, LOCAL),
    (99, "y", 127, float("-inf"), Decimal("-0.000001"), False, date(1, 1, 1), MOMENT, LOCAL),
]


@pytest.mark.parametrize("file_format", ["parquet", "json", "csv", "orc"])
def test_rows_come_back_as_they_were_in_every_time_zone(
    spark: SparkSession, target: Target, file_format: FileFormat
) -> None:
    sink = FileSink("out", file_format)
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    sink.write(session.createDataFrame(FLAT_ROWS, FLAT).coalesce(1), batch(target, 0))
    actual = sink.read(spark, target)
    assert [(field.name, field.dataType) for field in actual.schema] == [
        (field.name, field.dataType) for field in spark.createDataFrame([], FLAT).schema
    ]
    # With the moments as numbers: as values of Python they would be shown in the zone of this machine.
    columns = [F.unix_micros("at").alias("at") if name == "at" else F.col(name) for name in actual.columns]
    micros = int(MOMENT.timestamp()) * 1_000_000 + MOMENT.microsecond
    expected = [tuple(micros if value is MOMENT else value for value in row) for row in FLAT_ROWS]
    assert sorted((tuple(row) for row in actual.select(*columns).collect()), key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("file_format", ["parquet", "json", "orc"])
def test_nested_columns_come_back_as_they_were(spark: SparkSession, target: Target, file_format: FileFormat) -> None:
    sink = FileSink("out", file_format)
    schema = "id long, tags array<string>, fares map<string,decimal(9,2)>, at struct<x:double,raw:binary>"
    created = [(1, ["a", None], {"EUR": Decimal("1.50"), "USD": None}, (0.5, b"\x00\xff")), (2, [], {}, None)]
    sink.write(spark.createDataFrame(created, schema).coalesce(1), batch(target, 0))
    assert [tuple(row) for row in sink.read(spark, target).orderBy("id").collect()] == [
        (1, ["a", None], {"EUR": Decimal("1.50"), "USD": None}, (0.5, bytearray(b"\x00\xff"))),
        (2, [], {}, None),
    ]


def test_a_csv_file_is_plain_for_other_readers(spark: SparkSession, target: Target) -> None:
    created = spark.createDataFrame(
        [(1, 'a "b", c', MOMENT), (2, None, None), (3, "", None)], "id int, s string, t timestamp"
    )
    FileSink("out", "csv").write(created.coalesce(1), batch(target, 0))
    (file,) = Path(target.table("out")).glob("*.csv")
    assert file.read_text() == 'id,s,t\n1,"a ""b"", c",2024-05-06T12:00:00.123456Z\n2,,\n3,"",\n'


def test_a_json_file_contains_null_fields(spark: SparkSession, target: Target) -> None:
    created = spark.createDataFrame([(1, None, MOMENT)], "id int, s string, t timestamp")
    FileSink("out", "json").write(created.coalesce(1), batch(target, 0))
    (file,) = Path(target.table("out")).glob("*.json")
    assert file.read_text() == '{"id":1,"s":null,"t":"2024-05-06T12:00:00.123456Z"}\n'


@pytest.mark.parametrize(
    "declare",
    [
        pytest.param(lambda: FileSink("out", cast(Any, "parquett")), id="an unknown format"),
        pytest.param(lambda: FileSink("out", partition_by=("hour",), hourly="at"), id="the hour twice"),
        pytest.param(lambda: FileSink("out", partition_by=("at",), hourly="at"), id="the time as a folder"),
        pytest.param(
            lambda: FileSink("out[1]").preflight(Target("test", lake="/nowhere", checkpoints="/nowhere")),
            id="a pattern",
        ),
    ],
)
def test_a_folder_that_cannot_be_written_or_read_is_refused_before_spark_starts(declare: Callable[[], object]) -> None:
    with pytest.raises(FlowError, match="HR-214"):
        declare()


@pytest.mark.parametrize(
    ("sink", "schema", "why"),
    [
        (FileSink("out", "csv"), "id int, tags array<string>", "tags is array<string>, which csv cannot hold"),
        (FileSink("out", "csv"), "id int, at struct<x:int>", "at is struct<x:int>, which csv cannot hold"),
        (FileSink("out", "csv"), "id int, raw binary", "raw is binary"),
        (FileSink("out", "csv"), "id int", "id is the only column"),
        (FileSink("out", "csv", partition_by=("id",)), "id int, s string", "s is the only column"),
        (FileSink("out", "json"), "a struct<m:map<int,int>>", r"a\.m is map<int,int>, which json cannot hold"),
        (FileSink("out", "orc"), "id int, v variant", "v is variant, which orc cannot hold"),
        (FileSink("out", partition_by=("nope",)), "id int", "no column nope"),
        (FileSink("out", partition_by=("id",)), "id int", "Every column is a partition"),
        (FileSink("out", partition_by=("t",)), "id int, t timestamp", "t is timestamp, which cannot be the name"),
        (FileSink("out", hourly="t"), "id int", "hourly names t, which is not among the columns"),
        (FileSink("out", hourly="t"), "id int, t timestamp_ntz", "t, which is timestamp_ntz"),
        (FileSink("out", hourly="t"), "Date int, t timestamp", "have a column Date, and hourly adds"),
    ],
)
def test_rows_that_a_sink_cannot_store_are_refused_before_anything_is_written(
    spark: SparkSession, target: Target, sink: FileSink, schema: str, why: str
) -> None:
    with pytest.raises(FlowError, match=f"HR-215.*{why}"):
        sink.write(spark.createDataFrame([], schema), batch(target, 0))
    assert not Path(target.table("out")).exists()


@pytest.mark.parametrize(
    ("sink", "why"),
    [
        (FileSink(SINK.path, "json"), "is in the format parquet, and the batch json"),
        (FileSink(SINK.path, partition_by=("city",)), r"has the partitions \(none\), and the batch city"),
    ],
)
def test_the_format_and_the_partitions_of_a_folder_cannot_change(
    spark: SparkSession, target: Target, sink: FileSink, why: str
) -> None:
    SINK.write(rows(spark, 1), batch(target, 0))
    with pytest.raises(FlowError, match=f"HR-215.*{why}"):
        sink.write(rows(spark, 2), batch(target, 1))


def test_the_columns_of_a_folder_cannot_change(spark: SparkSession, target: Target) -> None:
    SINK.write(rows(spark, 1), batch(target, 0))
    with pytest.raises(FlowError, match=r"HR-215.*has the columns id BIGINT,city STRING, and the batch id BIGINT"):
        SINK.write(rows(spark, 2).select("id"), batch(target, 1))


# ---- hours ----


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
@pytest.mark.parametrize("file_format", ["parquet", "csv"])
def test_rows_lie_in_the_folder_of_their_hour_in_utc(
    spark: SparkSession, target: Target, zone: str, file_format: FileFormat
) -> None:
    sink = FileSink("out", file_format, partition_by=("city",), hourly="at")
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    # Just before and at the hour, at midnight, before 1970, and none at all; the city of the last two is a number.
    created = [
        (1, "2024-05-06T06:59:59.999999Z", "a b/c%"),
        (2, "2024-05-06T07:00:00Z", "é"),
        (3, "2024-05-07T00:00:00Z", "é"),
        (4, "1969-12-31T23:30:00Z", "007"),
        (5, None, "007"),
    ]
    frame = session.createDataFrame(created, "id int, at string, city string")
    sink.write(frame.select("id", "city", F.to_timestamp("at").alias("at")).coalesce(1), batch(target, 0))

    nothing = "__HIVE_DEFAULT_PARTITION__"
    folders = {1: ("2024-05-06", "06"), 2: ("2024-05-06", "07"), 3: ("2024-05-07", "00"), 4: ("1969-12-31", "23")}
    actual = sink.read(spark, target)
    assert actual.columns == ["id", "city", "at", "date", "hour"]
    assert sorted(
        (row.id, row.at, str(row.date or ""), row.hour or "", row.city)
        for row in actual.withColumn("at", F.date_format("at", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")).collect()
    ) == [
        (1, "2024-05-06T06:59:59.999999", *folders[1], "a b/c%"),
        (2, "2024-05-06T07:00:00.000000", *folders[2], "é"),
        (3, "2024-05-07T00:00:00.000000", *folders[3], "é"),
        (4, "1969-12-31T23:30:00.000000", *folders[4], "007"),
        (5, None, "", "", "007"),
    ]
    lying = {str(Path(path).relative_to(target.table("out")).parent) for path in committed_files(target.table("out"))}
    assert lying == {
        "date=2024-05-06/hour=06/city=a b%2Fc%25",
        "date=2024-05-06/hour=07/city=é",
        "date=2024-05-07/hour=00/city=é",
        "date=1969-12-31/hour=23/city=007",
        f"date={nothing}/hour={nothing}/city=007",
    }


# ---- the log ----


def test_committed_files_are_those_of_the_log_before_and_after_a_compaction(
    spark: SparkSession, target: Target
) -> None:
    """Spark compacts the log with every tenth entry."""
    folder = Path(target.table(SINK.path))
    for number in range(12):
        SINK.write(rows(spark, number), batch(target, number))
        if number in (8, 9, 11):
            (folder / f"part-orphan-{number}.parquet").write_bytes(b"left by an attempt that never committed")
            stored_ids = [pq.ParquetFile(file).read()["id"].to_pylist() for file in committed_files(str(folder))]
            assert sorted(stored_ids) == [[item] for item in range(number + 1)]
    assert (folder / "_spark_metadata" / "9.compact").exists()
    assert SINK.committed_batches(spark, "rides", "0", target).last == {"q1": 11}
    assert sorted(row.id for row in SINK.read(spark, target).collect()) == list(range(12))
    # Everything before the compaction may be missing: Spark deletes it after a while.
    for number in range(9):
        (folder / "_spark_metadata" / str(number)).unlink()
    assert len(committed_files(str(folder))) == 12
    (folder / "_spark_metadata" / "10").unlink()
    with pytest.raises(DataError, match=r"HR-517.*batch 10 does not exist"):
        committed_files(str(folder))


def test_a_folder_without_a_log_and_one_that_was_copied_are_not_read(spark: SparkSession, target: Target) -> None:
    SINK.write(rows(spark, 1), batch(target, 0))
    folder = Path(target.table(SINK.path))
    shutil.copytree(folder, folder.with_name("copy"))
    with pytest.raises(DataError, match=r"HR-517.*lies elsewhere"):
        FileSink("gold/copy").read(spark, target)
    shutil.rmtree(folder / "_spark_metadata")
    with pytest.raises(DataError, match=r"HR-517.*no log"):
        committed_files(str(folder))
    with pytest.raises(DataError, match=r"HR-516.*No FileSink"):
        FileSink("gold/nothing").read(spark, target)
