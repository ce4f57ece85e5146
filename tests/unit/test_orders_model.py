"""The model of orders and payments, against tables worked out by hand, and the generator that feeds both."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from headrace.cli.flow_events import watermark_lines
from headrace.cli.main import app
from headrace.demos.protocol import DemoSettings
from headrace.operate.run import FlowMetrics
from headrace.patterns.orders.flows import OrderSettings
from headrace.patterns.orders.generator import OrderTraffic
from headrace.patterns.orders.model import (
    ORDER,
    PAYMENT,
    Joined,
    JoinFlow,
    LateRecord,
    Order,
    Payment,
    paid_by_minute,
    replay,
)
from headrace.patterns.records import ConsumedRecord, InvalidRecord
from model_examples import JOINS, daily_rows

NOW = datetime(2024, 5, 6, 12, tzinfo=UTC)


def ms(clock: str) -> int:
    return round(datetime.fromisoformat(f"2024-05-06T{clock}").replace(tzinfo=UTC).timestamp() * 1000)


def iso(clock: str) -> str:
    return f"2024-05-06T{clock}Z"


class Topics:
    """Two topics of one partition each, written batch by batch in a test: `o id clock`, `p id clock`."""

    def __init__(self) -> None:
        self.orders: list[ConsumedRecord] = []
        self.payments: list[ConsumedRecord] = []
        self.batches: list[dict[str, dict[int, tuple[int, int]]]] = []

    def batch(self, *events: str) -> None:
        starts = len(self.orders), len(self.payments)
        for event in events:
            side, name, clock = event.split()
            log = self.orders if side == "o" else self.payments
            fields = (
                {"order_id": name, "user_id": "u", "order_time": iso(clock)}
                if side == "o"
                else {"order_id": name, "amount": 1.5, "pay_time": iso(clock)}
            )
            log.append(ConsumedRecord(0, len(log), ms("23:00:00"), b"k", json.dumps(fields).encode()))
        ends = len(self.orders), len(self.payments)
        self.batches.append(
            {name: {0: (at, end)} for name, at, end in zip(("orders", "payments"), starts, ends, strict=True)}
        )

    def rows_by_batch(self, flow: JoinFlow, recorded: list[int] | None = None) -> list[list[str]]:
        """Return what each batch puts out: `id` for a pair, `id o` or `id p` for a side alone."""
        outcome = replay(self.orders, self.payments, self.batches, flow, recorded)
        return [[shown(row) for row in batch] for batch in outcome.batches]


def shown(row: Joined) -> str:
    return row.order_id + (" p" if row.order_time is None else " o" if row.pay_time is None else "")


def unpaid_and_lone() -> Topics:
    topics = Topics()
    topics.batch("o a 10:00:00", "o b 10:00:00", "p a 10:30:00", "p c 10:30:00")
    # The lower one is that of the payments: 11:00:00.001 less 30 minutes. It is in force from the next batch on. The
    # one after that is 11:00:00.001: a millisecond past the bound of the orders of 10:00, and not past this payment.
    topics.batch("o d 12:00:00", "p e 11:00:00.001")
    topics.batch("p f 11:30:00.001")
    topics.batch()
    return topics


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [["a"], [], [], []]),
        ("left", [["a"], [], [], ["b o"]]),
        ("right", [["a"], [], ["c p"], []]),
        ("full", [["a"], [], ["c p"], ["b o"]]),
    ],
)
def test_a_side_alone_is_put_out_by_the_batch_whose_watermark_has_passed_it(how: str, expected: list[list[str]]):
    flow = JoinFlow(how, JOINS["full"].delay_ms)
    assert unpaid_and_lone().rows_by_batch(flow) == expected


def test_a_payment_exactly_at_the_bound_belongs_to_its_order():
    topics = Topics()
    topics.batch("o a 10:00:00", "p a 11:00:00", "o b 10:00:00", "p b 11:00:00.001", "o c 10:00:00", "p c 09:59:59.999")
    assert topics.rows_by_batch(JOINS["inner"]) == [["a"]]


def test_a_row_at_or_before_the_watermark_of_the_batch_before_is_late():
    topics = Topics()
    topics.batch("o a 10:00:00", "p x 10:00:00")
    topics.batch("o b 10:00:00", "p y 10:00:00")  # runs with 09:50, after a batch with none
    topics.batch("o c 09:50:00", "o d 09:50:00.001")
    outcome = replay(topics.orders, topics.payments, topics.batches, JOINS["inner"])
    assert outcome.watermarks == [0, ms("09:50:00"), ms("09:50:00")]
    assert outcome.late == [LateRecord(2, "orders", 0, 2)]


def test_rows_that_the_watermark_has_left_behind_do_not_meet_in_one_batch():
    topics = Topics()
    topics.batch("o a 12:00:00", "p a 12:00:00")
    topics.batch("o b 10:00:00", "p b 10:10:00")  # not late yet, and too old to be stored
    assert topics.rows_by_batch(JOINS["full"]) == [["a"], ["b o", "b p"]]


def test_a_recorded_watermark_counts_where_a_restart_explains_it():
    topics = unpaid_and_lone()
    topics.batch("o g 12:01:00", "p h 11:40:00")
    topics.batch()
    alone = replay(topics.orders, topics.payments, topics.batches, JOINS["full"]).watermarks
    early, half, late = ms("09:30:00"), ms("10:30:00.001"), ms("11:00:00.001")
    assert alone == [0, early, half, late, late, ms("11:10:00")]
    # A driver that begins with batch 2 knows 09:30, and moves on when it has seen rows of both topics: after batch 4.
    behind = [0, early, early, early, early, ms("11:10:00")]
    assert topics.rows_by_batch(JOINS["full"], behind) == [["a"], [], [], [], [], ["b o", "c p", "e p"]]
    assert replay(topics.orders, topics.payments, topics.batches, JOINS["full"], behind).restarts == 1
    assert replay(topics.orders, topics.payments, topics.batches, JOINS["full"], alone).restarts == 0


@pytest.mark.parametrize(
    ("recorded", "batch"),
    [
        (["09:30:00", "10:30:00.002"], 2),
        # Between the one before and the right one, and what no start gives.
        (["09:30:00", "10:00:00"], 2),
        # Who began with batch 2 has seen no order since, and cannot know again what was forgotten.
        (["09:30:00", "09:30:00", "11:00:00.001"], 3),
    ],
)
def test_a_recorded_watermark_that_no_restart_explains_is_an_error(recorded: list[str], batch: int):
    topics = unpaid_and_lone()
    with pytest.raises(AssertionError, match=f"batch {batch} ran with watermark"):
        topics.rows_by_batch(JOINS["full"], [0, *map(ms, recorded), ms("11:00:00.001")])


def test_the_hit_rate_covers_the_minutes_whose_unpaid_orders_are_written():
    topics = Topics()
    topics.batch("o a 10:00:10", "o b 10:00:50", "o c 10:01:00", "p a 10:05:00", "p c 10:02:00")
    topics.batch("o x 11:31:00", "p y 11:31:00")
    topics.batch()  # runs with 11:01: orders of before 10:01 are final, and c is written as paid only
    outcome = replay(topics.orders, topics.payments, topics.batches, JOINS["left"])
    assert paid_by_minute(outcome, JOINS["left"].bound_ms) == [(ms("10:00:00"), 2, 1)]
    # a and b, and their payments of 10:05 and 10:02, are out of the state.
    assert (outcome.state, outcome.evicted) == ([5, 7, 3], [0, 0, 4])


def test_a_day_counts_every_record_once_whenever_it_came():
    topics = Topics()
    topics.batch("o a 10:00:00", "o a 10:00:00", "p a 10:30:00", "p a 10:30:00", "o b 10:00:00", "o z 12:00:00")
    rows = daily_rows(topics.orders, topics.payments, JOINS["full"], ms("09:00:00"), ms("12:00:00"))
    assert sorted(map(shown, rows)) == ["a", "b o"]


def test_the_state_is_each_rate_times_the_retention_of_its_rows():
    settings = OrderSettings()
    # 20 x (10 + 60) minutes of orders and 10 x 10 minutes of payments; 30 minutes for the outer joins.
    assert settings.expected_rows("inner", 20, 10) == 20 * 4200 + 10 * 600
    assert settings.expected_rows("full", 20, 10) == 20 * 5400 + 10 * 1800
    # An order has two texts of 24 and a time of 8, a payment a text, an amount of 8 and a time; 48 more each.
    assert settings.expected_bytes("full", 20, 10) == 20 * 5400 * 104 + 10 * 1800 * 88


def test_generated_records_are_what_they_are_counted_as():
    traffic = OrderTraffic(rate=2, late=0.05, malformed=0.02, seed=3)
    records = list(traffic.events(NOW - timedelta(hours=4), NOW))
    kinds = Counter(record.kind for record in records)
    assert {"order", "payment", "late", "duplicate", "null_key", "truncated", "far_future"} <= set(kinds)
    verdicts = [
        (record, (ORDER.parse if record.topic == "orders" else PAYMENT.parse)(_consumed(record))) for record in records
    ]
    good = {"order": Order, "payment": Payment}
    assert all(isinstance(verdict, good[record.kind]) for record, verdict in verdicts if record.kind in good)
    others = {*good, "late", "duplicate"}
    assert all(isinstance(verdict, InvalidRecord) for record, verdict in verdicts if record.kind not in others)


def test_some_orders_come_long_after_their_payment_and_too_late():
    traffic = OrderTraffic(rate=2, late=0.05, seed=3)
    paid, actual = dict[str, int](), 0
    for record in traffic.events(NOW - timedelta(hours=4), NOW):
        if record.kind == "payment":
            paid[json.loads(record.value)["order_id"]] = record.arrival_ms
        elif record.kind == "late" and record.topic == "orders":
            order = ORDER.parse(_consumed(record))
            assert isinstance(order, Order)
            actual += order.order_id in paid
            assert record.arrival_ms - order.order_time >= 45 * 60_000
    assert actual > 10


def test_the_same_seed_and_time_result_in_the_same_bytes():
    traffic = OrderTraffic(rate=5)
    first, again = (list(traffic.events(NOW, NOW + timedelta(minutes=3))) for _ in range(2))
    assert first == again


def test_the_demo_starts_with_a_history_that_contains_final_minutes(monkeypatch: pytest.MonkeyPatch):
    begun = list[timedelta]()

    def run_demo(_name: str, settings: DemoSettings, *_rest: object) -> None:
        begun.append(settings.backfill)
        raise SystemExit

    monkeypatch.setattr("headrace.cli.local.demo.run_demo", run_demo)
    for words in (["orders"], ["rides"], ["orders", "--backfill", "10 minutes"]):
        CliRunner().invoke(app, ["demo", *words, "--json"])
    assert begun == [timedelta(hours=3), timedelta(minutes=90), timedelta(minutes=10)]


def test_an_input_without_a_row_in_the_run_is_the_slowest_input():
    minutes = {name: timedelta(minutes=30) for name in ("orders", "payments")}
    noon = datetime(2026, 11, 16, 12, tzinfo=UTC)
    both = FlowMetrics(delays=minutes, watermarks={"orders": noon, "payments": noon - timedelta(seconds=1)}, evicted=7)
    first = FlowMetrics(delays=minutes, watermarks={"orders": noon})
    single = FlowMetrics(delays={"orders": minutes["orders"]}, watermarks={"orders": noon})
    figures = {"a": both, "b": first, "c": single, "d": FlowMetrics(delays=minutes)}
    stored = {name: figure.slowest_input for name, figure in figures.items()}
    assert stored == {"a": "payments", "b": "payments", "c": None, "d": None}
    assert list(watermark_lines(figures)) == [
        "a: watermarks of orders 2026-11-16 12:00:00, payments 2026-11-16 11:59:59 (slowest); 7 rows left the state.",
        "b: watermarks of orders 2026-11-16 12:00:00, payments (no row in this run) (slowest); 0 rows left the state.",
    ]


def _consumed(record) -> ConsumedRecord:
    return ConsumedRecord(0, 0, record.arrival_ms, record.key, record.value)
