"""The right answer of orders and payments, in plain Python: what Spark must give, worked out without Spark.

The model is handed what Kafka held and where Spark cut its batches, and nothing else from the system under test. All
times are whole milliseconds since the epoch, UTC. A replay takes these steps for batch N:

1. Take the records between the batch's offsets, of both topics, and judge each: an event, or `Bad`.
2. W[N] is the watermark in force: W[0] is 0, later ones are step 7 of the batch before.
3. A row at or before W[N-1] is late: counted, and dropped.
4. Each new order meets the payments that are kept, then is kept itself; each new payment meets the orders that are
   kept, new ones among them. A row that step 5 would forget at once is not kept: what comes after it in the same batch
   does not meet it.
5. Forget the orders that are older than W[N] by more than the bound, and the payments older than W[N]: no partner of
   theirs can come that is not late.
6. Pairs are put out where they meet. A row that goes unmatched is put out with nulls in the batch that forgets it,
   where the join keeps its side.
7. The watermark of a topic is its highest event time so far less the delay, and 0 before its first row. W[N+1] is the
   lower one of the two, or W[N] if that is higher. Bad records never count.

A driver that starts anew has forgotten how far each topic was, and knows only W. So after a restart W may lag behind
step 7 for a while: where it was recorded, the record is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple, cast

from headrace.patterns.records import HOUR_MS, MINUTE_MS, Bad, Consumed, Field, Schema, decimal, instant, text
from headrace.patterns.window_model import Batch, taken

ORDER = Schema(
    (Field("order_id", text), Field("user_id", text), Field("order_time", instant)),
    time="order_time",
    key_required=True,
)
PAYMENT = Schema(
    (Field("order_id", text), Field("amount", decimal(12, 2)), Field("pay_time", instant)),
    time="pay_time",
    key_required=True,
)


@dataclass(frozen=True, slots=True)
class Order:
    """A valid order."""

    order_id: str
    user_id: str
    order_time: int


@dataclass(frozen=True, slots=True)
class Payment:
    """A valid payment."""

    order_id: str
    amount: Decimal
    pay_time: int


class Joined(NamedTuple):
    """A row of a join."""

    order_id: str
    user_id: str | None
    order_time: int | None
    amount: Decimal | None
    pay_time: int | None


def judge_order(record: Consumed) -> Order | Bad:
    """Say what a record of the topic of orders is."""
    given = ORDER.judge(record)
    if isinstance(given, Bad):
        return given
    return Order(str(given["order_id"]), str(given["user_id"]), cast("int", given["order_time"]) // 1000)


def judge_payment(record: Consumed) -> Payment | Bad:
    """Say what a record of the topic of payments is."""
    given = PAYMENT.judge(record)
    if isinstance(given, Bad):
        return given
    return Payment(str(given["order_id"]), cast("Decimal", given["amount"]), cast("int", given["pay_time"]) // 1000)


@dataclass(frozen=True)
class JoinFlow:
    """One join. `how` is `inner`, `left`, `right` or `full`."""

    how: str
    delay_ms: int
    bound_ms: int = HOUR_MS

    def meets(self, order: Order, payment: Payment) -> bool:
        """Whether a payment belongs to an order."""
        return 0 <= payment.pay_time - order.order_time <= self.bound_ms and order.order_id == payment.order_id

    @property
    def keeps_orders(self) -> bool:
        """Whether an order without payment is put out."""
        return self.how in ("left", "full")

    @property
    def keeps_payments(self) -> bool:
        """Whether a payment without order is put out."""
        return self.how in ("right", "full")


JOINS = {
    "inner": JoinFlow("inner", 10 * MINUTE_MS),
    "left": JoinFlow("left", 30 * MINUTE_MS),
    "right": JoinFlow("right", 30 * MINUTE_MS),
    "full": JoinFlow("full", 30 * MINUTE_MS),
}


@dataclass
class Outcome:
    """What a flow must have done; lists but `bad` have one entry per batch."""

    batches: list[list[Joined]] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    watermarks: list[int] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)
    state: list[int] = field(default_factory=list)
    """The rows that both sides keep after the batch."""


@dataclass
class _Kept:
    """Rows of both sides that wait for a partner, by the id of their order, and which have met one."""

    orders: dict[str, list[Order]] = field(default_factory=dict)
    payments: dict[str, list[Payment]] = field(default_factory=dict)
    met: set[int] = field(default_factory=set)
    """By identity: the same order may be there twice."""

    @property
    def rows(self) -> int:
        """How many rows wait on both sides."""
        return sum(len(each) for each in self.orders.values()) + sum(len(each) for each in self.payments.values())


def replay(
    orders: Iterable[Consumed],
    payments: Iterable[Consumed],
    batches: Sequence[Mapping[str, Batch]],
    flow: JoinFlow,
    recorded: Sequence[int] | None = None,
) -> Outcome:
    """Run a join over its batches, in the steps that the module's docstring numbers.

    `recorded` are the watermarks of the offset log, for a flow that was started more than once. One that no restart
    explains is an error.
    """
    logs = [{(each.partition, each.offset): each for each in log} for log in (orders, payments)]
    outcome, kept = Outcome(), _Kept()
    before, now, newest = 0, 0, [0, 0]
    for number, batch in enumerate(batches):
        # 1. the records, judged
        new_orders = [judge_order(each) for each in taken(logs[0], batch["orders"])]
        new_payments = [judge_payment(each) for each in taken(logs[1], batch["payments"])]
        outcome.bad += [each for each in (*new_orders, *new_payments) if isinstance(each, Bad)]
        told_orders = [each for each in new_orders if isinstance(each, Order)]
        told_payments = [each for each in new_payments if isinstance(each, Payment)]

        # 2. the watermark in force
        if recorded is not None:
            if not before <= recorded[number] <= now:
                message = f"batch {number} ran with watermark {recorded[number]}, and not one of {before} to {now}"
                raise AssertionError(message)
            now = recorded[number]
        outcome.watermarks.append(now)

        # 3. late rows apart
        in_time = [each for each in told_orders if each.order_time > before]
        paid_in_time = [each for each in told_payments if each.pay_time > before]
        outcome.late.append(len(told_orders) + len(told_payments) - len(in_time) - len(paid_in_time))

        # 4.-6. pairs, then what is forgotten
        outcome.batches.append(sorted(_batch(flow, kept, in_time, paid_in_time, now), key=str))
        outcome.state.append(kept.rows)

        # 7. the next watermark
        newest[0] = max([newest[0], *(each.order_time for each in told_orders)])
        newest[1] = max([newest[1], *(each.pay_time for each in told_payments)])
        before, now = now, max(now, min(newest) - flow.delay_ms)
    return outcome


def day(orders: Iterable[Consumed], payments: Iterable[Consumed], flow: JoinFlow, start: int, end: int) -> list[Joined]:
    """Return what a join of a span of time should hold: every record counts once, whenever it came."""
    all_orders = {each for record in orders if isinstance(each := judge_order(record), Order)}
    all_payments = {paid for record in payments if isinstance(paid := judge_payment(record), Payment)}
    by_id: dict[str, list[Order]] = {}
    for order in all_orders:
        by_id.setdefault(order.order_id, []).append(order)
    pairs = [(o, p) for p in all_payments for o in by_id.get(p.order_id, ()) if flow.meets(o, p)]
    rows = [_pair(order, payment) for order, payment in pairs]
    if flow.keeps_orders:
        alone = all_orders - {order for order, _ in pairs}
        rows += [Joined(each.order_id, each.user_id, each.order_time, None, None) for each in alone]
    if flow.keeps_payments:
        lone = all_payments - {payment for _, payment in pairs}
        rows += [Joined(each.order_id, None, None, each.amount, each.pay_time) for each in lone]
    return [row for row in rows if start <= _moment(row) < end]


def _moment(row: Joined) -> int:
    return cast("int", row.pay_time if row.order_time is None else row.order_time)


def _batch(
    flow: JoinFlow, kept: _Kept, orders: Sequence[Order], payments: Sequence[Payment], watermark: int
) -> Iterable[Joined]:
    """Run steps 4 to 6. The rows that are put out, in no order."""
    for order in orders:
        partners = [each for each in kept.payments.get(order.order_id, ()) if flow.meets(order, each)]
        yield from (_pair(order, each) for each in partners)
        kept.met.update(id(each) for each in partners)
        if order.order_time >= watermark - flow.bound_ms:
            kept.orders.setdefault(order.order_id, []).append(order)
            kept.met.update({id(order)} if partners else ())
        elif flow.keeps_orders and not partners:
            yield Joined(order.order_id, order.user_id, order.order_time, None, None)
    for payment in payments:
        paid = [each for each in kept.orders.get(payment.order_id, ()) if flow.meets(each, payment)]
        yield from (_pair(each, payment) for each in paid)
        kept.met.update(id(each) for each in paid)
        if payment.pay_time >= watermark:
            kept.payments.setdefault(payment.order_id, []).append(payment)
            kept.met.update({id(payment)} if paid else ())
        elif flow.keeps_payments and not paid:
            yield Joined(payment.order_id, None, None, payment.amount, payment.pay_time)
    yield from _forgotten(flow, kept, watermark)


def _forgotten(flow: JoinFlow, kept: _Kept, watermark: int) -> Iterable[Joined]:
    for order in [o for each in kept.orders.values() for o in each if o.order_time < watermark - flow.bound_ms]:
        if flow.keeps_orders and id(order) not in kept.met:
            yield Joined(order.order_id, order.user_id, order.order_time, None, None)
        _drop(kept.orders, order.order_id, order)
        kept.met.discard(id(order))
    for payment in [p for each in kept.payments.values() for p in each if p.pay_time < watermark]:
        if flow.keeps_payments and id(payment) not in kept.met:
            yield Joined(payment.order_id, None, None, payment.amount, payment.pay_time)
        _drop(kept.payments, payment.order_id, payment)
        kept.met.discard(id(payment))


def _drop(kept: dict[str, list[Order]] | dict[str, list[Payment]], key: str, row: object) -> None:
    rest = [each for each in kept[key] if each is not row]
    if rest:
        kept[key] = rest  # type: ignore[assignment]
    else:
        del kept[key]


def _pair(order: Order, payment: Payment) -> Joined:
    return Joined(order.order_id, order.user_id, order.order_time, payment.amount, payment.pay_time)
