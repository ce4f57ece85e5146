"""Bounds by measured rates, each worked out by hand."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from headrace import (
    AsFastAsPossible,
    AvailableNow,
    DeltaChangesSource,
    DeltaSource,
    Every,
    FileSink,
    FileSource,
    Flow,
    Input,
    KafkaSource,
    Severity,
    Target,
    check,
)
from headrace.audit.throughput import Throughput, processed_per_second
from headrace.flow.checks.backpressure import AvailableResources, MeasuredRates, choose_batch_size, read_limit_for_rate
from headrace.flow.levers import Trigger
from headrace.flow.source import AutoBatchSize, Bounded, Source
from headrace.operate.preflight.batch_size import measure_rates
from headrace.runtime.events import BatchCommitted, EventBus

ROW = StructType([StructField("id", StringType())])
TEN = Every("10 seconds")


@pytest.mark.parametrize(
    ("rate", "seconds", "head_room", "bound"),
    [
        (1_000, 10, 2.0, 20_000),
        (30_000, 10, 0.8, 240_000),
        (123, 10, 2.0, 2_500),  # 2,460
        (1_201, 10, 2.0, 25_000),  # 24,020
        (4.99, 10, 2.0, 100),  # 99.8
        (3.3, 10, 2.0, 66),
        (0.01, 10, 2.0, 1),  # 0.2
        (0.0, 10, 2.0, 1),
    ],
)
def test_a_bound_is_rate_times_interval_times_head_room_rounded_up(
    rate: float, seconds: float, head_room: float, bound: int
) -> None:
    assert read_limit_for_rate(rate, seconds, head_room) == bound


def flow(source: Source, trigger: Trigger = TEN) -> Flow:
    schema = ROW if source.carries_payload else None
    return Flow("orders", Input(source, schema=schema), lambda rows: rows, FileSink("out"), trigger=trigger)


def findings_of(
    source: Source, rates: MeasuredRates | None = None, trigger: Trigger = TEN
) -> list[tuple[str, Severity, str]]:
    declared = {("orders", "rows"): rates} if rates else None
    findings = check([flow(source, trigger)], declared)
    return [
        (finding.code, finding.severity, finding.remedy)
        for finding in findings
        if finding.code in ("HRC-110", "HRC-204")
    ]


OPEN = KafkaSource("orders", max_offsets_per_trigger=None)


@pytest.mark.parametrize(
    ("source", "rates", "trigger", "remedy"),
    [
        (OPEN, None, TEN, "Set max_offsets_per_trigger=500_000. Nothing was measured"),
        (OPEN, MeasuredRates({"records": 0.0}), TEN, "Set max_offsets_per_trigger=500_000. Nothing was measured"),
        (
            OPEN,
            MeasuredRates({"records": 6_100}),
            TEN,
            "Set max_offsets_per_trigger=130_000. Lately 6.1e+03 records",
        ),  # 122,000
        (
            OPEN,
            MeasuredRates({"records": 450}),
            Every("1 minute"),
            "Set max_offsets_per_trigger=54_000. Lately 450 records",
        ),
        (OPEN, MeasuredRates({"records": 450}), AsFastAsPossible(), "Set max_offsets_per_trigger=50_000. Lately"),
        (OPEN, MeasuredRates({"records": 4_500}), AvailableNow(), "Set max_offsets_per_trigger=90_000. Lately"),
        # The flow's own record goes before what arrives.
        (OPEN, MeasuredRates({"records": 450}, 30_000), TEN, "Set max_offsets_per_trigger=240_000. The flow itself"),
        (FileSource("in", "csv", ROW), None, TEN, "Set max_files_per_trigger=100. Nothing was measured"),
        (
            FileSource("in", "csv", ROW),
            MeasuredRates({"files": 0.5}),
            TEN,
            "Set max_files_per_trigger=10. Lately 0.5 files",
        ),
        (FileSource("in", "csv", ROW), MeasuredRates({}, 30_000), TEN, "Set max_files_per_trigger=100. Nothing"),
        (DeltaSource("t"), None, TEN, "Set max_files_per_trigger=100."),
        (
            DeltaChangesSource("t", 0),
            MeasuredRates({"bytes": 2e8}),
            TEN,
            "Set max_bytes_per_trigger=4_000_000_000. Lately 2e+08 bytes",
        ),
    ],
)
def test_a_source_without_a_bound_is_an_error_that_suggests_one(
    source: Source, rates: MeasuredRates | None, trigger: Trigger, remedy: str
) -> None:
    assert isinstance(source, Bounded)
    ((code, severity, message),) = findings_of(source, rates, trigger)
    assert (code, severity) == ("HRC-110", Severity.ERROR)
    assert message.startswith(remedy)


@pytest.mark.parametrize(
    ("source", "rates", "trigger", "remedies"),
    [
        (KafkaSource("t", 5_000), MeasuredRates({"records": 501}), TEN, ["Set max_offsets_per_trigger=50_000"]),
        (KafkaSource("t", 5_000), MeasuredRates({"records": 500}), TEN, []),
        (KafkaSource("t", 5_000), MeasuredRates({}), TEN, []),
        (KafkaSource("t", 5_000), MeasuredRates({"records": 501}), AsFastAsPossible(), []),
        (
            FileSource("in", "csv", ROW, 1),
            MeasuredRates({"files": 1.0, "bytes": 9e9}),
            TEN,
            ["Set max_files_per_trigger=20"],
        ),
        (
            DeltaSource("t", 100, 1_000),
            MeasuredRates({"files": 1.0, "bytes": 101}),
            TEN,
            ["Set max_bytes_per_trigger=1_000_000_000"],
        ),
    ],
)
def test_a_bound_below_what_arrives_is_a_warning(
    source: Source, rates: MeasuredRates, trigger: Trigger, remedies: list[str]
) -> None:
    message = findings_of(source, rates, trigger)
    assert [(code, severity) for code, severity, _ in message] == [("HRC-204", Severity.WARNING)] * len(remedies)
    assert all(remedy.startswith(expected) for (_, _, remedy), expected in zip(message, remedies, strict=True))


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("dev", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))


def test_files_are_counted_by_their_times(target: Target) -> None:
    folder = Path(target.lake) / "in" / "day"
    folder.mkdir(parents=True)
    for name, size, age in (("a.csv", 3_600, 10), ("b.csv", 7_200, 3_000), ("old.csv", 9_999, 4_000), (".tmp", 9, 1)):
        (folder / name).write_bytes(b"x" * size)
        os.utime(folder / name, (time.time() - age,) * 2)
    # Two files of 10,800 bytes in 3,600 seconds.
    for path in ("in/day", "in/*"):
        rates = FileSource(path, "csv", ROW, 1).arrival_rates(target)
        assert rates == {"files": pytest.approx(2 / 3600), "bytes": 3.0}
    assert FileSource("s3a://bucket/in", "csv", ROW, 1).arrival_rates(target) == {}


def test_rows_added_to_a_table_are_counted_by_its_log_and_moved_ones_are_not(target: Target) -> None:
    log = Path(target.lake) / "t" / "_delta_log"
    log.mkdir(parents=True)
    added = {"path": "a", "size": 3_600, "dataChange": True}
    moved = {"path": "b", "size": 9_999, "dataChange": False}
    lines = [{"commitInfo": {}}, {"add": added}, {"add": moved}, {"remove": {"path": "c", "dataChange": True}}]
    (log / "00000000000000000001.json").write_text("\n".join(map(json.dumps, lines)))
    assert DeltaSource("t", 1).arrival_rates(target) == {"files": 1 / 3600, "bytes": 1.0}
    (log / "00000000000000000002.json").write_text("torn")
    assert DeltaChangesSource("t", 0, 1).arrival_rates(target) == {}


def test_the_record_of_a_flow_is_smoothed_over_large_batches_and_read_by_the_next_check(target: Target) -> None:
    bus, kafka = EventBus(), flow(OPEN)
    throughput = Throughput(None, target, [kafka], bus)  # type: ignore[arg-type]

    def batch(number: int, rows: int, seconds: float) -> None:
        bus.publish(BatchCommitted("orders", number, rows, rows, {}, 0, int(seconds * 1000), None))

    assert processed_per_second(target, "orders") is None
    batch(0, 10_000, 1.0)
    batch(1, 0, 0.1)
    batch(2, 30, 0.3)  # a small one: 100 rows a second say nothing
    batch(3, 6_000, 0.5)  # 10,000 + 0.2 x (12,000 - 10,000)
    throughput.close()

    assert processed_per_second(target, "orders") == 10_400
    assert measure_rates([kafka], target) == {("orders", "rows"): MeasuredRates({}, 10_400)}
    ((_, _, remedy),) = [item for item in findings_of(OPEN, measure_rates([kafka], target)["orders", "rows"])]
    assert remedy.startswith("Set max_offsets_per_trigger=84_000.")  # 83,200


@pytest.mark.parametrize(
    ("room", "freshness", "records"),
    [
        # 1 GB x 0.5 / (250 bytes x 2) = 1,000,000
        (AvailableResources(1e9, 250), "1 minute", 1_000_000),
        # Nothing to look at: records of 1,024 bytes, so 244,140.6
        (AvailableResources(1e9), "1 minute", 244_000),
        # 10,000 a second x 60 s x 0.8 = 480,000 is less than what memory holds
        (AvailableResources(1e9, 250, 10_000), "1 minute", 480_000),
        (AvailableResources(1e9, 250, 10_000), "10 minutes", 1_000_000),
        # Small machines and slow flows get batches that are worth their fixed cost
        (AvailableResources(1e6, 250), "1 minute", 50_000),
        (AvailableResources(1e9, 250, 10), "1 minute", 50_000),
        (AvailableResources(1e12, 250), "1 minute", 5_000_000),
    ],
)
def test_a_bound_fits_into_memory_and_into_the_freshness_target(
    room: AvailableResources, freshness: str, records: int
) -> None:
    assert choose_batch_size(AutoBatchSize(freshness), room).records == records


def test_a_suggested_bound_states_its_reason() -> None:
    assert (
        choose_batch_size(AutoBatchSize(), AvailableResources(1e9, 250)).reason
        == "This many records, 250 bytes each, fit into 500 MB."
    )
    assert (
        choose_batch_size(AutoBatchSize(), AvailableResources(1e9)).reason
        == "This many records, assumed to have 1,024 bytes, fit into 500 MB."
    )
    assert (
        choose_batch_size(AutoBatchSize(), AvailableResources(1e9, 250, 10_000)).reason
        == "At 10,000 a second a batch is done within 1 minute."
    )


def test_a_rate_of_small_batches_does_not_count_as_what_a_flow_can_do(target: Target) -> None:
    bus = EventBus()
    throughput = Throughput(None, target, [flow(OPEN)], bus)  # type: ignore[arg-type]
    bus.publish(BatchCommitted("orders", 0, 10_000, 0, {}, 0, 1_000, None))
    throughput.close()
    assert processed_per_second(target, "orders", batches_of=10_000) == 10_000
    assert processed_per_second(target, "orders", batches_of=10_001) is None


def test_the_recorded_rate_of_a_flow_with_two_inputs_is_not_used_for_one(target: Target) -> None:
    both = Flow("both", {"a": Input(OPEN, schema=ROW), "b": Input(OPEN, schema=ROW)}, lambda a, b: a, FileSink("out"))
    bus = EventBus()
    throughput = Throughput(None, target, [both], bus)  # type: ignore[arg-type]
    bus.publish(BatchCommitted("both", 0, 10_000, 0, {}, 0, 1_000, None))
    throughput.close()
    assert measure_rates([both], target) == {("both", "a"): MeasuredRates(), ("both", "b"): MeasuredRates()}


def test_a_broker_that_is_away_costs_seconds_and_no_error(target: Target) -> None:
    away = Target("dev", lake=target.lake, checkpoints=target.checkpoints, kafka={"bootstrap.servers": "127.0.0.1:1"})
    began = time.monotonic()
    assert OPEN.arrival_rates(away) == {}
    # A start without a broker would wait for ten.
    assert time.monotonic() - began < 10
