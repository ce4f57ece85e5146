"""The model of orders and payments, against tables worked out by hand, and the generator that feeds both."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from headrace.patterns.orders.flows import OrderSettings
from headrace.patterns.orders.generator import OrderGenerator, OrderTraffic
from headrace.patterns.orders.model import (
    JOINS,
    Joined,
    JoinFlow,
    Order,
    Payment,
    day,
    judge_order,
    judge_payment,
    replay,
)
from headrace.patterns.records import Bad, Consumed

NOW = datetime(2024, 5, 6, 12, tzinfo=UTC)


def ms(clock: str) -> int:
    return round(datetime.fromisoformat(f"2024-05-06T{clock}").replace(tzinfo=UTC).timestamp() * 1000)


def iso(clock: str) -> str:
    return f"2024-05-06T{clock}Z"


class Topics:
    """Two topics of one partition each, written batch by batch in a test: `o id clock`, `p id clock`."""

    def __init__(self) -> None:
        self.orders: list[Consumed] = []
        self.payments: list[Consumed] = []
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
            log.append(Consumed(0, len(log), ms("23:00:00"), b"k", json.dumps(fields).encode()))
        ends = len(self.orders), len(self.payments)
        self.batches.append(
            {name: {0: (at, end)} for name, at, end in zip(("orders", "payments"), starts, ends, strict=True)}
        )

    def told(self, flow: JoinFlow, recorded: list[int] | None = None) -> list[list[str]]:
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
    assert unpaid_and_lone().told(flow) == expected


def test_a_payment_exactly_at_the_bound_belongs_to_its_order():
    topics = Topics()
    topics.batch("o a 10:00:00", "p a 11:00:00", "o b 10:00:00", "p b 11:00:00.001", "o c 10:00:00", "p c 09:59:59.999")
    assert topics.told(JOINS["inner"]) == [["a"]]


def test_a_row_at_or_before_the_watermark_of_the_batch_before_is_late():
    topics = Topics()
    topics.batch("o a 10:00:00", "p x 10:00:00")
    topics.batch("o b 10:00:00", "p y 10:00:00")  # runs with 09:50, after a batch with none
    topics.batch("o c 09:50:00", "o d 09:50:00.001")
    outcome = replay(topics.orders, topics.payments, topics.batches, JOINS["inner"])
    assert outcome.watermarks == [0, ms("09:50:00"), ms("09:50:00")]
    assert outcome.late == [0, 0, 1]


def test_rows_that_the_watermark_has_left_behind_do_not_meet_in_one_batch():
    topics = Topics()
    topics.batch("o a 12:00:00", "p a 12:00:00")
    topics.batch("o b 10:00:00", "p b 10:10:00")  # not late yet, and too old to be kept
    assert topics.told(JOINS["full"]) == [["a"], ["b o", "b p"]]


def test_a_recorded_watermark_counts_where_a_restart_explains_it():
    topics = unpaid_and_lone()
    computed = replay(topics.orders, topics.payments, topics.batches, JOINS["full"]).watermarks
    behind = [computed[0], computed[1], computed[1], computed[3]]
    assert topics.told(JOINS["full"], behind) == [["a"], [], [], ["b o", "c p"]]
    with pytest.raises(AssertionError, match="batch 2 ran with watermark"):
        topics.told(JOINS["full"], [*computed[:2], computed[2] + 1, computed[3]])


def test_a_day_counts_every_record_once_whenever_it_came():
    topics = Topics()
    topics.batch("o a 10:00:00", "o a 10:00:00", "p a 10:30:00", "p a 10:30:00", "o b 10:00:00", "o z 12:00:00")
    rows = day(topics.orders, topics.payments, JOINS["full"], ms("09:00:00"), ms("12:00:00"))
    assert sorted(map(shown, rows)) == ["a", "b o"]


def test_the_state_is_each_rate_times_how_long_its_rows_are_kept():
    settings = OrderSettings()
    # 20 x (10 + 60) minutes of orders and 10 x 10 minutes of payments; 30 minutes for the outer joins.
    assert settings.expected_rows("inner", 20, 10) == 20 * 4200 + 10 * 600
    assert settings.expected_rows("full", 20, 10) == 20 * 5400 + 10 * 1800


def test_generated_records_are_what_they_are_counted_as():
    traffic = OrderGenerator(OrderTraffic(rate=2, late=0.05, malformed=0.02, seed=3))
    records = list(traffic.events(NOW - timedelta(hours=4), NOW))
    kinds = Counter(record.kind for record in records)
    assert {"order", "payment", "late", "duplicate", "null_key", "truncated", "far_future"} <= set(kinds)
    verdicts = [
        (record, (judge_order if record.topic == "orders" else judge_payment)(_consumed(record))) for record in records
    ]
    good = {"order": Order, "payment": Payment}
    assert all(isinstance(verdict, good[record.kind]) for record, verdict in verdicts if record.kind in good)
    others = {*good, "late", "duplicate"}
    assert all(isinstance(verdict, Bad) for record, verdict in verdicts if record.kind not in others)


def test_the_same_seed_and_moment_give_the_same_bytes():
    traffic = OrderGenerator(OrderTraffic(rate=5))
    first, again = (list(traffic.events(NOW, NOW + timedelta(minutes=3))) for _ in range(2))
    assert first == again


def _consumed(record) -> Consumed:
    return Consumed(0, 0, record.arrival_ms, record.key, record.value)
