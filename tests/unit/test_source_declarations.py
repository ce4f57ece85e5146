"""What sources refuse before Spark starts."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from headrace import (
    Console,
    DataError,
    DeltaChangesSource,
    DeltaSource,
    FileSource,
    Flow,
    FlowError,
    Input,
    KafkaSource,
    RateSource,
    ServiceUnavailable,
    SocketSource,
    Target,
    Watermark,
    check,
)
from headrace.flow.source import Source

ROW = StructType([StructField("city", StringType()), StructField("at", TimestampType())])
NO_SPARK = cast(Any, None)

SOURCES = [
    FileSource("landing", "csv", ROW, max_files_per_trigger=1),
    DeltaSource("rides", max_files_per_trigger=1, max_bytes_per_trigger=1),
    DeltaChangesSource("rides", 0, max_bytes_per_trigger=1),
    RateSource(1),
    SocketSource("localhost", 9999),
]


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_every_source_has_columns_of_its_own_and_passes_the_check(source: Source):
    assert {name for name in vars(Source) if name[0] != "_"} <= set(dir(source))
    flow = Flow("read", Input(source, watermark=Watermark("at", "1 minute")), lambda rows: rows, Console())
    assert [finding.code for finding in check([flow]) if finding.severity == "error"] == []
    with_schema = Flow("read", Input(source, schema=ROW), lambda rows: rows, Console())
    assert [finding.code for finding in check([with_schema]) if finding.severity == "error"] == ["HRC-125"]


@pytest.mark.parametrize(
    "declare",
    [
        pytest.param(lambda: FileSource("in", "csv", ROW, 1, 1), id="files with two bounds"),
        pytest.param(lambda: FileSource("in", "csv", ROW, 0), id="files with a bound of 0"),
        pytest.param(lambda: FileSource("in", cast(Any, "cvs"), ROW, 1), id="files of an unknown format"),
        pytest.param(
            lambda: FileSource("in", "csv", ROW, 1, options={"maxfilespertrigger": "7"}), id="a bound among options"
        ),
        pytest.param(lambda: DeltaSource("t", max_bytes_per_trigger=-1), id="a table with a bound below 0"),
        pytest.param(lambda: DeltaSource("t", 1, starting_version=-1), id="a table before its first version"),
        pytest.param(lambda: KafkaSource("t", 0), id="a topic with a bound of 0"),
        pytest.param(lambda: DeltaChangesSource("t", -1, 1), id="changes before the first version"),
        pytest.param(lambda: KafkaSource("t", data_loss_reason=" "), id="loss accepted without a word"),
        pytest.param(lambda: KafkaSource("t", accepted_topic_ids=("id",)), id="a new topic accepted and no loss"),
        pytest.param(
            lambda: KafkaSource("t", data_loss_reason="why", accepted_topic_ids=cast(Any, "id")), id="a text as ids"
        ),
        pytest.param(lambda: RateSource(0), id="a rate of 0"),
        pytest.param(lambda: RateSource(1, partitions=0), id="a rate without partitions"),
        pytest.param(lambda: SocketSource("localhost", 0), id="a socket without a port"),
    ],
)
def test_a_declaration_that_cannot_be_read_fails_where_it_is_made(declare: Callable[[], Source]):
    with pytest.raises(FlowError) as caught:
        declare()
    assert caught.value.code == "HR-210"


def test_a_misspelt_format_is_named_with_the_nearest_one():
    with pytest.raises(FlowError, match="Did you mean 'csv'"):
        FileSource("in", cast(Any, "cvs"), ROW, 1)


@pytest.mark.parametrize("source", SOURCES[:3], ids=lambda source: source.name)
def test_a_folder_that_is_missing_is_an_error_of_the_data(source: Source, target: Target):
    with pytest.raises(DataError) as caught:
        source.preflight(target)
    assert caught.value.code == "HR-510"


@pytest.mark.parametrize("source", SOURCES[1:3], ids=lambda source: source.name)
def test_a_folder_without_a_delta_log_is_no_table(source: Source, target: Target, tmp_path: Path):
    (tmp_path / "rides").mkdir()
    with pytest.raises(DataError, match="as a Delta table"):
        source.preflight(target)
    (tmp_path / "rides" / "_delta_log").mkdir()
    source.preflight(target)


@pytest.mark.parametrize("path", ["s3a://bucket/landing", "landing/*"])
def test_a_folder_elsewhere_and_a_pattern_are_left_to_spark(path: str, target: Target):
    FileSource(path, "csv", ROW, 1).preflight(target)


def test_a_port_is_asked_before_the_start(target: Target):
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = SocketSource("127.0.0.1", server.getsockname()[1])
        source.preflight(target)

    with pytest.raises(ServiceUnavailable) as caught:
        source.preflight(target)
    assert caught.value.code == "HR-611"


@pytest.mark.parametrize("source", [SOURCES[0], *SOURCES[3:]], ids=lambda source: source.name)
def test_a_source_that_stores_nothing_is_not_replayable(source: Source, target: Target):
    with pytest.raises(DataError) as caught:
        source.batch(NO_SPARK, target, "{}", "{}")
    assert caught.value.code == "HR-511"
