"""What `reconcile orders` makes of a row by hand-worked tables, and what it refuses, without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from headrace import Target
from headrace.demos.orders.reconcile import JoinReconciliation, surplus_by_cause
from headrace.demos.reconciliation import find_reconciliation, reconciled_patterns
from headrace.errors import RecoveryError
from headrace.patterns.orders.flows import flows
from headrace.runtime.checkpoint.checkpoint import Checkpoint

LEFT = next(flow for flow in flows() if flow.name == "orders_with_payments")
NOBODY: Any = None


@pytest.mark.parametrize(
    ("stored", "due", "late", "expected"),
    [
        (0, 1, True, {"late": -1}),
        (0, 1, False, {"other": -1}),
        (3, 1, True, {"duplicate": 2}),
        (1, 0, True, {"late": 1}),
        # The order was sent twice and its payment came late: one is wrong, the other one is one too many of it.
        (2, 0, True, {"late": 1, "duplicate": 1}),
        (3, 0, False, {"other": 1, "duplicate": 2}),
        (1, 1, True, {}),
    ],
)
def test_rows_too_many_and_too_few_have_their_cause(stored: int, due: int, late: bool, expected: dict[str, int]):
    assert surplus_by_cause(stored, due, late=late) == expected


def test_the_reconciliation_of_a_pattern_is_found_by_the_name_of_the_pattern():
    assert reconciled_patterns() == ["orders"]
    accepts = find_reconciliation("orders").accepts
    assert accepts(LEFT)
    assert not accepts(replace(LEFT, transform=lambda orders, payments: orders))


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "c"), master="local[2]")


def work(target: Target, monkeypatch: pytest.MonkeyPatch, watermark_ms: int | None = None) -> JoinReconciliation:
    """Return the reconciliation of a flow without batches, or with one that ran with a watermark."""
    monkeypatch.setattr("headrace.operate.late.replayable_rows.flow_session", lambda *_arguments: None)
    checkpoint = Checkpoint.of(LEFT.name, target)
    if watermark_ms is not None:
        settings = json.dumps({"batchWatermarkMs": watermark_ms, "batchTimestampMs": 1, "conf": {}})
        files, root = checkpoint.files, checkpoint.location
        files.write(f"{root}/metadata", '{"id":"q"}')
        files.write(f"{root}/offsets/0", f'v1\n{settings}\n{{"orders":{{"0":5}}}}\n{{"payments":{{"0":5}}}}')
        files.write(f"{root}/commits/0", 'v1\n{"nextBatchWatermarkMs":0}')
    return JoinReconciliation(NOBODY, target, LEFT, checkpoint, NOBODY)


def test_another_flow_is_refused(target: Target):
    other = replace(LEFT, transform=lambda orders, payments: orders)
    with pytest.raises(RecoveryError, match="is not a join of orders and payments") as refused:
        JoinReconciliation(NOBODY, target, other, Checkpoint.of(other.name, target), NOBODY)
    assert refused.value.code == "HR-355"


@pytest.mark.parametrize(
    ("watermark_ms", "day", "what"),
    [
        (None, None, "has not committed a batch"),
        # Payments have not come yet: nothing is closed, and the day before the first of all is none.
        (0, None, "every day is still open"),
        (0, date(2026, 11, 16), "every day is still open"),
        # 2026-11-16T01:00Z is an hour past the end of the 15th, to the millisecond: nothing of the 16th is closed.
        (1_794_790_800_000, date(2026, 11, 16), "Nothing of 2026-11-16 is closed"),
    ],
)
def test_what_is_not_closed_is_refused(
    target: Target, monkeypatch: pytest.MonkeyPatch, watermark_ms: int | None, day: date | None, what: str
):
    with pytest.raises(RecoveryError, match=what) as refused:
        work(target, monkeypatch, watermark_ms).plan(day)
    assert refused.value.code == "HR-356"
