"""The summaries of the ledgers of late and invalid rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from headrace import Flow, Input, KafkaSource, Noop, Target, Watermark
from headrace.audit.flow_audit import late_table, quarantine_table
from headrace.operate.late.summary import repaired_table, summarise_late
from headrace.operate.quarantine.listing import list_quarantine, redriven_table

pytestmark = pytest.mark.spark

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def no_spark() -> SparkSession:
    raise AssertionError("Spark was started for a table that does not exist")


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


def entry(
    row: int, batch: int, watermark: float, event: float, window: tuple[float, float] | None
) -> dict[str, object]:
    return {
        "query_id": "q",
        "batch_id": batch,
        "row_id": str(row),
        "input": "orders",
        "operator": "window" if window else "deduplication",
        "window_start": at(window[0]) if window else None,
        "window_end": at(window[1]) if window else None,
        "watermark": at(watermark),
        "event_time": at(event),
        "late_by": (watermark - event) * 60,
        "recorded_at": at(90),
    }


def test_a_summary_counts_rows_once_and_suggests_a_sufficient_delay(spark: SparkSession, tmp_path: Path):
    target = Target("test", lake=str(tmp_path), checkpoints=str(tmp_path))
    moment = pa.timestamp("us", tz="UTC")
    entries = [
        # One row that missed two windows; the first needs a delay that is longer by 20 minutes and a moment.
        entry(1, 4, 30, 8, (0, 10)),
        entry(1, 4, 30, 8, (5, 15)),
        *(entry(number, 5, 31, 29, (20, 30)) for number in range(2, 10)),
        entry(10, 6, 40, 39, None),
    ]
    kinds = {
        "window_start": moment,
        "window_end": moment,
        "watermark": moment,
        "event_time": moment,
        "recorded_at": moment,
    }
    schema = pa.schema(
        [
            (name, kinds.get(name) or {"batch_id": pa.int64(), "late_by": pa.float64()}.get(name) or pa.string())
            for name in entries[0]
        ]
    )
    write_deltalake(late_table(target, "totals"), pa.Table.from_pylist(entries, schema))
    marks = {"query_id": ["q"], "window_start": [at(20)], "window_end": [at(30)], "up_to": [5]}
    write_deltalake(repaired_table(target, "totals"), pa.table(marks))
    declared = Input(KafkaSource("orders"), watermark=Watermark("at", "10 minutes"))
    summary = summarise_late("totals", target, Flow("totals", declared, lambda rows: rows, Noop()), "q", lambda: spark)

    assert (summary.rows, summary.entries, summary.repaired) == (10, 11, 8)
    assert summary.by_batch == {4: 1, 5: 8, 6: 1}
    assert summary.by_hour == {"2026-03-02T13:00Z": 10}
    assert summary.by_operator == {"window": 9, "deduplication": 1}
    assert summary.late_by == {"p50": 120, "p90": 120, "p99": 22 * 60, "max": 22 * 60}
    # Nine of ten are in time with one minute more (and a moment), all by 20.
    rows_ = {"90 %": "11 minutes 1 second", "99 %": "30 minutes 1 second", "100 %": "30 minutes 1 second"}
    assert summary.delays == {"rows": rows_}
    assert [(window.rows, window.repaired) for window in summary.windows] == [(1, False), (1, False), (8, True)]


def test_the_quarantine_is_listed_by_reason_with_what_was_sent_again(spark: SparkSession, tmp_path: Path):
    target = Target("test", lake=str(tmp_path), checkpoints=str(tmp_path))
    reasons = ["missing:shop", "missing:shop", "malformed_json"]
    rows = {
        "input": ["rows"] * 3,
        "topic": ["orders"] * 3,
        "partition": pa.array([0, 0, 0], pa.int32()),
        "offset": [1, 2, 3],
        "kafka_time": [NOON] * 3,
        "reason": reasons,
        "key": pa.array([b"a", None, None], pa.binary()),
        "value": [b"{}", b'{"id": 1}', b"\x07"],
        "batch_id": [0, 0, 1],
        "recorded_at": [at(1), at(1), at(2)],
    }
    write_deltalake(quarantine_table(target, "totals"), pa.table(rows))
    sent = {name: rows[name][1:2] for name in ("topic", "partition", "offset", "kafka_time")}
    write_deltalake(redriven_table(target, "totals"), pa.table(sent))

    summary = list_quarantine("totals", target, None, 2, lambda: spark)
    assert [(item.reason, item.rows, item.redriven) for item in summary.reasons] == [
        ("missing:shop", 2, 1),
        ("malformed_json", 1, 0),
    ]
    assert [(example.place, example.value) for example in summary.examples] == [
        ("orders-0@3", "\\x07"),
        ("orders-0@2", '{"id": 1}'),
    ]
    only = list_quarantine("totals", target, "missing:shop", 1, lambda: spark)
    assert [(item.reason, item.rows) for item in only.reasons] == [("missing:shop", 2)]
    assert [example.place for example in only.examples] == ["orders-0@2"]
    assert list_quarantine("others", target, None, 2, no_spark).reasons == ()
